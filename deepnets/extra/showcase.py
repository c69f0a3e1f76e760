"""Makes a page with knobs that shows signals and gradients per unit of two networks, one drawn below the other.

It measures all networks beforehand, on digits, at initialisation or after some epochs: residual networks with one stage
of equal units, and transformers of as many units, post-norm and pre-norm.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from deepnets.analysis.commands.output import whole_numbers
from deepnets.analysis.commands.subject import Subject, fresh_network, model_option, one_batch
from deepnets.analysis.gradients import first_to_last, gradient_norms, signals
from deepnets.analysis.walk import walk_of, with_batch_statistics
from deepnets.command import count, whole
from deepnets.config.compose import compose
from deepnets.config.project import home
from deepnets.config.schema import Config
from deepnets.errors import UserError, printable
from deepnets.models.unit import Ordering
from deepnets.results.page import write_page
from deepnets.system.printing import with_progress
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from deepnets.training.hardware import choose_precision, find_device

ORDERINGS = ("original", "bn_after_addition", "relu_before_addition", "relu_only_preactivation", "full_preactivation")
NORMS = ("post_norm", "pre_norm")  # of transformers
TRAINED = ("dataset=digits", "optimizer=adamw", "schedule=warmup_cosine")  # the transformers' protocol
SCALES = (0.0, 0.5, 0.9, 1.0)
BIASES = (0.0, -1.0, -2.0, -4.0, -6.0)
WIDTH, KERNELS = 16, (3, 3)
DIGITS = 3  # significant digits, more than a bar shows

Shortcut = tuple[float, float | None]  # scale and, for a gate, its bias


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; there is no subject, since every combination of the knobs is a network."""
    where = home() / "outputs" / "analysis" / "showcase"
    parser.add_argument("--output", type=Path, default=where, help="folder for showcase.html (default: %(default)s)")
    parser.add_argument("--depths", default="10,20,30,40", help="numbers of units (default: %(default)s)")
    parser.add_argument("--images", type=count, default=128, help="training images of the one batch (default: 128)")
    parser.add_argument("--draws", type=count, default=2, help="networks whose mean each number is (default: 2)")
    parser.add_argument("--epochs", type=whole, default=0, help="epochs to train each network first (default: 0)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default)")


def run(arguments: argparse.Namespace) -> None:
    """Measure all networks and write the page."""
    depths = _depths(arguments)
    resnet = compose(["model=resnet", "model.depth=null", f"model.widths=[{WIDTH}]", "dataset=digits"]).config
    transformer = compose(["model=vit_digits", *TRAINED]).config
    designs = {name: model_option("ordering", name) for name in (*ORDERINGS, *NORMS)}
    combinations = [
        (name, depth, shortcut) for name in designs for depth in depths for shortcut in shortcuts_of(SCALES, BIASES)
    ]
    bars = {}
    for name, depth, (scale, bias) in with_progress(combinations, "networks"):
        config = transformer if name in NORMS else resnet
        size = {"depth": depth} if name in NORMS else {"depth": None, "units": [depth]}
        changes = {**designs[name], **size, "shortcut": _shortcut(scale, bias)}
        numbers = [_measured(model, config, arguments) for model in _networks(config, changes, arguments)]
        bars[name, depth, (scale, bias)] = Bars(*np.mean(numbers, axis=0).tolist())
    page = arguments.output / "showcase.html"
    state = (
        f"after {arguments.epochs} epochs of training" if arguments.epochs else "at initialisation, before any training"
    )
    about = (
        f"All networks have {', '.join(map(str, depths))} units and are measured {state}. A unit of a residual network "
        f"is two 3x3 convolutions with {WIDTH} channels; the units of a transformer are attention and MLP in turn, of "
        f"width {transformer.model['width']}. The data is one batch of {arguments.images} handwritten digits of 8x8 "
        "pixels, and batch normalisation uses the statistics of this batch. Each number is the mean over "
        f"{arguments.draws} random draws, with the seeds 0 to {arguments.draws - 1}."
    )
    write_showcase(page, Showcase(about, _drawn(designs, arguments), depths, SCALES, BIASES, bars))
    ratios = "; ".join(
        f"{name} "
        + ", ".join(
            f"{first_to_last(np.array(bars[name, depth, (1.0, None)].gradient)):.3g} ({depth} units)"
            for depth in depths
        )
        for name in (ORDERINGS[0], ORDERINGS[-1], *NORMS)
    )
    print(f"showcase: {len(combinations)} networks, {state}; first unit's gradient over the last one's: {ratios}")
    print(printable(f"page         {page}"))


def _depths(arguments: argparse.Namespace) -> list[int]:
    depths = sorted(set(whole_numbers("--depths", arguments.depths)))
    if odd := [depth for depth in depths if depth % 2]:
        raise UserError(f"--depths {odd[0]}: must be even, as the units of a transformer are attention and MLP in turn")
    return depths


@dataclass(frozen=True)
class Bars:
    """A network's numbers for each unit: gradient norm; 10th percentile, mean and 90th percentile of the signal.

    They are not finite for a network that diverged.
    """

    gradient: Sequence[float]
    low: Sequence[float]
    mean: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Design:
    """An ordering: its name, the layers of a branch, and the layers after the addition.

    `command` measures one of its networks again, with {depth}, {ordering} and {shortcut} to fill in.
    """

    name: str
    branch: Sequence[str]
    after: Sequence[str]
    command: str


@dataclass(frozen=True)
class Showcase:
    """The page's contents: the numbers of the measured networks by ordering, depth in units and shortcut."""

    about: str
    designs: Sequence[Design]
    depths: Sequence[int]
    scales: Sequence[float]
    biases: Sequence[float]
    bars: Mapping[tuple[str, int, Shortcut], Bars]


def shortcuts_of(scales: Sequence[float], biases: Sequence[float]) -> list[Shortcut]:
    """Return all shortcuts of the knobs, in their order: constant scales, then gates."""
    return [*((scale, None) for scale in scales), *((1.0, bias) for bias in biases)]


def options_of(scale: float, bias: float | None) -> str:
    """Return the options of scripts/train.py that choose this shortcut."""
    if bias is None:
        return f"model/shortcut=scaled_0.5_1 model.shortcut.shortcut_scale={scale:g}"
    return f"model/shortcut=exclusive_gating_b6 model.shortcut.bias={bias:g}"


def write_showcase(file: Path, showcase: Showcase) -> None:
    """Write the page: one HTML file that loads no other.

    Raises:
        UserError: the file cannot be written.
    """
    shortcuts = shortcuts_of(showcase.scales, showcase.biases)
    data = {
        "designs": [vars(design) for design in showcase.designs],
        "depths": showcase.depths,
        "shortcuts": [options_of(*shortcut) for shortcut in shortcuts],
        "scales": showcase.scales,
        "biases": showcase.biases,
        "bars": [
            [
                [_short(showcase.bars[design.name, depth, shortcut]) for shortcut in shortcuts]
                for depth in showcase.depths
            ]
            for design in showcase.designs
        ],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    write_page(file, "showcase.html", about=showcase.about, data=text)


def _short(bars: Bars) -> list[list[float | None]]:
    """Round the numbers for the page; numbers that are not finite become None, which the page calls diverged."""
    return [
        [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values]
        for values in vars(bars).values()
    ]


def _shortcut(scale: float, bias: float | None) -> dict[str, Any]:
    node: dict[str, Any] = {"_target_": "deepnets.models.shortcuts.Scaled", "_partial_": True}
    if bias is None:
        return node | {"shortcut_scale": scale, "branch_scale": 1.0}
    gate = model_option("shortcut", "exclusive_gating_b6")["shortcut"]
    return gate | {"bias": bias}


def _networks(config: Config, changes: dict[str, Any], arguments: argparse.Namespace) -> Iterator[nn.Module]:
    """Yield the network of each seed: the one its run starts with or, with --epochs, the one its run ends with."""
    device = find_device(arguments.device)
    for seed in range(arguments.draws):
        if not arguments.epochs:
            yield fresh_network(config, changes, seed).to(device).requires_grad_(False)
            continue
        run = replace(config, model=config.model | changes, seed=seed, epochs=arguments.epochs)
        training = prepare(run, device, choose_precision(run.precision, device))
        for _ in fit(training):
            pass
        yield training.model.eval().requires_grad_(False)


def _measured(model: nn.Module, config: Config, arguments: argparse.Namespace) -> list[np.ndarray]:
    """Measure gradient norm, and low, mean and high of the signal, of each unit, as `analyze.py gradients` does."""
    subject = Subject("", model, config, arguments.output, False, find_device(arguments.device))
    x, labels = one_batch(subject, arguments.images)
    walk = walk_of(with_batch_statistics(model))
    signal = signals(walk, x)
    return [gradient_norms(walk, x, labels), signal.low, signal.mean, signal.high]


def _drawn(designs: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> list[Design]:
    drawn = []
    for name, node in designs.items():
        ordering = Ordering(tuple(node["layer"]), tuple(node["after"]))
        branch = ordering.branch(1 if name in NORMS else len(KERNELS))
        drawn.append(Design(name, branch, ordering.after, _command(name, arguments)))
    return drawn


def _command(name: str, arguments: argparse.Namespace) -> str:
    """Return the command that measures a network of seed 0 alone, and writes its numbers to gradients_units.csv."""
    net = f"model=resnet model.depth=null 'model.units=[{{depth}}]' 'model.widths=[{WIDTH}]' dataset=digits"
    if name in NORMS:
        net = f"model=vit_digits model.depth={{depth}} {' '.join(TRAINED)}"
    options = f"{net} model/ordering={{ordering}} {{shortcut}} seed=0"
    measure = f"--images {arguments.images}"
    if not arguments.epochs:
        return f"python scripts/analyze.py gradients {options} {measure}"
    train = f"python scripts/train.py {options} epochs={arguments.epochs}"
    return f"{train} && python scripts/analyze.py gradients THE_FOLDER_IT_PRINTS {measure}"
