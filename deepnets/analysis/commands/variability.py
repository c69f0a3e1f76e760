"""How results differ if one net is trained many times: runs with different seeds are compared image by image.

No weights are needed: a result holds which test images its run got right. Jordan 2024; Summers and Dinneen 2021.
"""

import argparse
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from matplotlib.figure import Figure

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import add_folders
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, GREY, new_figure, show_array
from deepnets.results.columns import mixes_code
from deepnets.results.read import Run, read_runs

add_options = add_folders


def run(arguments: argparse.Namespace) -> None:
    """Compare, write the files and print the finding."""
    runs = [run for run in read_runs(arguments.subject) if run.test_wrong is not None]
    wrong = _images(runs)
    measured, name = variability_of(wrong), runs[0].row
    with Output("variability", arguments.output or arguments.subject[0], arguments) as output:
        output.table("runs", {"run": [run.folder.path.name for run in runs], "error": measured.errors})
        missed = np.bincount(wrong.sum(0), minlength=len(runs) + 1)
        output.table("images", {"runs_that_are_wrong": np.arange(len(runs) + 1), "images": missed})
        output.figure("runs", _figure(measured, missed))
        always, never, images = missed[-1], missed[0], wrong.shape[1]
        output.finding(
            f"{name}: {len(runs)} runs, errors {measured.errors.min():.2f}% to {measured.errors.max():.2f}%, deviation "
            f"{measured.deviation:.2f} points ({measured.independent_deviation:.2f} if images were independent); two "
            f"runs differ on {measured.mean_disagreement:.2f}% of {images} images; "
            f"{100 * never / images:.1f}% of images are right in all runs, {100 * always / images:.1f}% in none",
            errors=measured.errors,
            deviation=measured.deviation,
            independent=measured.independent_deviation,
            disagreement=measured.mean_disagreement,
            always_right=never / images,
            never_right=always / images,
        )


@dataclass(frozen=True)
class Variability:
    """The differences between runs that were tested on the same images.

    `errors` (runs,) in percent; `share` (images,), the share of the runs that get an image wrong; `disagreement` (runs,
    runs), the percentage of images that one of two runs gets wrong and the other right.
    """

    errors: np.ndarray
    share: np.ndarray
    disagreement: np.ndarray

    @property
    def deviation(self) -> float:
        """The standard deviation of the runs' errors, in points."""
        return float(self.errors.std(ddof=1))

    @property
    def independent_deviation(self) -> float:
        """The deviation if images were wrong independently of each other: 100 sqrt(sum p (1 - p)) / images.

        p (1 - p) of an image is estimated without bias from its `share`.
        """
        runs = len(self.errors)
        variance = self.share * (1 - self.share) * runs / (runs - 1)
        return float(100 * np.sqrt(variance.sum()) / len(self.share))

    @property
    def mean_disagreement(self) -> float:
        """The mean disagreement of all pairs of runs."""
        return float(np.mean([self.disagreement[pair] for pair in combinations(range(len(self.errors)), 2)]))


def _images(runs: list[Run]) -> np.ndarray:
    """Return which images each run got wrong, (runs, images)."""
    if len(runs) < 2:
        raise UserError(f"{len(runs)} of these runs store which images they got right; at least two are needed")
    if len({run.folder.path.parent for run in runs}) > 1:
        rows = ", ".join(sorted({run.row for run in runs}))
        raise UserError(f"these are runs of several nets ({rows}): name the runs of one")
    if len({run.experiment for run in runs}) > 1 or mixes_code(runs):
        what = "versions of your own code" if mixes_code(runs) else "settings"
        raise UserError(f"these are runs of several nets (different {what}, see result.json): name the runs of one")
    if any(run.result["data"] != runs[0].result["data"] for run in runs):
        raise UserError("these runs were tested on different data, so their images cannot be compared")
    return np.array([run.test_wrong for run in runs])


def _figure(measured: Variability, missed: np.ndarray) -> Figure:
    figure = new_figure(3, 7.5)
    left, right = figure.subplots(1, 2)
    left.bar(np.arange(1, len(missed)), missed[1:], color=COLOURS[0])
    left.set(xlabel="runs that get an image wrong", ylabel="images")
    left.locator_params(axis="x", integer=True)
    shown = measured.disagreement.copy()
    np.fill_diagonal(shown, np.nan)
    image = show_array(right, shown, extent=(0.5, len(shown) + 0.5, len(shown) + 0.5, 0.5))
    right.set(xlabel="run", ylabel="run", facecolor=GREY)
    right.locator_params(integer=True)
    figure.colorbar(image, ax=right, label="images they differ on (%)")
    return figure


def variability_of(wrong: np.ndarray) -> Variability:
    """Compute the variability of at least two runs; `wrong` (runs, images) bool says which images each got wrong."""
    one_only = wrong.astype(float) @ ~wrong.T  # images that the first run gets wrong and the second right
    return Variability(100 * wrong.mean(1), wrong.mean(0), 100 * (one_only + one_only.T) / wrong.shape[1])
