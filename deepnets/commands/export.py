"""Write a run's weights, and the files with which deepnets and other programs can use them, to a folder.

One of the files is a model card, README.md: it has the weights' measured error in the form that model hubs read.
"""

import json
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from deepnets.command import Parser, add_data_option, add_iteration_option, add_weights_options
from deepnets.config.build import own_targets
from deepnets.config.identity import difference, identity
from deepnets.config.schema import Config
from deepnets.config.trust import chosen_code
from deepnets.errors import UserError, printable
from deepnets.models.resnet import ResNet
from deepnets.results.read import read_runs
from deepnets.runs.classifier import PROGRAM, classifier_of, with_input, write_program
from deepnets.runs.code import copy_code, copy_of, modules_in, noted_code
from deepnets.runs.contents import FINISHED, Input, Result
from deepnets.runs.folder import RunFolder
from deepnets.runs.weights import (
    Weights,
    load_state,
    read_weights,
    selected_iteration,
    torchvision_names,
    write_safetensors,
    write_weights,
)
from deepnets.system.files import read_text, write_atomically, writing
from deepnets.system.printing import markdown_cell

TOLERANCE = 1e-4  # of the largest logit; another order of operations rounds differently
FOR_TORCHVISION = "torchvision.safetensors"
CARD = "README.md"
OURS = "library_name: deepnets"  # a line of every card that deepnets writes
LONGEST = 1_000_000  # bytes of a README.md
MOST_CLASSES = 20  # a card lists at most this many
FOR_DEEPNETS = """
deepnets reads `weights.safetensors` and `config.yaml`; `FOLDER` is this folderMODULES:

```python
from deepnets.run import load_classifier

classifier = load_classifier("FOLDER"TRUST)
probabilities = classifier.predict(classifier.read("image.png")[None])
```
"""
WITHOUT_MODULES = """
Without them, `trust=CLASSES, code="frozen"` executes their copy in `.code`.
"""
FOR_TORCH = """
`{file}` needs only torch. It normalises the images, which are uint8 ({shape}), and returns probabilities:

```python
import torch

program = torch.export.load("{file}").module()
probabilities = program(images)
```
"""


class NothingToWrite(UserError):
    """A file does not apply to these weights, for example because torchvision has no such network."""


def main(argv: Sequence[str] | None = None) -> int:
    """Export the run that `argv` (None: the command line) names; returns 1 if a file could not be written."""
    parser = Parser(
        description="Write a run's weights and configuration, which load_run and predict read; a program of "
        f"torch.export, {PROGRAM}, which needs only torch; and a model card, {CARD}. If torchvision and timm "
        f"have the network too, {FOR_TORCHVISION} has the weights under their names."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a record with weights")
    parser.add_argument("--to", type=Path, metavar="DIR", required=True, help="the folder to write to")
    add_data_option(parser)
    add_iteration_option(parser)
    add_weights_options(parser)
    arguments = parser.parse_args(argv)
    weights = read_weights(arguments.run, arguments.allow_previous, arguments.iteration)
    weights = with_input(weights, arguments.run, arguments.data)
    print(printable(f"weights      {RunFolder(write_weights(weights, arguments.to))}"))
    with writing(arguments.to):
        copy_code(RunFolder(arguments.run), arguments.to, weights.code)
    print(printable(f"settings     {RunFolder(arguments.to / 'config.yaml')}"))
    if choice := chosen_code():
        print(f"code         if yours has changed since the run began, predict too needs --code {choice}")
    failed: list[str] = []

    def write(name: str, writer: Callable[[], Path]) -> Path | None:
        try:
            file = writer()
        except UserError as error:
            if not isinstance(error, NothingToWrite):
                failed.append(name)
            print(printable(f"{name:<12} not written: {' '.join(str(error).split())}"))
            return None
        print(printable(f"{name:<12} {RunFolder(file)}"))
        return file

    write("torchvision", lambda: write_for_torchvision(weights, arguments.to / FOR_TORCHVISION))
    program = write("program", lambda: write_program(classifier_of(weights), arguments.to / PROGRAM))
    write(
        "card",
        lambda: write_card(RunFolder(arguments.run), weights, arguments.to, program.name if program else None),
    )
    return 1 if failed else 0


def write_for_torchvision(weights: Weights, file: Path) -> Path:
    """Write the weights with the names of torchvision's residual networks, which timm uses too; returns the file.

    Before it writes them, it loads torchvision's fresh weights into both networks, and compares their logits.

    Raises:
        NothingToWrite: torchvision has no such network.
    """
    model = weights.model()
    state = {renamed: weights.state[name] for name, renamed in torchvision_names(weights.state).items()}
    try:
        if not isinstance(model, ResNet):
            raise ValueError(f"it is a {type(model).__name__}")
        with torch.random.fork_rng(devices=()), torch.inference_mode():
            torch.manual_seed(0)
            reference = _torchvision_network(model).eval()
            reference.load_state_dict(state)
            reference = _torchvision_network(model).eval()
            load_state(model, reference.state_dict())
            images = torch.randn(2, *weights.shape)
            expected, logits = reference(images), model(images)
        if not torch.allclose(logits, expected, rtol=0, atol=TOLERANCE * expected.abs().max().item()):
            raise ValueError(
                "its logits differ. Torchvision's network strides in a bottleneck's 3x3 convolution "
                "(model.strided_kernel=1) and has no stochastic depth"
            )
    except (ValueError, RuntimeError) as error:  # RuntimeError if names or shapes differ
        reason = " ".join(str(error).split())
        raise NothingToWrite(f"torchvision has no such network: {reason}") from error
    return write_safetensors(state, file, {"format": "pt"})


def write_card(folder: RunFolder, weights: Weights, into: Path, program: str | None = None) -> Path:
    """Write the card of the run in `folder` into the folder `into`, which has its `weights` and maybe its `program`.

    Raises:
        UserError: the run has no result for these weights, or `into` has a README.md that deepnets did not write.
    """
    file = into / CARD
    with writing(file):
        if os.path.lexists(file) and not _is_ours(file):
            raise UserError(f"{file} is there, and deepnets has not written it; name another folder")
        file.unlink(missing_ok=True)  # the weights that it described are gone
        write_atomically(file, card_of(folder, weights, program))
    return file


def card_of(folder: RunFolder, weights: Weights, program: str | None = None) -> str:
    """Return the card's text: YAML between lines of dashes, then Markdown.

    Raises:
        UserError: the run has no result for these weights, or its files contradict each other.
    """
    result, config = folder.completed, weights.config
    if result is None or result.status != FINISHED:
        raise UserError(f"{folder}: no test error to name, as the run {result.status if result else 'has no result'}")
    is_selected = weights.iteration is not None and weights.iteration == selected_iteration(folder)
    if not is_selected and weights.iteration not in (None, result.iterations):
        raise NothingToWrite(f"{folder}: result.json names no test error of iteration {weights.iteration}")
    if contradiction := _contradiction(folder):
        raise UserError(f"{folder}: no test error to name, as the run contradicts itself: {contradiction}")
    path = folder.path.resolve()
    name, data, (metric, error) = f"{path.parent.name}/{path.name}", _data_name(config), _measured(result, is_selected)
    entries = {
        "library_name": "deepnets",
        "pipeline_tag": "image-classification",
        "model-index": [{"name": printable(name), "results": [_entry(folder, config, result, data, is_selected)]}],
    }
    facts = {
        "metric": f"{metric}: {error:.2f} %",
        "data set": f"{data}: " + ", ".join(f"{images} {split}" for split, images in _split_sizes(result).items()),
        "protocol": result.protocol.removeprefix("protocol: "),
        "seeds": f"these weights are of seed {config.seed}; test errors of the row, in percent: "
        + ", ".join(f"seed {seed}: {ended}" for seed, ended in _errors_by_seed(folder, config, is_selected).items()),
        "parameters": str(result.parameters),
        "trained by": f"deepnets of commit {result.commit}, torch {result.versions.get('torch')}, {result.device}",
        "exported by": f"deepnets {version('deepnets')}",
        **(_input_facts(weights.input) if weights.input else {}),
    }
    rows = "".join(f"| {name} | {markdown_cell(text)} |\n" for name, text in facts.items())
    classes = sorted(own_targets(config.model))
    modules = sorted({target.rpartition(".")[0] for target in classes})
    choice = f", code={json.dumps(chosen_code())}" if chosen_code() else ""
    usage = FOR_DEEPNETS.replace("TRUST", f", trust={json.dumps(modules)}{choice}" if modules else "")
    usage = usage.replace("MODULES", ", and Python must find the modules named by `trust`" if modules else "")
    code = noted_code(folder) or weights.code
    if modules and code and {*modules} <= modules_in(copy_of(folder, code)).keys():
        usage += WITHOUT_MODULES.replace("CLASSES", json.dumps(classes))
    if program and (about := weights.input):
        channels, height, width = (about.shape[0], *(side * about.reduce for side in about.shape[1:]))
        usage += FOR_TORCH.format(file=program, shape=f"N, {height}, {width}, {channels}")
    front = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n\n# {markdown_cell(name)}\n\n| | |\n|---|---|\n{rows}{usage}"


def _is_ours(file: Path) -> bool:
    try:
        return OURS in read_text(file, LONGEST)
    except ValueError:  # a link, or no text
        return False


def _entry(folder: RunFolder, config: Config, result: Result, data: str, is_selected: bool) -> dict[str, Any]:
    """Return the entry of the card's `model-index`; errors and accuracies are in percent."""
    metric, error = _measured(result, is_selected)
    args = {
        "protocol": result.protocol.removeprefix("protocol: "),
        "seed": config.seed,
        "test_errors_by_seed": _errors_by_seed(folder, config, is_selected),
    }
    return {
        "task": {"type": "image-classification", "name": "Image classification"},
        "dataset": {"type": data, "name": data, "split": "test"},
        "metrics": [
            {"type": "accuracy", "name": "accuracy in percent", "value": round(100 - error, 4)},
            {"type": "error", "name": metric, "value": round(error, 4), "args": args},
        ],
    }


def _measured(result: Result, is_selected: bool) -> tuple[str, float]:
    """Return the name and the value (percent) of the test error of the exported weights.

    They are those of the epoch that validation selected if `is_selected`, otherwise those of the last epoch.
    """
    if is_selected and result.test_error is not None:
        return f"test error in percent after epoch {result.selected_epoch}, selected by validation", result.test_error
    is_last = result.selected_epoch in (None, result.epochs)
    error = result.test_error if is_last else result.last_test_error
    if error is None:
        raise UserError("result.json names no test error")
    view = f", images shown by {result.view}" if is_last and result.view != "center" else ""
    return f"test error in percent after the last epoch{view}", error


def _data_name(config: Config) -> str:
    """Return the data set's name as in `dataset=`, or the name that the user gave a folder of images."""
    source = config.dataset.get("source")
    if not isinstance(source, dict):
        return config.dataset["_target_"].rpartition(".")[2].lower()
    return source.get("name") or source["_target_"].rpartition(".")[2]


def _contradiction(folder: RunFolder) -> str:
    """Return how the files of the run contradict each other; empty if they do not."""
    (run,) = read_runs([folder.path])
    return run.contradiction


def _split_sizes(result: Result) -> dict[str, Any]:
    names = {"train": "training images", "validation": "held out", "test": "test images"}
    return {name: result.data[key] for key, name in names.items() if key in result.data}


def _errors_by_seed(folder: RunFolder, config: Config, is_selected: bool) -> dict[int, float | str]:
    """Return the test error of this run and of the runs with other seeds, by seed; or a run's status if it has none."""
    settings = identity(config)
    errors: dict[int, float | str] = {}
    for beside in map(RunFolder, folder.path.resolve().parent.glob("seed*")):
        if (beside.path / "config.yaml").is_file() and (result := beside.completed):
            other = beside.config
            if difference(settings, other).keys() - {"seed"}:
                continue
            if _contradiction(beside):
                errors[other.seed] = "its files contradict each other"
            else:
                errors[other.seed] = (
                    round(_measured(result, is_selected)[1], 4) if result.status == FINISHED else result.status
                )
    return dict(sorted(errors.items()))


def _input_facts(about: Input) -> dict[str, str]:
    channels, height, width = about.shape
    mean = "the mean image of the training images" if about.mean is None else about.mean
    more = len(about.classes) - MOST_CLASSES
    size = f"({width * about.reduce}, {height * about.reduce})"
    if about.shorter_side is None:
        read = f"as PIL.ImageOps.fit(image, {size}, PIL.Image.Resampling.BILINEAR) scales and cuts them"
    else:
        read = f"as torchvision's resize(image, [{about.shorter_side}]) and center_crop scale and cut them"
    return {
        "input": f"{channels} x {height} x {width} (channels, height, width)",
        "image files": read,
        "normalisation": f"{about.normalization}: (u - mean) * scale of u in 0..255, mean {mean}, scale {about.scale}",
        "classes": ", ".join(about.classes[:MOST_CLASSES]) + (f" and {more} more" if more > 0 else ""),
    }


def _torchvision_network(model: ResNet) -> nn.Module:
    """Build torchvision's network with as many units as `model`, freshly initialised.

    Raises ValueError if torchvision has none: it needs 4 stages, and 2 or 3 convolutions in a branch.
    """
    from torchvision.models import resnet  # takes half a second, so only where it is needed

    kernels = sum(isinstance(layer, nn.Conv2d) for layer in model.units[0].branch)
    units = [len(list(stage.children())) for stage in model.stages]
    if len(units) != 4 or kernels not in (2, 3):
        raise ValueError(
            f"its networks have 4 stages of units with 2 or 3 convolutions, this one {len(units)} with {kernels}"
        )
    block = resnet.BasicBlock if kernels == 2 else resnet.Bottleneck
    return resnet.ResNet(block, units, num_classes=model.head.out_features)
