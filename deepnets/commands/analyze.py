"""Measure why depth works, on a trained run or a fresh network.

SUBJECT is a run folder, or the model and data options of `train`, which make a network as it is before
training; shattering without a subject and showcase build their own networks. Numbers (CSV), figures (PNG and SVG) and
TensorBoard images go into the run folder; the finding is printed.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from deepnets.errors import UserError
from deepnets.system.files import check_writable

COMMANDS = "deepnets.analysis.commands"
# A module is imported only when a command needs it: torch and the figures take three seconds.
ANALYSES = {
    name: f"{COMMANDS}.{name}"
    for name in (
        *("lesion", "paths", "gates", "highway", "gradients", "precision", "propagation", "landscape", "curvature"),
        *("evaluate", "shattering", "transfer", "variability"),
    )
} | {"showcase": "deepnets.extra.showcase"}

# These take no network: the showcase draws its own, the others read the results of runs.
OWN_SUBJECT = ("showcase", "transfer", "variability")


def main(words: Sequence[str] | None = None) -> int:
    """Do the analysis that `words` name, by default the words of the command line.

    Raises:
        UserError: there is no such analysis, or its results cannot be written.
    """
    words = sys.argv[1:] if words is None else words
    what = words[0] if words and not words[0].startswith("-") else None
    if what and what not in ANALYSES:
        raise UserError(f"analyze {what}: no such analysis; choose from {', '.join(ANALYSES)}")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    for name in [what] if what else ANALYSES:
        _add(kinds, name, import_module(ANALYSES[name]))
    arguments = parser.parse_args(words)
    if arguments.output:
        check_writable(arguments.output)
    arguments.run(arguments)
    return 0


def _add(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, analysis: ModuleType) -> None:
    """Add the options of an analysis."""
    summary = (analysis.__doc__ or "").partition("\n")[0]
    kind = kinds.add_parser(name, help=summary, description=summary)
    kind.set_defaults(run=analysis.run)
    if name not in OWN_SUBJECT:
        subject = import_module(f"{COMMANDS}.subject")
        subject.add_subject(kind, optional=name == "shattering")
    analysis.add_options(kind)
