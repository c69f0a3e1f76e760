"""What `scripts/report.py` is asked for."""

import argparse
from pathlib import Path

from deepnets.config.project import read_project
from deepnets.errors import UserError
from deepnets.results.compare import compare
from deepnets.results.keep import keep
from deepnets.results.records import write_records
from deepnets.results.report import EXPORTS, report
from deepnets.results.screenshots import take_screenshots
from deepnets.results.trackers import export
from deepnets.results.verify import verify
from deepnets.runs.watch import show

# Requests that take none of a report's options.
NO_REPORT = ("status", "watch", "keep", "records", "screenshots", "verify", "export")


def answer(given: argparse.Namespace) -> int:
    """Do what these options of the command line ask for; returns the exit code.

    Raises:
        UserError: options that do not go together, or what the request raises.
    """
    exports = {kind: file for kind in EXPORTS if (file := getattr(given, kind))}
    requests = [name for name in (*NO_REPORT, "compare") if getattr(given, name)]
    if "watch" in requests and {*requests} - {"watch", "status"}:
        raise UserError(f"--watch shows what runs are doing; it does not go with --{requests[-1]}")
    if given.compare:
        if given.folders:
            raise UserError("--compare takes two folders, A and B, and no others")
        if exports:
            raise UserError(
                f"--compare writes a page; it does not go with {', '.join(f'--{kind}' for kind in exports)}"
            )
        first, second = given.compare
        return compare(first, second, given.output, given.log)
    if not given.folders:
        raise UserError("name the folder of a sweep, as in outputs/<sweep>; --help lists all options")
    if requests and (exports or given.output or given.log):
        raise UserError(f"--{requests[0]} makes no report: drop --output, --log and exports")
    if given.status or given.watch:
        return show(given.folders, given.watch)
    if given.keep:
        return keep(given.folders, given.keep)
    if given.records:
        return write_records(_only(given.folders, "--records"))
    if given.verify:
        return verify(given.folders, given.verify)
    if given.export:
        return export(given.folders, given.export)
    if given.screenshots:
        return take_screenshots(_only(given.folders, "--screenshots"), given.screenshots)
    options = read_project(given.project).options if given.project else given.config_dir
    return report(given.folders, given.output, exports, given.log, options and Path(options) / "sweep")


def _only(folders: list[Path], option: str) -> Path:
    if len(folders) > 1:
        raise UserError(f"{option} takes one folder, not {len(folders)}")
    return folders[0]
