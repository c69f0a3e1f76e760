"""Measure why depth works, on a trained run or a fresh network.

SUBJECT is a run folder, or the model and data options of `train`, which make a network as it is before
training; shattering without a subject and showcase build their own networks. Numbers (CSV), figures (PNG and SVG) and
TensorBoard images go into the run folder; the finding is printed.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module

from deepnets.analysis.commands.subject import add_subject
from deepnets.system.options import check_writable

ANALYSES = {
    name: import_module(f"deepnets.analysis.commands.{name}")
    for name in (
        *("lesion", "paths", "gates", "highway", "gradients", "precision", "propagation", "landscape", "curvature"),
        *("evaluate", "shattering", "transfer", "variability", "showcase"),
    )
}

# Every combination of the showcase's knobs is a network; the others read results, not networks.
OWN_SUBJECT = ("showcase", "transfer", "variability")


def main(words: Sequence[str] | None = None) -> int:
    """Do the analysis that the command line names, or `words`."""
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
