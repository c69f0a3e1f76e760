"""A report: the tables of a sweep in the terminal, its page, its figures, and its exports."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from deepnets.config.project import program
from deepnets.errors import printable
from deepnets.results.columns import in_other_arithmetic
from deepnets.results.export import to_csv, to_latex, to_markdown
from deepnets.results.figures.choose import pictures_of
from deepnets.results.figures.picture import Picture
from deepnets.results.page import Section, write_report_page
from deepnets.results.provenance import command_sheet, difference_sheet, environment_sheet
from deepnets.results.read import read_runs
from deepnets.results.sheet import Sheet, print_sheet
from deepnets.results.sheets import claim_sheets, comparison_sheets, overview_sheet, result_sheets
from deepnets.results.table import Table, tables_of
from deepnets.results.writing import writing
from deepnets.runs.folder import RunFolder
from deepnets.system.files import make_own_folder
from deepnets.system.printing import as_text, console_for

EXPORTS = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
STANDARD_OUTPUT = Path("-")
MOST_COMPARISONS, MOST_ON_PAGE = 10, 300  # pairs of rows, the surest first; 200 rows have 19900


def report(
    paths: Sequence[Path],
    output: Path | None,
    exports: dict[str, Path],
    logarithmic: bool,
    own_sweeps: Path | None = None,
) -> int:
    """Print the tables of these folders; write report.html, the figures and `exports` (by kind). Returns 0.

    The page and the figures go to `output`, by default the folder `report` in the first of `paths`. Beside the folder
    of a sweep those are read that `precision=fp32` and `precision=bf16` name. `own_sweeps` are a project's sweep files.

    Raises:
        UserError: a folder has no runs, or a file cannot be written.
    """
    tables = tables_of(read_runs([*paths, *in_other_arithmetic(paths)]), own=own_sweeps)
    console = console_for(STANDARD_OUTPUT in exports.values())
    comparisons = [comparison_sheets(table) for table in tables]  # every pair of rows is tested but once
    for table, sheets in zip(tables, comparisons, strict=True):
        _print_table(console, table, sheets)
    for kind, file in exports.items():
        text = EXPORTS[kind](tables)
        if file == STANDARD_OUTPUT:
            sys.stdout.write(printable(text))
        else:
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(printable(text))
            console.print(as_text(f"{kind:<12} {RunFolder(file)}"), soft_wrap=True)
    folder = output or paths[0] / "report"
    if not output:
        make_own_folder(folder)
    pictures = pictures_of(tables, logarithmic)
    pairs = [sheet.cut(MOST_ON_PAGE) for sheets in comparisons for sheet in sheets]
    title = " and ".join(dict.fromkeys(table.name for table in tables))
    warnings = [f"{table.name}: {warning}" for table in tables for warning in table.warnings]
    write_report_page(folder / "report.html", title, _summary(tables), warnings, _sections(tables, pairs, pictures))
    console.print(as_text(f"page         {RunFolder(folder / 'report.html')}"), soft_wrap=True)
    console.print(as_text(f"figures      {len(pictures)} as PNG and SVG in {RunFolder(folder)}"), soft_wrap=True)
    return 0


def _print_table(console: Console, table: Table, comparisons: Sequence[Sheet]) -> None:
    for sheet in _results(table):
        print_sheet(console, sheet)
    for note in table.notes:
        console.print(as_text(note, style="dim"))
    for sheet in claim_sheets(table):
        print_sheet(console, sheet)
    for warning in table.warnings:
        console.print(as_text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    console.print()
    for sheet in comparisons:
        print_sheet(console, sheet, MOST_COMPARISONS)


def _results(table: Table) -> list[Sheet]:
    overview = overview_sheet(table)
    return [*([overview] if overview else []), *result_sheets(table)]


def _sections(tables: Sequence[Table], pairs: Sequence[Sheet], pictures: Sequence[Picture]) -> list[Section]:
    columns = [(table, index) for table in tables for index in range(len(table.columns))]
    runs = [run for table, index in columns for run in table.runs(index)]
    trials = [sheet for table in tables if table.trials for sheet in result_sheets(table.trials)]
    differences = [difference_sheet(table.runs(index), table.title(index)) for table, index in columns]
    return [
        *(Section(f"Results: {table.name}", _results(table), notes=table.notes) for table in tables),
        Section("Claims", [sheet for table in tables for sheet in claim_sheets(table)]),
        Section("Figures", pictures=pictures),
        Section("Trials", trials, folded=True),
        Section("Statistics", pairs, folded=True),
        Section("Settings that differ between rows", differences, folded=True),
        Section("Environment", [environment_sheet(runs)]),
        Section("Commands", [command_sheet(runs)], folded=True),
    ]


def _summary(tables: Sequence[Table]) -> list[str]:
    runs = [run for table in tables for column in table.columns for run in column.runs]
    states = Counter(run.state.name for run in runs)
    verdicts = Counter(cell.verdict for table in tables for cell in table.cells.values() if cell.verdict)
    counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
    judged = ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.most_common())
    lines = [f"{len(runs)} runs: {counted}." + (f" Against the published values: {judged}." if judged else "")]
    command = " ".join([program("report"), shlex.join(sys.argv[1:])])
    return [*lines, f"Written {datetime.now().astimezone():%Y-%m-%d %H:%M %Z} by {command}"]
