"""Reports sweeps: tables in the terminal, a page, figures and exports; or compares two runs or sweeps."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from deepnets.config.project import program
from deepnets.errors import UserError, listed, printable
from deepnets.monitor.style import styled
from deepnets.results.cell import hours_of
from deepnets.results.claims import has_claims
from deepnets.results.claims_page import claim_answers, claim_sheets
from deepnets.results.columns import columns_of, frame_of, in_other_arithmetic, mixes_code, warnings_of
from deepnets.results.compare import (
    Pairs,
    compare_runs,
    errors_beside,
    pairs_of,
    settings_beside,
    tests_beside,
    texts_of,
)
from deepnets.results.export import to_csv, to_latex, to_markdown
from deepnets.results.figures.curves import MOST_PANELS, curves_beside
from deepnets.results.figures.points import pictures_of
from deepnets.results.page import Picture, Section, write_report_page
from deepnets.results.read import Run, example, read_runs
from deepnets.results.table import (
    Table,
    comparison_sheets,
    overview_sheet,
    result_sheets,
    tables_of,
)
from deepnets.runs.code import FOLDER, by_change, replaced_versions
from deepnets.runs.folder import RunFolder
from deepnets.system.files import make_own_folder, writing
from deepnets.system.printing import (
    NOTHING,
    Sheet,
    as_text,
    console_for,
    print_sheet,
    short_commit,
)

EXPORTS = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
STANDARD_OUTPUT = Path("-")
MOST_COMPARISONS, MOST_ON_PAGE = 10, 300  # pairs of rows shown, smallest p first; 200 rows have 19900 pairs
OWN_FLAGS = ("--project", "--config-dir", "-cd", "--config-name", "-cn", "--trust")  # of train; no overrides
CHOSEN = (
    "Both rows are of one folder: if you chose them by their results, see the test in the folder's report, which is "
    "corrected for all pairs of rows."
)
MOST_ANSWERS = 8  # lines about a column's claims, in the terminal
MOST_TITLES = 3  # columns named in the title of a page
MOST_KEYS = 40  # settings in a sheet; no reader can take in more


def report(
    paths: Sequence[Path],
    output: Path | None,
    exports: dict[str, Path],
    logarithmic: bool,
    project_sweeps: Path | None = None,
    full: bool = False,
) -> int:
    """Print the tables of these folders; write report.html, the figures and `exports` (by kind). Returns 0.

    The terminal shows the results and a line for each answer about a claim. With `full` it shows, instead of these
    lines, the rules and the sheets about claims and about differences between rows.

    The page and the figures go to `output`, by default the folder `report` in the first of `paths`. A sweep's folders
    for `precision=fp32` and `precision=bf16` are read too. `project_sweeps` is the folder of a project's sweep files.

    Raises:
        UserError: a folder has no runs, or a file cannot be written.
    """
    tables = tables_of(read_runs([*paths, *in_other_arithmetic(paths)]), project_sweeps=project_sweeps)
    console = console_for(STANDARD_OUTPUT in exports.values())
    comparisons = [comparison_sheets(table) for table in tables]  # made once, because testing every pair takes long
    changes: list[str] = []
    for table, sheets in zip(tables, comparisons, strict=True):
        _print_table(console, table, sheets, full)
        ended = [run.folder for column in table.columns for run in column.runs if run.has_ended and run.code]
        is_mixed = any(mixes_code(runs) for column in table.columns for runs in column.rows.values())
        changes += [f"{table.name}: {line}" for line in (*_of_earlier_code(ended, is_mixed), *_looked_at_before(table))]
    for line in changes:
        console.print(as_text(f"warning: {line}", style="yellow"), soft_wrap=True)
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
    pairs = [sheet.cut(MOST_ON_PAGE) for sheets in comparisons for sheet, _ in sheets]
    titles = [table.title(index) for table in tables for index in range(len(table.columns))]
    title = " and ".join(dict.fromkeys(titles if len(titles) <= MOST_TITLES else [table.name for table in tables]))
    warnings = [f"{table.name}: {warning}" for table in tables for warning in table.warnings] + changes
    answers = [line for sheets in comparisons for line in _lowest(sheets)]
    answers += [line.strip() for table in tables for line in claim_answers(table, MOST_ANSWERS)]
    sections = _sections(tables, pairs, pictures, answers)
    write_report_page(folder / "report.html", title, _summary(tables), warnings, sections)
    more = "" if full else "  (with settings and commands; --full prints rules, claims and statistics here too)"
    console.print(as_text(f"page         {RunFolder(folder / 'report.html')}{more}"), soft_wrap=True)
    console.print(as_text(f"figures      {len(pictures)} as PNG and SVG in {RunFolder(folder)}"), soft_wrap=True)
    return 0


def compare(first: Path, second: Path, output: Path | None, logarithmic: bool) -> int:
    """Print how A and B, two runs or two sweeps, differ in settings and results. Returns 0.

    For two runs it prints what `compare_runs` finds, on one screen. It writes compare.html with their curves only to
    `output`: neither A nor B is a place for it, because A may be somebody's record.

    Raises:
        UserError: a folder has no runs, or a file cannot be written, or `compare_runs` or `pairs_of` raises it.
    """
    two_runs = compare_runs(first, second)
    if logarithmic and not output:
        raise UserError("--log is for the curves; add --output DIR, the folder in which --compare draws them")
    sides = dict(zip("AB", (read_runs([first]), read_runs([second])), strict=True))
    pairs, warnings = pairs_of(*sides.values())
    warnings += [
        f"{letter}: {warning}"
        for letter, runs in sides.items()
        for column in columns_of(frame_of(runs))
        for warning in warnings_of(column)
    ]
    names = [f"A: {RunFolder(first)}", f"B: {RunFolder(second)}"]
    settings, results = settings_beside(pairs), [errors_beside(pairs), tests_beside(pairs)]
    printed, notes = [settings, *results], []
    every = [run for runs in sides.values() for run in runs]
    if len({run.grid for run in every}) == 1 and len({run.row for run in every}) == 2:
        notes = [CHOSEN]
    if two_runs:
        names, warnings, notes = list(two_runs.names), list(two_runs.warnings), [two_runs.sentence]
        settings, printed = two_runs.differences, [two_runs.differences]
    console = console_for()
    for line in (*names, *(f"warning: {warning}" for warning in warnings), ""):
        console.print(as_text(line), soft_wrap=True)
    for sheet in printed:
        print_sheet(console, sheet)
    for note in notes:
        console.print(as_text(note))
    if not output:
        return 0
    file = output / "compare.html"
    environments = [replace(environment_sheet(runs), title=f"Environment of {side}") for side, runs in sides.items()]
    sections = [
        Section("Differences", [settings], notes=notes),
        Section("Results", results),
        Section("Curves", pictures=_curves_beside(pairs, logarithmic)),
        Section("Environment", environments),
    ]
    write_report_page(file, "A beside B", names, warnings, sections)
    console.print(as_text(f"page         {RunFolder(file)}"), soft_wrap=True)
    return 0


def difference_sheet(runs: Sequence[Run], title: str) -> Sheet:
    """Show the settings that differ between rows, a line for each row; a cell has several values if seeds differ."""
    rows = frame_of([run for run in runs if run.config]).groupby("row", sort=False)["run"]
    values = {row: texts_of([run.settings for run in same]) for row, same in rows}
    keys = dict.fromkeys(key for settings in values.values() for key in settings)
    differing = [key for key in keys if len({settings.get(key, NOTHING) for settings in values.values()}) > 1]
    lines = [(row, *(values[row].get(key, NOTHING) for key in differing[:MOST_KEYS])) for row in values]
    more = len(differing) - MOST_KEYS
    return Sheet(title, ("row", *differing[:MOST_KEYS]), tuple(lines), note=f"{more} more keys differ." * (more > 0))


def environment_sheet(runs: Sequence[Run]) -> Sheet:
    """Show the devices and versions that trained the ended runs, with the number of runs and their hours."""
    header = ("device", "precision", "threads", "torch", "Python", "commit", "runs", "hours")
    ended = [run.result for run in runs if "device" in run.result]
    keys = [_environment(result) for result in ended]
    hours = {key: sum(hours_of(r) for r, k in zip(ended, keys, strict=True) if k == key) for key in keys}
    lines = [(*key, str(count), f"{hours[key]:.3g}") for key, count in Counter(keys).most_common()]
    return Sheet("Environment", header, tuple(lines))


def _own_flags(command: str) -> list[str]:
    """Return the options of a typed command that say where the user's own files are, as --project FILE."""
    try:
        words = shlex.split(command)
    except ValueError:  # a record of another hand
        return []
    pairs = zip(words, [*words[1:], ""], strict=True)
    flags = [[word] if "=" in word else [word, value] for word, value in pairs if word.partition("=")[0] in OWN_FLAGS]
    return [word for flag in flags for word in flag]


def _kept_words(run: Run) -> list[str]:
    """Return the words that chose the run, without one that would delete it."""
    return [word for word in run.origin["overrides"] if not word.lstrip("+").startswith("overwrite=")]


def command_sheet(runs: Sequence[Run]) -> Sheet:
    """Show the command that trains only the first run of each row; the note has the commands as they were typed."""
    rows: dict[str, Run] = {}
    typed: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.origin.keys() >= {"command", "overrides"}:
            rows.setdefault(run.row, run)
            typed.setdefault(run.origin["command"], {})[run.row] = None
    lines = [
        (row, " ".join([program("train"), shlex.join([*_own_flags(run.origin["command"]), *_kept_words(run)])]))
        for row, run in rows.items()
    ]
    notes = [
        f"Typed for {'all rows' if len(of) == len(rows) else ', '.join(of)}: {command}" for command, of in typed.items()
    ]
    return Sheet("Commands", ("row", "its first run alone"), tuple(lines), note="\n".join(notes))


def _print_table(console: Console, table: Table, comparisons: Sequence[tuple[Sheet, str]], full: bool) -> None:
    """Print the results and the answers about claims; with `full`, print rules and sheets instead of answers."""
    for sheet in _results(table):
        print_sheet(console, sheet)
    for line in [*_lowest(comparisons), *([] if full else claim_answers(table, MOST_ANSWERS))]:
        console.print(as_text(line), soft_wrap=True)
    if full:
        for note in table.notes:
            console.print(as_text(note, style="dim"))
        for sheet in claim_sheets(table):
            print_sheet(console, sheet)
    for warning in table.warnings:
        console.print(as_text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    console.print()
    for sheet, _ in comparisons if full else ():
        elsewhere = "on the page" if len(sheet.lines) <= MOST_ON_PAGE else "not shown here"
        print_sheet(console, sheet.cut(MOST_COMPARISONS, elsewhere))


def _lowest(comparisons: Sequence[tuple[Sheet, str]]) -> list[str]:
    return [line for _, line in comparisons if line]


def _results(table: Table) -> list[Sheet]:
    overview = overview_sheet(table)
    return [*([overview] if overview else []), *result_sheets(table)]


def _of_earlier_code(ended: Sequence[RunFolder], is_mixed: bool) -> Iterator[str]:
    """Yield a line for the runs after which the same files of the user's code have changed."""
    still = "" if is_mixed else " (no row mixes versions)"
    for files, runs in by_change(ended).items():
        results, rows = f"{len(runs)} result{'s' * (len(runs) > 1)}", listed(run.path.parent.name for run in runs)
        yield f"your code ({files}) has changed since it trained {results} of this table; rows {rows}{still}"


def _looked_at_before(table: Table) -> Iterator[str]:
    """Yield a line if results of these rows by other code of the user's may have been seen, but are not shown."""
    runs = [run for column in table.columns for run in column.runs]
    for grid in dict.fromkeys(run.grid for run in runs) if has_claims(table, table.sweeps) else ():
        here = {run.experiment for run in runs if run.grid == grid}
        elsewhere = [run for run in runs if run.grid != grid and run.experiment in here]
        shown = set[str]().union(*(run.folder.code_hashes for run in elsewhere))
        if versions := [version for version in replaced_versions(grid) if version not in shown]:
            yield (
                f"other code of yours ({listed(versions)} in {RunFolder(grid / FOLDER)}) has no result here any more. "
                "If you saw its results, claims about its rows have been looked at before"
            )


def _sections(
    tables: Sequence[Table], pairs: Sequence[Sheet], pictures: Sequence[Picture], answers: Sequence[str]
) -> list[Section]:
    columns = [(table, index) for table in tables for index in range(len(table.columns))]
    runs = [run for table, index in columns for run in table.runs(index)]
    trials = [sheet for table in tables if table.trials for sheet in result_sheets(table.trials)]
    differences = [difference_sheet(table.runs(index), table.title(index)) for table, index in columns]
    claims = [sheet for table in tables for sheet in claim_sheets(table)]
    rules = dict.fromkeys(
        [*(note for t in tables for note in t.notes), *(sheet.note for sheet in claims if sheet.lines)]
    )
    first = [] if all(table.trials for table in tables) else list(pictures[:1])
    return [
        *([Section("Answer", pictures=first, notes=answers)] if first else []),
        *(Section(f"Results: {table.name}", _results(table)) for table in tables),
        Section("Claims", [replace(sheet, note="") if sheet.lines else sheet for sheet in claims]),
        Section("Figures", pictures=pictures[len(first) :]),
        Section("Trials", trials, folded=True),
        Section("Statistics", pairs, folded=True),
        Section("Settings that differ between rows", differences, folded=True),
        Section("Environment", [environment_sheet(runs)]),
        Section("Commands", [command_sheet(runs)], folded=True),
        Section("Rules", notes=list(rules)),
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


def _curves_beside(pairs: Pairs, logarithmic: bool) -> list[Picture]:
    examples = {row: (example(a_runs), example(b_runs)) for row, (a_runs, b_runs) in pairs.items()}
    drawn = {row: both for row, both in examples.items() if any(run.history for run in both)}
    if not drawn:
        return []
    caption = "Error of each row's run of median result (of two the worse), of A and of B"
    if len(drawn) > MOST_PANELS:
        caption += f"; the first {MOST_PANELS} of {len(drawn)} rows"
    with styled():
        return [Picture("compare", caption, curves_beside(drawn, logarithmic))]


def _environment(result: dict[str, Any]) -> tuple[str, ...]:
    names = (result.get(name, NOTHING) for name in ("device", "precision", "threads"))
    torch, python = result.get("versions", {}).get("torch", NOTHING), result.get("python", NOTHING)
    return (*map(str, names), torch, python, short_commit(result.get("commit")))
