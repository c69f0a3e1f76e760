"""The error after random deletions beside the paths that survive them (Veit et al. 2016, first claim)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

from deepnets.analysis import pathlengths, paths
from deepnets.analysis.commands.lesioned import Lesioned
from deepnets.analysis.commands.outcome import Outcome
from deepnets.analysis.commands.subject import one_batch
from deepnets.monitor.style import new_figure

DRAWS = 10  # paths of each length, over as many images, to find the effective lengths
WHAT = {"deleted": "units deleted", "surviving": "surviving paths", "effective": "surviving effective paths"}


def count_paths(nets: Sequence[Lesioned], rows: Sequence[tuple[Any, ...]], outcome: Outcome) -> None:
    """Correlate errors, of rows (run, deleted, error, loss), with units deleted, paths left and effective paths left.

    The lengths that carry 95 % of the gradient are measured on each whole net. All three numbers are functions of how
    many units are gone, so that their rank correlations agree but for the sign; the linear ones tell them apart.
    """
    if not nets:
        return
    figure = new_figure(3.2, 7.5)
    panels = dict(zip(("surviving", "effective"), figure.subplots(1, 2, sharey=True), strict=True))
    written: list[tuple[Any, ...]] = []
    for net in nets:
        lengths = _effective_lengths(net)
        deleted, error = (np.array([row[place] for row in rows if row[0] == net.name], dtype=float) for place in (1, 2))
        units = len(net.walk)
        found = {
            "deleted": deleted,
            "surviving": np.array([float(pathlengths.surviving_paths(units, int(k))) for k in deleted]),
            "effective": np.array([float(pathlengths.surviving_paths(units, int(k), lengths)) for k in deleted]),
        }
        for name, axes in panels.items():
            axes.scatter(found[name], error, s=12, color=net.color, alpha=0.7, linewidth=0, label=net.label)
        written += [(net.name, *values) for values in zip(*found.values(), error, strict=True)]
        if np.ptp(error) == 0:
            outcome.finding(f"{net.name}: the error is {error[0]:.2f}% whatever is deleted")
            continue
        ranks = {name: spearmanr(values, error).statistic for name, values in found.items()}
        linear = {name: pearsonr(values, error).statistic for name, values in found.items()}
        said = ", ".join(f"{WHAT[name]} {ranks[name]:.2f} (linear {linear[name]:.2f})" for name in found)
        outcome.finding(
            f"{net.name}: rank correlation of the error with {said}; effective are lengths {lengths[0]} to "
            f"{lengths[1]} of {units}",
            lengths=lengths,
            **{f"rank_{name}": value for name, value in ranks.items()},
            **{f"linear_{name}": value for name, value in linear.items()},
        )
    for name, axes in panels.items():
        axes.set(xlabel=WHAT[name], xscale="log")
        axes.set_ylim(bottom=0)
    panels["surviving"].set_ylabel("error (%)")
    figure.legend(*panels["surviving"].get_legend_handles_labels(), loc="outside upper left", fontsize=7)
    outcome.rows("paths", ("run", "deleted", "surviving_paths", "effective_paths", "error"), written)
    outcome.figure("paths", figure)


def _effective_lengths(net: Lesioned) -> tuple[int, int]:
    walk = net.walk
    x, labels = one_batch(net.subject, DRAWS, net.split)
    lengths = np.arange(len(walk) + 1)
    generator = torch.Generator().manual_seed(0)
    norms = paths.norms_by_length(walk, x, labels, lengths.tolist(), DRAWS, generator)
    return pathlengths.effective_lengths(pathlengths.path_share(len(walk), lengths) * norms.mean(1))
