"""Ours beside the paper's: tables, statistics, figures and a page from run folders; `--help` lists the options."""

import argparse
from pathlib import Path

from deepnets.command import run_command
from deepnets.errors import UserError
from deepnets.results.compare import compare
from deepnets.results.keep import keep
from deepnets.results.report import EXPORTS, report
from deepnets.runs.watch import show

EXAMPLES = """examples:
  python scripts/report.py outputs/he2016_table1                            the table, its page and its figures
  python scripts/report.py outputs/he2016_table1 outputs/he2016_table1+scale=mini   with two columns of ours
  python scripts/report.py outputs/he2016_table1 --markdown -               only the table, as Markdown
  python scripts/report.py outputs/he2016_table1 --watch                    what its rows are doing
  python scripts/report.py outputs/he2016_table1 --keep outputs/records     its small files, to commit
  python scripts/report.py --compare outputs/runs/A outputs/runs/B          what differs between two runs or sweeps
"""


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, help="tables' folders, finished or running; also single runs'")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show what every row is doing")
    parser.add_argument("--watch", action="store_true", help="go on showing it until Ctrl-C")
    what.add_argument("--keep", type=Path, metavar="DIR", help="copy the small files of ended runs there, as records")
    what.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two runs, rows or sweeps side by side")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where page and figures go (FOLDER/report)")
    parser.add_argument("--log", action="store_true", help="errors of curves on a logarithmic scale")
    for kind in EXPORTS:
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write the table as {kind} (- prints it)")
    given = parser.parse_args()
    if given.compare:
        if given.watch:
            raise UserError("--watch shows what rows are doing; it does not go with --compare")
        if given.folders:
            raise UserError("--compare takes two folders, A and B, and no others")
        if any(getattr(given, kind) for kind in EXPORTS):
            raise UserError(
                f"--compare writes a page; it does not go with {', '.join(f'--{kind}' for kind in EXPORTS)}"
            )
        return compare(*given.compare, given.output, given.log)
    if not given.folders:
        raise UserError("give the folder of a table, as in outputs/<sweep>; --help lists all options")
    exports = {kind: file for kind in EXPORTS if (file := getattr(given, kind))}
    if (given.status or given.watch or given.keep) and (exports or given.output or given.log):
        raise UserError("--status, --watch and --keep make no report: leave --output, --log and exports away")
    if given.keep and given.watch:
        raise UserError("--keep copies what has ended; it does not go with --watch")
    if given.status or given.watch:
        return show(given.folders, given.watch)
    if given.keep:
        return keep(given.folders, given.keep)
    return report(given.folders, given.output, exports, given.log)


if __name__ == "__main__":
    run_command(main)
