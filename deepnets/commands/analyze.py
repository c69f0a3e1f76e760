"""Measure why depth works, on a trained run or a fresh network.

SUBJECT is a run folder, or model and data options as for `train`; these build the network as it is before training.
Showcase, and shattering without a subject, build their own networks. Numbers (CSV), figures (PNG and SVG) and
TensorBoard images go into the run folder; the finding is printed.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from deepnets.command import Parser
from deepnets.errors import UserError, nearest
from deepnets.system.files import check_writable

COMMANDS = "deepnets.analysis.commands"
# Only the modules that a command needs are imported: torch and the figures take three seconds.
ANALYSES = {
    name: f"{COMMANDS}.{name}"
    for name in (
        *("lesion", "paths", "gates", "highway", "gradients", "precision", "propagation", "landscape", "curvature"),
        *("evaluate", "shattering", "transfer", "variability"),
    )
} | {"showcase": "deepnets.extra.showcase"}

# These take no SUBJECT: the showcase builds its own networks, the others read the results of runs.
OWN_SUBJECT = ("showcase", "transfer", "variability")


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out the analysis that `argv` (None: the command line) names; returns the exit code.

    Raises:
        UserError: there is no such analysis, or its results cannot be written.
    """
    argv = sys.argv[1:] if argv is None else argv
    chosen = argv[0] if argv and not argv[0].startswith("-") else None
    if chosen and chosen not in ANALYSES:
        listed = f"choose from {', '.join(ANALYSES)}{nearest(chosen, ANALYSES)}"
        raise UserError(f"analyze {chosen}: no such analysis; {listed}")
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    analyses = parser.add_subparsers(metavar="WHAT", required=True)
    for name in [chosen] if chosen else ANALYSES:
        _add(analyses, name, import_module(ANALYSES[name]))
    arguments = parser.parse_args(argv)
    chosen_parser = analyses.choices[argv[0]]
    arguments.changed = [
        name for name, value in vars(arguments).items() if name != "run" and value != chosen_parser.get_default(name)
    ]
    if arguments.output:
        check_writable(arguments.output)
    arguments.run(arguments)
    return 0


def _add(analyses: "argparse._SubParsersAction[Parser]", name: str, analysis: ModuleType) -> None:
    """Add the parser of an analysis, with its options."""
    summary = (analysis.__doc__ or "").partition("\n")[0]
    parser = analyses.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=analysis.run)
    if name not in OWN_SUBJECT:
        subject = import_module(f"{COMMANDS}.subject")
        subject.add_subject(parser, optional=name == "shattering")
    analysis.add_options(parser)
