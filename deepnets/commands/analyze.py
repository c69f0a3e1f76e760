"""Measure why depth works, on a trained run or a fresh network.

SUBJECT is a run folder, or the model and data options of `train`, which make a network as it is before
training; shattering without a subject and showcase build their own networks. Numbers (CSV), figures (PNG and SVG) and
TensorBoard images go into the run folder; the finding is printed.
"""

import argparse
from collections.abc import Sequence

from deepnets.analysis.commands import (
    curvature,
    evaluate,
    gates,
    gradients,
    highway,
    landscape,
    lesion,
    paths,
    precision,
    propagation,
    shattering,
    transfer,
    variability,
)
from deepnets.analysis.commands.subject import add_subject
from deepnets.extra import showcase
from deepnets.system.files import check_writable

ANALYSES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        *(lesion, paths, gates, highway, gradients, precision, propagation, landscape, curvature),
        *(evaluate, shattering, transfer, variability, showcase),
    )
}

# These take no network: the showcase draws its own, the others read the results of runs.
OWN_SUBJECT = ("showcase", "transfer", "variability")


def main(words: Sequence[str] | None = None) -> int:
    """Do the analysis that `words` name, by default those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    for name, analysis in ANALYSES.items():
        summary = (analysis.__doc__ or "").partition("\n")[0]
        kind = kinds.add_parser(name, help=summary, description=summary)
        kind.set_defaults(run=analysis.run)
        if name not in OWN_SUBJECT:
            add_subject(kind, optional=name == "shattering")
        analysis.add_options(kind)
    arguments = parser.parse_args(words)
    if arguments.output:
        check_writable(arguments.output)
    arguments.run(arguments)
    return 0
