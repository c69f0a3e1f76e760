"""Two runs, or two sweeps row by row, side by side."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from deepnets.monitor.style import styled
from deepnets.results.cell import middle
from deepnets.results.columns import Column, columns_of, warnings_of
from deepnets.results.figures.curves import MOST_PANELS, curves_beside
from deepnets.results.figures.picture import Picture
from deepnets.results.page import Section, write_report_page
from deepnets.results.provenance import environment_sheet, texts
from deepnets.results.read import Run, example, read_runs
from deepnets.results.sheet import NOTHING, Sheet, percent, print_sheet, signed
from deepnets.results.sheets import comparison_sheet, errors_of
from deepnets.results.statistics import compare_pairs
from deepnets.runs.folder import RunFolder
from deepnets.system.printing import as_text, console_for

Pairs = dict[str, tuple[list[Run], list[Run]]]


def compare(first: Path, second: Path, output: Path | None, logarithmic: bool) -> int:
    """Print what differs between A and B, two runs or two sweeps, in settings and results, and draw their curves.

    Writes compare.html and the figure to `output`, by default the folder `report` in A. Returns 0.

    Raises:
        UserError: a folder has no runs, or a file cannot be written.
    """
    sides = dict(zip("AB", (read_runs([first]), read_runs([second])), strict=True))
    pairs, warnings = _pairs(*sides.values())
    warnings += [
        f"{letter}: {warning}"
        for letter, runs in sides.items()
        for column in columns_of(runs)
        for warning in warnings_of(column)
    ]
    names = [f"A: {RunFolder(first)}", f"B: {RunFolder(second)}"]
    settings, results = _settings(pairs), [_results(pairs), _tests(pairs)]
    console = console_for()
    for line in (*names, *(f"warning: {warning}" for warning in warnings), ""):
        console.print(as_text(line), soft_wrap=True)
    for sheet in (settings, *results):
        print_sheet(console, sheet)
    file = (output or first / "report") / "compare.html"
    environments = [replace(environment_sheet(runs), title=f"Environment of {side}") for side, runs in sides.items()]
    sections = [
        Section("What differs", [settings]),
        Section("Results", results),
        Section("Curves", pictures=_pictures(pairs, logarithmic)),
        Section("Environment", environments),
    ]
    write_report_page(file, "A beside B", names, warnings, sections)
    console.print(as_text(f"page         {RunFolder(file)}"), soft_wrap=True)
    return 0


def _pairs(first: Sequence[Run], second: Sequence[Run]) -> tuple[Pairs, list[str]]:
    """Rows of one name and protocol on both sides; where each side has but one row, these two. And what is unpaired.

    Several protocols of a side are separate as the columns of a table are: each is beside that of the same label on
    the other side, or all beside its only one.
    """
    a_columns, b_columns = columns_of(first), columns_of(second)
    if len(a_columns) == len(b_columns) == len(a_columns[0].rows) == len(b_columns[0].rows) == 1:
        (row, runs), (other, others) = *a_columns[0].rows.items(), *b_columns[0].rows.items()
        return {row if row == other else f"{row} | {other}": (runs, others)}, []
    a_is_one, b_is_one = len(a_columns) == 1, len(b_columns) == 1
    pairs: Pairs = {}
    for a in a_columns:
        for b in b_columns:
            if a_is_one or b_is_one or a.label == b.label:
                label = "" if a_is_one and b_is_one else f" ({a.label if b_is_one else b.label})"
                pairs |= {f"{row}{label}": (a.rows[row], b.rows[row]) for row in a.rows if row in b.rows}
    paired = {id(run) for both in pairs.values() for runs in both for run in runs}
    alone = {side: _alone(columns, paired) for side, columns in (("A", a_columns), ("B", b_columns))}
    return pairs, [f"only in {side}: {', '.join(rows)}" for side, rows in alone.items() if rows]


def _alone(columns: Sequence[Column], paired: Collection[int]) -> list[str]:
    return [
        f"{row} ({column.label})" if len(columns) > 1 else row
        for column in columns
        for row, runs in column.rows.items()
        if id(runs[0]) not in paired
    ]


def _settings(pairs: Pairs) -> Sheet:
    """A line for each setting and fact that differs; rows that differ alike share it."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row, (a_runs, b_runs) in pairs.items():
        a, b = _values(a_runs), _values(b_runs)
        for key in {**a, **b}:
            if a.get(key, NOTHING) != b.get(key, NOTHING):
                found[key, a.get(key, NOTHING), b.get(key, NOTHING)].append(row)
    lines = [
        (key, one, other, "all" if len(rows) == len(pairs) else ", ".join(rows))
        for (key, one, other), rows in found.items()
    ]
    note = "" if lines else "No setting differs." if pairs else "No row is in both: nothing to compare."
    return Sheet("Settings and environment", ("setting", "A", "B", "rows"), tuple(lines), note=note)


def _values(runs: Sequence[Run]) -> dict[str, str]:
    """The settings of a row, its seeds, and on what it was trained; several values where its runs differ."""
    each = []
    for run in runs:
        facts = {name: run.result.get(name) for name in ("device", "precision", "threads", "commit")}
        facts["torch"] = run.result.get("versions", {}).get("torch")
        known = {f"trained: {name}": value for name, value in facts.items() if value is not None}
        each.append({**run.settings, "seed": run.seed, **known})
    return texts(each)


def _results(pairs: Pairs) -> Sheet:
    header = ("row", "n A", "median A", "n B", "median B", "A minus B", "state A", "state B")
    lines = []
    for row, both in pairs.items():
        errors = [[run.error for run in runs if run.error is not None] for runs in both]
        a, b = map(middle, errors)
        difference = signed(a - b) if a is not None and b is not None and math.isfinite(a - b) else NOTHING
        states = [", ".join(dict.fromkeys(run.state.name for run in runs)) for runs in both]
        lines.append((row, str(len(errors[0])), percent(a), str(len(errors[1])), percent(b), difference, *states))
    return Sheet("Final test errors in percent", header, tuple(lines), frozenset(header[1:6]))


def _tests(pairs: Pairs) -> Sheet:
    tested = []
    for row, both in pairs.items():
        rows = [runs[0].row for runs in both]
        names = [row, row] if len(set(rows)) == 1 else rows  # rows of two names beside each other have their own
        a, b = (errors_of(f"{name}, {side}", runs) for name, side, runs in zip(names, "AB", both, strict=True))
        tested.append((a, b))
    return comparison_sheet("Do A and B differ?", compare_pairs(tested))


def _pictures(pairs: Pairs, logarithmic: bool) -> list[Picture]:
    examples = {row: (example(a_runs), example(b_runs)) for row, (a_runs, b_runs) in pairs.items()}
    drawn = {row: both for row, both in examples.items() if any(run.history for run in both)}
    if not drawn:
        return []
    caption = "Error of each row's run of median result (of two the worse), of A and of B"
    if len(drawn) > MOST_PANELS:
        caption += f"; the first {MOST_PANELS} of {len(drawn)} rows"
    with styled():
        return [Picture("compare", caption, curves_beside(drawn, logarithmic))]
