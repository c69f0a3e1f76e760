"""Shows a run in TensorBoard: its curves, its row in the table of the sweep, and pictures of its units.

A network's units are measured and drawn while it trains, without any effect on the training. Pictures are uint8 arrays
(H, W, 3), small enough to be drawn quickly.
"""

import math
import secrets
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from omegaconf import OmegaConf
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from deepnets.config.identity import is_execution
from deepnets.config.schema import Config, Selection
from deepnets.models.shortcuts import Gated
from deepnets.models.unit import Unit
from deepnets.monitor.style import styled
from deepnets.training.fit import Training

OBSERVATIONS = 20  # the units are observed in about this many epochs, always in the first and in the last
PICTURE_SHARE = 0.01  # the share of a run's time for drawing, apart from the last epoch's pictures
PICTURE_SECONDS = 0.1  # drawing takes at most this long, on one core
SEARCHED = ("optimizer", "schedule", "model.shortcut")  # nodes whose numbers a random search draws
ALSO_SEARCHED = ("model.depth", "model.layer", "epochs", "batch_size")  # further keys that a random search draws
USUAL = (
    "model",
    "dataset",
    "model.depth",
    "optimizer.lr",
    "epochs",
    "batch_size",
)  # keys that often differ between runs outside a sweep
TITLES = {
    "gradients": "norm of the gradient of each unit's weights",
    "gates": "mean transform gate of each unit",
}
METRICS = ("error/test", "error/train", "loss/test", "loss/train")
SELECTED = "error/selected"  # the test error at the epoch of the lowest validation error so far
OVERLAYS = {
    "train and test": {
        "error (%)": ["error/train", "error/validation", "error/test"],
        "loss": ["loss/train", "loss/validation", "loss/test"],
    },
    "units": {
        "gradient norm": ["gradients/first_unit", "gradients/last_unit"],
        "transform gate": ["gates/lowest_unit", "gates/mean", "gates/highest_unit"],
    },
}
PROBE_IMAGES = 32  # gates are measured on these test images, spread over the split, which may be sorted by class
# TensorBoard shows a picture about 350 pixels wide by repeating or leaving out pixels: a larger one would lose strokes
# of its letters.
SIZE, DPI = (3.4, 2.3), 100  # inches, dots per inch
DOTTED_UNITS = 60  # with more units there is no room for a dot each
SHOWN_FILTERS = 64
PIXELS_ACROSS = 320  # width of the picture of the first filters


class Dashboard:
    """Writes one run's events; `tensorboard --logdir` on the sweep then shows its rows beside each other.

    `observed` holds all observations of the units so far; the run's checkpoint saves it.
    """

    def __init__(
        self, folder: Path, origin: dict[str, Any], training: Training, config: Config, observed: list[dict[str, Any]]
    ) -> None:
        self.observed = observed
        self.first_iteration = training.iteration
        self.begun, self.drawing_seconds = time.monotonic(), 0.0
        if training.iteration == 0:  # an execution that left no checkpoint wrote these files
            for file in folder.glob("events.out.tfevents.*"):
                file.unlink(missing_ok=True)
        # An interrupted execution may have logged iterations beyond the checkpoint: hide these, or curves would double.
        # An epoch's evaluation is logged at its last iteration; hide this too if the checkpoint lies in an evaluation.
        evaluates = training.batch == len(training.batches) or (
            training.batch and training.iteration == training.iterations
        )
        purge = training.iteration + (not evaluates) if training.iteration else None
        self.writer = event_writer(folder, purge_step=purge)
        self.selects = config.selection is Selection.best_validation
        if training.iteration == 0:
            self._begin(choices_of(config, origin), is_table=config.sweep is not None)

    def losses(self, values: dict[int, float]) -> None:
        """Log the training loss of single iterations."""
        for iteration, value in values.items():
            self.writer.add_scalar("loss/iteration", value, iteration)

    def epoch(self, training: Training, history: list[dict[str, Any]]) -> None:
        """Log the epoch that `training` has just completed, the last of `history`, and in some epochs the units."""
        row = history[-1]
        for split, mean in training.completed.items():
            self._scalar(f"loss/{split}", mean.loss, training)
            self._scalar(f"error/{split}", mean.error, training)
        if self.selects:
            selected = min(history, key=lambda row: row["validation_error"])
            self._scalar(SELECTED, selected["test_error"], training)
        self._scalar("schedule/learning_rate", row["learning_rate"], training)
        self._scalar("speed/images_per_second", row["images_per_second"], training)
        last = training.iteration >= training.iterations
        if last or training.epoch == 1 or training.epoch % math.ceil(training.epochs / OBSERVATIONS) == 0:
            self._observe(training)
            started = time.monotonic()
            if last or self.drawing_seconds + PICTURE_SECONDS <= PICTURE_SHARE * (started - self.begun):
                self._draw(training)
                self.drawing_seconds += time.monotonic() - started
        self.writer.flush()

    def flush(self) -> None:
        """Write to disk what was logged so far."""
        self.writer.flush()

    def end(self, finished: bool) -> None:
        """Note in the table of runs that nothing is left to train: the run finished or diverged."""
        _, _, ending = hparams({}, {})
        plugin_data = ending.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin_data.content)
        content.session_end_info.status = Status.Value("STATUS_SUCCESS" if finished else "STATUS_FAILURE")
        plugin_data.content = content.SerializeToString()
        self._add(ending)

    def close(self) -> None:
        """Write to disk what was logged and end the file."""
        self.writer.close()

    def _add(self, summary: Any) -> None:
        self.writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]  # torch types the open file as None

    def _begin(self, choices: dict[str, str | float | None], is_table: bool) -> None:
        chosen = {name: value for name, value in choices.items() if value is not None}
        _, session, _ = hparams(chosen, {})
        self._add(session)
        if is_table:  # TensorBoard uses these columns for all rows; without them, it joins the columns of all runs
            columns = {name: 0.0 if value is None else value for name, value in choices.items()}
            metrics = [SELECTED, *METRICS] if self.selects else METRICS
            experiment, _, _ = hparams(columns, dict.fromkeys(metrics))
            self._add(experiment)
        self.writer.add_custom_scalars(
            {
                category: {chart: ["Multiline", tags] for chart, tags in charts.items()}
                for category, charts in OVERLAYS.items()
            }
        )
        self.writer.flush()

    def _scalar(self, tag: str, value: float, training: Training) -> None:
        self.writer.add_scalar(tag, value, training.iteration)

    def _observe(self, training: Training) -> None:
        # A run that resumes within the evaluation of an epoch has no gradients yet.
        gradients = gradient_norms(training.model) if training.iteration > self.first_iteration else []
        gates = gate_activity(training.model, training.evaluated["test"].some(PROBE_IMAGES), training.precision)
        self.observed.append({"epoch": training.epoch, "gradients": gradients, "gates": gates})
        if gradients:
            self._scalar("gradients/first_unit", gradients[0], training)
            self._scalar("gradients/last_unit", gradients[-1], training)
        if gates:
            self._scalar("gates/mean", sum(gates) / len(gates), training)
            self._scalar("gates/lowest_unit", min(gates), training)
            self._scalar("gates/highest_unit", max(gates), training)

    def _draw(self, training: Training) -> None:
        first, last = (f"epoch {self.observed[index]['epoch']}" for index in (0, -1))
        for quantity, title in TITLES.items():
            curves = [observation[quantity] for observation in self.observed]
            if any(curves):
                picture = pixels(profile(title, curves, (first, last)))
                self.writer.add_image(f"{quantity}/by_unit", picture, training.iteration, dataformats="HWC")
        filters = first_filters(training.model, training.batches.shape)
        if filters is not None:
            self.writer.add_image("weights/first_layer", tiles(filters), training.iteration, dataformats="HWC")


def event_writer(folder: Path, **options: Any) -> SummaryWriter:
    """Make a writer to a new file in `folder`, with a random name: TensorBoard would follow a link of a known name."""
    return SummaryWriter(str(folder), filename_suffix=f".{secrets.token_hex(8)}", **options)


def choices_of(config: Config, origin: dict[str, Any]) -> dict[str, str | float | None]:
    """Return this run's row of TensorBoard's table HParams: the columns in which runs differ, and their values.

    A column is a group with the chosen option as its value, a key of the configuration, or the seed. The columns of a
    sweep are its axes and, in a random search, the keys that are drawn. The columns of a run without a sweep are the
    keys that were typed, and `USUAL`. All runs of a sweep have the same columns and types: numbers are floats, None
    stands for no value, everything else is text.
    """
    options, values = origin.get("choices", {}), OmegaConf.structured(config)
    typed = [override.partition("=")[0].lstrip("+~") for override in origin.get("overrides", [])]
    keys = list(config.sweep.axes) if config.sweep else [*USUAL, *typed]
    if config.setting is not None:
        numbers = [f"{node}.{name}" for node in SEARCHED for name in _numbers(OmegaConf.select(values, node))]
        keys += [*numbers, *ALSO_SEARCHED]
    keys = [key for key in keys if not is_execution(key)]
    columns = {key: options[key] if key in options else _plain(OmegaConf.select(values, key)) for key in keys}
    return {**columns, "seed": float(config.seed)}


def units_of(model: nn.Module) -> list[Unit]:
    """Return all units in order, from the images to the head; none for a net that is not made of units."""
    return [module for module in model.modules() if isinstance(module, Unit)]


def gradient_norms(model: nn.Module) -> list[float]:
    """Return ||dL/dw|| of each unit from the images to the head; w are its parameters, L the last batch's mean loss.

    The gradients are those of the last iteration, clipped if the run clips them; before the first iteration there are
    none. A unit whose branch was dropped in the last iteration (stochastic depth) has norm 0.
    """
    gradients = [[p.grad for p in unit.parameters() if p.grad is not None] for unit in units_of(model)]
    norms = [get_total_norm(of_unit) for of_unit in gradients if of_unit]
    return torch.stack(norms).tolist() if norms else []


def gate_activity(model: nn.Module, images: Tensor, precision: torch.dtype) -> list[float]:
    """Return the mean gate g(x) of each unit with a `Gated` shortcut, over images, channels and pixels, in order.

    Images (N, C, H, W) are as in evaluation; a net without them has no means. See Srivastava et al. 2015, section 4.
    """
    gates = [unit.shortcut.gate for unit in units_of(model) if isinstance(unit.shortcut, Gated)]
    if not gates:
        return []
    means: list[Tensor] = []
    observers = [gate.register_forward_hook(lambda _, __, g: means.append(g.float().mean())) for gate in gates]
    training = model.training
    try:
        if training:
            model.eval()
        with (
            torch.inference_mode(),
            torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16),
        ):
            model(images)
    finally:
        for observer in observers:
            observer.remove()
        if training:
            model.train()
    return torch.stack(means).tolist()


def first_filters(model: nn.Module, shape: tuple[int, int, int]) -> Tensor | None:
    """Return the first layer's weights as pictures (n, H, W, C); None unless C is 1 or 3 and H W is more than 1.

    A picture is a filter of the first convolution or, in a net on flattened images (C, H, W), the weights of an output.
    """
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    if (first := next(layers, None)) is None:
        return None
    weight = first.weight.detach()
    if isinstance(first, nn.Linear):
        if first.in_features != math.prod(shape):
            return None
        weight = weight.unflatten(1, shape)
    _, channels, height, width = weight.shape
    return weight.permute(0, 2, 3, 1) if channels in (1, 3) and height * width > 1 else None


def profile(title: str, curves: Sequence[Sequence[float]], names: tuple[str, str]) -> Figure:
    """Draw curves over units 1, 2, ... on a logarithmic axis, the earliest light, the latest dark and bold.

    `names` are the names of the first and last curve. Values that have no logarithm leave a gap.
    """
    with styled():
        figure = Figure(figsize=SIZE, dpi=DPI)
        axes = figure.subplots(gridspec_kw={"left": 0.18, "right": 0.97, "bottom": 0.19, "top": 0.8})
        shades = colormaps["Blues"](np.linspace(0.4, 1, len(curves)) if len(curves) > 1 else [1.0])
        for index, (curve, colour) in enumerate(zip(curves, shades, strict=True)):
            values = [value if 0 < value < math.inf else math.nan for value in curve]
            is_last = index == len(curves) - 1
            label = names[1] if is_last else names[0] if index == 0 else None
            marker = "." if is_last and len(curve) <= DOTTED_UNITS else ""
            width = 2 if is_last else 1
            axes.plot(range(1, len(curve) + 1), values, color=colour, linewidth=width, marker=marker, label=label)
        values = [value for curve in curves for value in curve if 0 < value < math.inf] or [1.0]
        decades = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values) * 1.01))
        axes.set(yscale="log", ylim=decades, xlabel="unit, from the images to the head")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")  # powers as formulas would take half of the drawing time
        axes.locator_params(axis="x", integer=True)
        figure.suptitle(title, fontsize=9, y=0.99)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2, borderpad=0)
    return figure


def pixels(figure: Figure) -> np.ndarray:
    """Draw the figure and return its pixels (H, W, 3), uint8."""
    with styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3]


def tiles(filters: Tensor) -> np.ndarray:
    """Draw the first 64 filters (n, H, W, C), where C is 1 or 3, each scaled by its largest weight; 0 is grey."""
    weights = filters[:SHOWN_FILTERS].float().cpu().numpy()
    count, height, width, channels = weights.shape
    largest = np.abs(weights).max((1, 2, 3), keepdims=True)
    pixels = (127.5 * (1 + weights / np.maximum(largest, 1e-30))).astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3)) if channels == 1 else pixels
    columns = math.ceil(math.sqrt(count * 1.6))
    scale = max(1, PIXELS_ACROSS // columns // width)
    rows, gap = math.ceil(count / columns), 4
    down, across = height * scale + gap, width * scale + gap
    picture = np.full((rows * down + gap, columns * across + gap, 3), 255, np.uint8)
    for index, tile in enumerate(pixels.repeat(scale, 1).repeat(scale, 2)):
        top, left = gap + index // columns * down, gap + index % columns * across
        picture[top : top + height * scale, left : left + width * scale] = tile
    return picture


def _numbers(node: Any) -> list[str]:
    return [name for name, value in (node or {}).items() if isinstance(value, int | float) and name[0] != "_"]


def _plain(value: Any) -> str | float | None:
    if value is None:
        return None
    if isinstance(value, Enum):
        return value.name
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
