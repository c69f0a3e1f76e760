"""Draws the biases that transform gates have learned, and how they route classes (Srivastava et al. 2015, Fig. 2-3)."""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from deepnets.analysis import gates
from deepnets.analysis.commands.output import Output, whole_numbers
from deepnets.analysis.commands.subject import Subject, subject_of
from deepnets.analysis.walk import walk_of
from deepnets.command import number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import new_figure, show_array
from deepnets.system.printing import with_progress

SAME = 1e-6  # rounding alone may let the mean gates of two classes differ by so much
ABSENT = "0.85"  # the grey of blocks that a narrower layer lacks


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--images", type=number, help="use this many random training images (default: all)")
    parser.add_argument("--sample", type=number, help="index of the training image in the figure (default: random)")
    parser.add_argument(
        "--classes", help="labels of classes in the routing figure, e.g. 0,7 as in the paper (default: the first 10)"
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of the random image (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    subject = subject_of(arguments)
    walk = walk_of(subject.model)
    bias = gates.biases(walk)  # first: a net without gates is refused before the data are read
    training = subject.batches("train", arguments.images)
    last = len(subject.classes) - 1
    classes = whole_numbers("--classes", arguments.classes, 0, last) if arguments.classes else range(min(last + 1, 10))
    all_images = training.split if arguments.images is None else subject.batches("train").split
    index = _index(arguments, len(all_images))
    subject.settled()
    routing = gates.routing_of(walk, with_progress(training, "gates"), len(subject.classes))
    shown = [label for label in classes if routing.images[label]]
    mean, of_classes = routing.mean, routing.of_classes
    one = all_images.select(all_images.labels.new_tensor([index]))
    sampled, outputs = gates.of_one_image(walk, training.normalization(one.images).permute(0, 3, 1, 2))
    label = subject.classes[int(one.labels)]
    panels = {"bias": bias, "mean gate": mean, f"gate, image {index} ({label})": sampled, "output y": outputs}
    with Output("gates", subject.folder, arguments) as output:
        layer, block = np.nonzero(~np.isnan(bias))
        values = {"bias": bias, "mean_gate": mean, "sample_gate": sampled, "sample_output": outputs}
        numbered = {"layer": layer + 1, "block": block + 1}
        output.table("blocks", numbered | {name: array[layer, block] for name, array in values.items()})
        by_name = {f"class_{name}": of_classes[label][layer, block] for label, name in enumerate(subject.classes)}
        output.table("routing", numbered | by_name)
        output.figure("blocks", _four_panels(panels))
        if shown:
            output.figure("routing", _routing_figure({subject.classes[label]: of_classes[label] for label in shown}))
        sentence = _finding(subject, gates.gates_of(walk)[0].bias, bias, mean, of_classes[routing.images > 0])
        output.finding(sentence, mean_bias=np.nanmean(bias), mean_gate=np.nanmean(mean))


def _index(arguments: argparse.Namespace, images: int) -> int:
    if arguments.sample is None:
        return int(np.random.default_rng(arguments.seed).integers(images))
    if not 0 <= arguments.sample < images:
        raise UserError(f"--sample {arguments.sample}: must be the index of a training image, 0 to {images - 1}")
    return arguments.sample


def _finding(subject: Subject, start: float, bias: np.ndarray, mean: np.ndarray, of_classes: np.ndarray) -> str:
    opened = np.nanmean(mean, axis=1)
    apart = np.sqrt(np.nanmean(of_classes**2, axis=(0, 2)))
    lower = 100 * np.nanmean(np.where(np.isnan(bias), np.nan, bias < start))
    most, least, layers = opened.argmax(), opened.argmin(), len(opened)
    classes = f"differ most in layer {apart.argmax() + 1} of {layers}" if apart.max() > SAME else "do not differ"
    return (
        f"{subject.name}: biases began at {start:g}, fell in {lower:.0f}% of the blocks and now have a mean of "
        f"{np.nanmean(bias):.2f}; gates open by {np.nanmean(mean):.3f} in the mean, by {opened[most]:.3f} in layer "
        f"{most + 1} and {opened[least]:.3f} in layer {least + 1}; classes {classes}"
    )


def _four_panels(panels: Mapping[str, np.ndarray]) -> Figure:
    layers = len(next(iter(panels.values())))
    figure = new_figure(1.8 + min(max(0.09 * layers, 1.2), 5), 10)
    for axes, (title, array) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        image = show_array(axes, array, extent=_extent(array))
        axes.set(title=title, xlabel=f"block{_grey(array)}", facecolor=ABSENT)
        axes.locator_params(integer=True)
        figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9)
    figure.axes[0].set_ylabel("layer")
    return figure


def _routing_figure(by_class: Mapping[str, np.ndarray]) -> Figure:
    columns = min(len(by_class), 5)
    rows = -(-len(by_class) // columns)
    layers = len(next(iter(by_class.values())))
    figure = new_figure(0.9 + rows * (0.4 + min(max(0.05 * layers, 1.2), 3)), 1.2 + 1.8 * columns)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    limit = max(float(np.nanmax(np.abs(array))) for array in by_class.values())
    for axes in grid.flat[len(by_class) :]:
        axes.set_visible(False)
    for axes, (name, array) in zip(grid.flat, by_class.items(), strict=False):
        limits = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
        image = show_array(axes, array, extent=_extent(array), **limits)
        axes.set(title=f"class {name}", facecolor=ABSENT)
        axes.locator_params(integer=True)
    figure.supxlabel(f"block{_grey(array)}", fontsize=9)
    figure.supylabel("layer", fontsize=9)
    figure.colorbar(image, ax=grid, shrink=0.8, label="mean gate of the class minus mean gate of all")
    return figure


def _grey(array: np.ndarray) -> str:
    return " (grey: the layer has fewer)" if np.isnan(array).any() else ""


def _extent(array: np.ndarray) -> Sequence[float]:
    """Return the extent that counts layers and blocks from 1, with the first layer on top."""
    return (0.5, array.shape[1] + 0.5, array.shape[0] + 0.5, 0.5)
