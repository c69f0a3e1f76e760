"""Show the results of run folders beside the paper's, as a table, statistics, figures and a page."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from deepnets.command import Parser, filled
from deepnets.config.project import program, read_project
from deepnets.config.trust import choose_code, trust
from deepnets.errors import UserError
from deepnets.system.files import check_folder

EXAMPLES = """examples:
  COMMAND outputs/he2016_table1                            the table, its page and its figures
  COMMAND outputs/he2016_table1 outputs/he2016_table1+scale=mini   with two columns
  COMMAND outputs/he2016_table1 --markdown -               only the table, as Markdown
  COMMAND outputs/he2016_table1 --watch                    the states of its runs
  COMMAND outputs/he2016_table1 --keep outputs/records     copy its small files, to commit them
  COMMAND outputs/records --records                        write README.md of a folder of records
  COMMAND outputs/records/he2016_table1+scale=deep --verify data   do they still train the same way?
  COMMAND outputs/records/digits_shortcuts --verify data --whole --scratch again   train them again to their end
  COMMAND outputs/he2016_table1 --export mlflow            send its runs to the server at MLFLOW_TRACKING_URI
  COMMAND --compare RECORD MINE                            why my result differs from a record
""".replace("COMMAND", program("report"))
EXPORTS = ("csv", "latex", "markdown")
# Options that ask for something other than a report, so that a report's options do not go with them.
NO_REPORT = ("status", "watch", "keep", "records", "screenshots", "verify", "export")


def main() -> int:
    """Report as the command line asks; returns the exit code."""
    parser = Parser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="*", type=Path, help="folders of sweeps, finished or running, or of single runs"
    )
    request = parser.add_mutually_exclusive_group()
    request.add_argument("--status", action="store_true", help="show the state of each run")
    parser.add_argument("--watch", action="store_true", help="show the states and refresh them until no run can go on")
    parser.add_argument("--json", action="store_true", help="with --status: print JSON, for programs")
    request.add_argument("--keep", type=Path, metavar="DIR", help="copy small files of ended runs to DIR, as records")
    request.add_argument("--records", action="store_true", help="write FOLDER/README.md from the records in FOLDER")
    request.add_argument(
        "--verify",
        type=filled,
        metavar="DATA",
        help="train the first iterations of records again, on the data in DATA, and compare",
    )
    parser.add_argument("--note", action="store_true", help="with --verify: add each verdict to verifications.json")
    parser.add_argument("--whole", action="store_true", help="with --verify: train the records to their end")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="with --whole: train in DIR, so that it can resume")
    for name, metavar, what in (
        ("--trust", "NAME", "your own class or module, or its file"),
        ("--weights", "RUN_OR_FILE", "weights that records started from"),
    ):
        of_verify = f"with --verify, also several times: {what}"
        parser.add_argument(name, action="append", default=[], metavar=metavar, help=of_verify)
    parser.add_argument("--code", metavar="frozen|current", help="with --verify: if your code has changed, which")
    request.add_argument("--export", choices=("mlflow", "wandb"), help="send ended runs to a tracker, each once")
    request.add_argument(
        "--compare", nargs=2, type=Path, metavar=("RECORD", "MINE"), help="list differences; can seeds explain them?"
    )
    request.add_argument("--screenshots", type=Path, metavar="DIR", help="save TensorBoard and the page as PNG")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="the folder for page and figures (FOLDER/report; with --compare, none)",
    )
    places = parser.add_mutually_exclusive_group()
    places.add_argument(
        "--project", type=filled, metavar="FILE", help="your project, for its published numbers and claims"
    )
    places.add_argument("--config-dir", type=Path, metavar="DIR", help="your folder of options, as for train")
    parser.add_argument("--full", action="store_true", help="also print the statistics and the rules")
    parser.add_argument("--log", action="store_true", help="draw the curves' errors on a logarithmic scale")
    for kind in EXPORTS:
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write the table as {kind} (- prints it)")
    given = parser.parse_args()
    exports = {kind: file for kind in EXPORTS if (file := getattr(given, kind))}
    _check(given, exports)
    return _answer(given, exports)


def _check(given: argparse.Namespace, exports: dict[str, Path]) -> None:
    """Raise a UserError if options do not go together or a folder is missing."""
    requests = [name for name in (*NO_REPORT, "compare") if getattr(given, name)]
    if "watch" in requests and {*requests} - {"watch", "status"}:
        raise UserError(f"--watch shows what runs are doing; it does not go with --{requests[-1]}")
    pairs = dict.fromkeys(("note", "whole", "trust", "weights", "code"), "verify") | {"scratch": "whole"}
    for name, other in pairs.items():
        if getattr(given, name) and not getattr(given, other):
            raise UserError(f"--{name} goes with --{other} only; --help has examples")
    if given.json and (not given.status or given.watch):
        raise UserError("--json prints states for programs: give it with --status, and without --watch")
    if given.compare:
        if given.folders:
            raise UserError("--compare takes two folders, RECORD and MINE, and no others")
        if exports:
            raise UserError(
                f"--compare writes a page; it does not go with {', '.join(f'--{kind}' for kind in exports)}"
            )
        if given.full:
            raise UserError("--compare does not use --full: drop it")
        return
    if not given.folders:
        raise UserError("name the folder of a sweep, as in outputs/<sweep>; --help lists all options")
    if requests and (exports or given.output or given.log):
        raise UserError(f"--{requests[0]} makes no report: drop --output, --log, --csv, --latex and --markdown")
    for name in ("records", "screenshots"):
        if getattr(given, name) and len(given.folders) > 1:
            raise UserError(f"--{name} takes one folder, not {len(given.folders)}")
    if given.config_dir and not given.config_dir.is_dir():
        raise UserError(f"--config-dir {given.config_dir}: no such folder")
    if not given.records:
        for folder in given.folders:
            check_folder(folder)


def _answer(given: argparse.Namespace, exports: dict[str, Path]) -> int:
    """Carry out the request; returns the exit code."""
    # Imported here, because torch and pandas take seconds: --help and errors about folders come without this wait.
    if given.json or given.status or given.watch:  # these need neither statistics nor figures
        from deepnets.commands.clean import disk_line
        from deepnets.runs.status import show, show_json

        if given.json:
            return show_json(given.folders)
        code = show(given.folders, given.watch)
        if not given.watch:
            print(disk_line(given.folders))
        return code
    from deepnets.extra.screenshots import take_screenshots
    from deepnets.extra.trackers import export
    from deepnets.results.records import keep, write_records
    from deepnets.results.report import compare, report
    from deepnets.results.verify import verify

    if given.compare:
        first, second = given.compare
        return compare(first, second, given.output, given.log)
    if given.keep:
        return keep(given.folders, given.keep)
    options = read_project(given.project).options if given.project else given.config_dir
    project_sweeps = options and options / "sweep"
    if given.records:
        return write_records(given.folders[0], project_sweeps)
    trust([*given.trust, *filter(None, [given.project])])
    if given.verify:
        choose_code(given.code)
        with TemporaryDirectory() as scratch:
            whole = (given.scratch or Path(scratch)) if given.whole else None
            return verify(given.folders, given.verify, given.note, whole, [*map(Path, given.weights)])
    if given.export:
        return export(given.folders, given.export)
    if given.screenshots:
        return take_screenshots(given.folders[0], given.screenshots)
    return report(given.folders, given.output, exports, given.log, project_sweeps, given.full)
