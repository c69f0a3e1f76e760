"""The gradient at the input, by the length of the path it took (Veit et al. 2016, Fig. 6).

A killed analysis resumes by the same command.
"""

import argparse
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from deepnets.analysis import paths
from deepnets.analysis.commands.output import Output, Saved
from deepnets.analysis.commands.subject import Subject, subject_of
from deepnets.analysis.gradients import bypass_of
from deepnets.analysis.walk import Walk, walk_of
from deepnets.command import number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, DOTS, GREY, new_figure
from deepnets.system.printing import with_progress

RESAMPLES = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument(
        "--draws", type=number, default=100, help="random paths of each length (default: 100; paper: 1000)"
    )
    parser.add_argument(
        "--images", type=number, default=25, help="use this many random images, which take turns (default: 25)"
    )
    parser.add_argument(
        "--split", choices=("train", "test"), default="test", help="source of the images (default: test)"
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of the draws (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    if arguments.draws < arguments.images:
        raise UserError(f"--draws {arguments.draws} --images {arguments.images}: draw at least one path for each image")
    subject = subject_of(arguments)
    walk = walk_of(subject.settled())
    x, labels = (torch.cat(part) for part in zip(*subject.batches(arguments.split, arguments.images), strict=True))
    lengths = np.arange(len(walk) + 1)
    share = paths.path_share(len(walk), lengths)
    images = len(x)  # a split may have fewer than --images
    ends = paths.norms_by_length(walk, x[:1], labels[:1], [0, len(walk)], 1, torch.Generator().manual_seed(0))
    paths.effective_lengths(ends[:, 0])  # raises for a net that overflows, before files are written
    past = bypass_of(walk, x, arguments.seed)
    with Output("paths", subject.folder, arguments) as output:
        with output.saved(subject.model) as saved:
            norms = _norms(walk, x, labels, lengths, arguments, saved)
            summed_norms = _norms_of_sums(walk, x, labels, saved)
        means = paths.means_by_image(norms, images)
        mean = means.mean(1)
        product = share * 2.0 ** len(walk) * mean
        columns = {
            "length": lengths,
            "share_of_paths": share,
            "mean_norm": mean,
            "standard_error": means.std(1, ddof=1) / np.sqrt(images) if images > 1 else np.nan * mean,
            "count_times_norm": product,
            "norm_of_sum": summed_norms,
        }
        first, last = paths.effective_lengths(product)
        summed = paths.effective_lengths(summed_norms)
        effective = paths.effective_paths(means, share, RESAMPLES, np.random.default_rng(arguments.seed))
        output.table("lengths", columns)
        output.figure("lengths", _figure(columns, first, last))
        sentence = _finding(subject, columns, (first, last), summed, effective)
        output.finding(sentence, lengths=(first, last), share=effective[0], interval=effective[1])
        numbers = [("effective_paths", *(100 * each for each in (effective[0], *effective[1])))]  # percent of all
        output.rows("numbers", ("measure", "value", "low", "high"), numbers)
        output.table("units", {"unit": lengths[1:], "shortcut_factor": past.shortcut, "bypass_factor": past.whole})
        when = "trained" if subject.trained else "at initialisation"
        sentence = past.sentence(when, fresh=not subject.trained)
        output.finding(f"{subject.name}, path of length 0: {sentence}", **past.numbers)


def _norms(
    walk: Walk, x: Tensor, labels: Tensor, lengths: np.ndarray, arguments: argparse.Namespace, saved: Saved
) -> np.ndarray:
    """Compute the gradient's norm along `draws` paths of each length, (lengths, draws); save PATHS norms at a time."""
    generator = torch.Generator().manual_seed(arguments.seed)
    through, image = paths.random_paths(len(walk), lengths.tolist(), arguments.draws, len(x), generator)
    norms = torch.empty(len(image), dtype=torch.float64)
    parts = image.argsort().split(paths.PATHS)
    for place, some in enumerate(with_progress(parts, "paths")):
        compute = partial(paths.norms_along, walk, x, labels, through[some], image[some])
        norms[some] = torch.tensor(saved.once(f"paths {place}", compute), dtype=torch.float64)
    return norms.view(len(lengths), -1).numpy()


def _norms_of_sums(walk: Walk, x: Tensor, labels: Tensor, saved: Saved) -> np.ndarray:
    """Compute the norm of the sum over all paths of each length, averaged over the images, (lengths,)."""
    starts = range(0, len(x), paths.AT_ONCE)
    sums = []
    for start in with_progress(starts, "sums of paths"):
        some = slice(start, start + paths.AT_ONCE)
        sums.append(saved.once(f"sums {start}", partial(_sums, walk, x[some], labels[some])))
    return np.sum(sums, axis=0) / len(x)


def _sums(walk: Walk, x: Tensor, labels: Tensor) -> Tensor:
    return paths.gradients_by_length(walk, x, labels).flatten(2).norm(dim=2).sum(1)


def _finding(
    subject: Subject,
    columns: dict[str, np.ndarray],
    products: tuple[int, int],
    sums: tuple[int, int],
    effective: tuple[float, tuple[float, float]],
) -> str:
    units, product, summed = len(columns["length"]) - 1, columns["count_times_norm"], columns["norm_of_sum"]
    share, (low, high) = effective
    remain = 100 * summed.sum() / product.sum()
    return (
        f"{subject.name}: the mean path takes {units / 2:g} of {units} branches; 95% of count times norm lies at "
        f"lengths {products[0]} to {products[1]}, {100 * share:.3g}% of all paths ({100 * low:.3g}% to "
        f"{100 * high:.3g}% by the bootstrap over images); paths of one length partly cancel: the norms of their sums "
        f"come to {remain:.3g}% of count times norm, 95% at lengths {sums[0]} to {sums[1]}"
    )


def _figure(columns: dict[str, np.ndarray], first: int, last: int) -> Figure:
    lengths = columns["length"]
    figure = new_figure(3.2, 10)
    a, b, c = figure.subplots(1, 3)
    a.bar(lengths, 100 * columns["share_of_paths"], color=GREY)
    a.set(title="number of paths", ylabel="share of all paths (%)")
    b.errorbar(lengths, columns["mean_norm"], columns["standard_error"], fmt="o-", color=COLOURS[0], markersize=3)
    b.set(title="gradient through one path (± standard error)", ylabel="gradient norm at the input", yscale="log")
    for name, label, color in (
        ("count_times_norm", "count times mean norm", COLOURS[0]),
        ("norm_of_sum", "norm of their exact sum", COLOURS[1]),
    ):
        c.plot(lengths, 100 * columns[name] / columns[name].sum(), color=color, label=label, **DOTS)
    band = {"color": COLOURS[0], "alpha": 0.1, "linewidth": 0, "label": "95% of count times norm"}
    c.axvspan(first - 0.5, last + 0.5, **band)
    c.set(title="gradient through all paths of a length", ylabel="share of the sum over lengths (%)")
    c.set_ylim(bottom=0, top=1.4 * c.get_ylim()[1])
    c.legend(loc="upper right", fontsize=7)
    for axes in (a, b, c):
        axes.set_xlabel("path length in units")
        axes.locator_params(axis="x", integer=True)
    return figure
