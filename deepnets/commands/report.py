"""Show results beside the paper's: tables, statistics, figures and a page of run folders; `--help` lists options."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from deepnets.config.project import program, read_project
from deepnets.errors import UserError
from deepnets.system.files import check_folder

EXAMPLES = """examples:
  COMMAND outputs/he2016_table1                            the table, its page and its figures
  COMMAND outputs/he2016_table1 outputs/he2016_table1+scale=mini   with two columns
  COMMAND outputs/he2016_table1 --markdown -               only the table, as Markdown
  COMMAND outputs/he2016_table1 --watch                    what its runs are doing
  COMMAND outputs/he2016_table1 --keep outputs/records     its small files, to commit
  COMMAND outputs/records --records                        README.md of a folder of records
  COMMAND outputs/records/he2016_table1+scale=deep --verify data   do these configurations still train so?
  COMMAND outputs/records/digits_shortcuts --verify data --whole --scratch again   to the end, resumable
  COMMAND outputs/he2016_table1 --export mlflow            its runs, to the server at MLFLOW_TRACKING_URI
  COMMAND --compare RECORD MINE                            why my run got something else than a record
""".replace("COMMAND", program("report"))
EXPORTS = ("csv", "latex", "markdown")
# Requests that take none of a report's options.
NO_REPORT = ("status", "watch", "keep", "records", "screenshots", "verify", "export")


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, help="folders of sweeps, finished or running, or of single runs"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show what each run is doing")
    parser.add_argument("--watch", action="store_true", help="refresh it until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="with --status: as JSON, for programs")
    what.add_argument("--keep", type=Path, metavar="DIR", help="copy the small files of ended runs to DIR, as records")
    what.add_argument("--records", action="store_true", help="write FOLDER/README.md from the records in FOLDER")
    what.add_argument(
        "--verify", metavar="DATA", help="train the first iterations of records again, on the data in DATA, and compare"
    )
    parser.add_argument("--note", action="store_true", help="add each verdict to verifications.json beside the record")
    parser.add_argument("--whole", action="store_true", help="train the records to their end, and compare that")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where --whole trains, to go on later")
    what.add_argument("--export", choices=("mlflow", "wandb"), help="add ended runs to a tracker, each once")
    what.add_argument(
        "--compare", nargs=2, type=Path, metavar=("RECORD", "MINE"), help="what differs, and whether seeds explain it"
    )
    what.add_argument("--screenshots", type=Path, metavar="DIR", help="TensorBoard's pages and the report's as PNG")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where page and figures go (FOLDER/report)")
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--project", metavar="FILE", help="your project, whose sweeps have published numbers and claims")
    own.add_argument("--config-dir", type=Path, metavar="DIR", help="your folder of options, as for train")
    parser.add_argument("--full", action="store_true", help="print all sheets and rules of the page, too")
    parser.add_argument("--log", action="store_true", help="errors of curves on a logarithmic scale")
    for kind in EXPORTS:
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write the table as {kind} (- prints it)")
    given = parser.parse_args()
    exports = {kind: file for kind in EXPORTS if (file := getattr(given, kind))}
    _check(given, exports)
    return _answer(given, exports)


def _check(given: argparse.Namespace, exports: dict[str, Path]) -> None:
    """Raise a UserError for options that do not go together, and for missing folders."""
    requests = [name for name in (*NO_REPORT, "compare") if getattr(given, name)]
    if "watch" in requests and {*requests} - {"watch", "status"}:
        raise UserError(f"--watch shows what runs are doing; it does not go with --{requests[-1]}")
    for name, other in (("note", "verify"), ("whole", "verify"), ("scratch", "whole")):
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
        if unused := [name for name in ("full", "project", "config_dir") if getattr(given, name)]:
            raise UserError(f"--compare reads no sweep files: drop --{unused[0].replace('_', '-')}")
        return
    if not given.folders:
        raise UserError("name the folder of a sweep, as in outputs/<sweep>; --help lists all options")
    if requests and (exports or given.output or given.log):
        raise UserError(f"--{requests[0]} makes no report: drop --output, --log and exports")
    for name in ("records", "screenshots"):
        if getattr(given, name) and len(given.folders) > 1:
            raise UserError(f"--{name} takes one folder, not {len(given.folders)}")
    if given.config_dir and not given.config_dir.is_dir():
        raise UserError(f"--config-dir {given.config_dir}: no such folder")
    if not given.records:
        for folder in given.folders:
            check_folder(folder)


def _answer(given: argparse.Namespace, exports: dict[str, Path]) -> int:
    """Do what is asked for; returns the exit code."""
    # Here, because they import torch and pandas, for which --help and a missing folder need not wait.
    if given.json or given.status or given.watch:  # these need neither statistics nor figures
        from deepnets.runs.clean import disk_line
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
    own = options and options / "sweep"
    if given.records:
        return write_records(given.folders[0], own)
    if given.verify:
        with TemporaryDirectory() as scratch:
            whole = (given.scratch or Path(scratch)) if given.whole else None
            return verify(given.folders, given.verify, given.note, whole)
    if given.export:
        return export(given.folders, given.export)
    if given.screenshots:
        return take_screenshots(given.folders[0], given.screenshots)
    return report(given.folders, given.output, exports, given.log, own, given.full)
