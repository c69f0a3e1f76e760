"""Two runs, or two sweeps row by row, side by side."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deepnets.folder import RunFolder
from deepnets.results.cell import middle
from deepnets.results.columns import columns_of, warnings_of
from deepnets.results.curves import MOST_PANELS, curves_beside
from deepnets.results.drawing import Picture, styled
from deepnets.results.figures import example
from deepnets.results.outcome import comparison_sheet
from deepnets.results.page import Section, write_page
from deepnets.results.provenance import environment_sheet
from deepnets.results.read import Run, read_runs
from deepnets.results.sheet import NOTHING, Sheet, percent, setting_text, signed
from deepnets.results.statistics import Errors, compare_pairs
from deepnets.results.terminal import console_for, print_sheet
from deepnets.results.writing import writing

Pairs = dict[str, tuple[list[Run], list[Run]]]


def compare(first: Path, second: Path, output: Path | None, logarithmic: bool) -> int:
    """Print what differs between A and B, two runs or two sweeps, in settings and results, and draw their curves.

    Writes compare.html and the figure to `output`, by default the folder `report` in A. Returns 0.

    Raises:
        UserError: a folder has no runs, or a file cannot be written.
    """
    sides = read_runs([first]), read_runs([second])
    pairs, warnings = _pairs(*sides)
    warnings += [
        f"{letter}: {mixture}" for letter, side in zip("AB", sides, strict=True) for mixture in _mixtures(side)
    ]
    names = [f"{letter}: {RunFolder(path)}" for letter, path in zip("AB", (first, second), strict=True)]
    settings, results = _settings(pairs), [_results(pairs), _tests(pairs)]
    console = console_for()
    for line in (*names, *(f"mind: {warning}" for warning in warnings), ""):
        console.print(line, soft_wrap=True, markup=False)
    for sheet in (settings, *results):
        print_sheet(console, sheet)
    folder = output or first / "report"
    pictures = _pictures(pairs, logarithmic)
    environments = [
        replace(environment_sheet(side), title=f"Environment of {letter}")
        for letter, side in zip("AB", sides, strict=True)
    ]
    sections = [
        Section("What differs", [settings]),
        Section("Results", results),
        Section("Curves", pictures=pictures),
        Section("Environment", environments),
    ]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            picture.save(folder)
        write_page(folder / "compare.html", "A beside B", names, warnings, sections)
    console.print(f"page         {RunFolder(folder / 'compare.html')}", soft_wrap=True, markup=False)
    return 0


def _pairs(first: Sequence[Run], second: Sequence[Run]) -> tuple[Pairs, list[str]]:
    """Rows of one name; where each side has but one row, these two. And what has no counterpart."""
    ours, theirs = _rows(first), _rows(second)
    if len(ours) == len(theirs) == 1:
        (row, runs), (other, others) = *ours.items(), *theirs.items()
        return {row if row == other else f"{row} | {other}": (runs, others)}, []
    pairs = {row: (ours[row], theirs[row]) for row in ours if row in theirs}
    alone = {"A": [row for row in ours if row not in theirs], "B": [row for row in theirs if row not in ours]}
    return pairs, [f"only in {side}: {', '.join(rows)}" for side, rows in alone.items() if rows]


def _mixtures(runs: Sequence[Run]) -> list[str]:
    """What within a side should not have been averaged."""
    columns = columns_of(runs)
    protocols = [f"the runs of several protocols are taken together: {', '.join(column.label for column in columns)}"]
    return [*protocols * (len(columns) > 1), *(warning for column in columns for warning in warnings_of(column))]


def _rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    rows = defaultdict(list)
    for run in runs:
        rows[run.row].append(run)
    return dict(rows)


def _settings(pairs: Pairs) -> Sheet:
    """A line for each setting and fact that differs; rows that differ alike share it."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row, (ours, theirs) in pairs.items():
        a, b = _values(ours), _values(theirs)
        for key in {**a, **b}:
            if a.get(key, NOTHING) != b.get(key, NOTHING):
                found[key, a.get(key, NOTHING), b.get(key, NOTHING)].append(row)
    lines = [
        (key, one, other, "all" if len(rows) == len(pairs) else ", ".join(rows))
        for (key, one, other), rows in found.items()
    ]
    note = "" if lines else "No setting differs."
    return Sheet("Settings and environment", ("setting", "A", "B", "rows"), tuple(lines), note=note)


def _values(runs: Sequence[Run]) -> dict[str, str]:
    """The settings of a row, its seeds, and on what it was trained; several values where its runs differ."""
    each = []
    for run in runs:
        facts = {name: run.result.get(name) for name in ("device", "precision", "threads", "commit")}
        facts["torch"] = run.result.get("versions", {}).get("torch")
        known = {f"trained: {name}": value for name, value in facts.items() if value is not None}
        each.append({**run.settings, "seed": run.seed, **known})
    keys = dict.fromkeys(key for values in each for key in values)
    return {key: " or ".join(dict.fromkeys(setting_text(values, key) for values in each)) for key in keys}


def _results(pairs: Pairs) -> Sheet:
    header = ("row", "n A", "median A", "n B", "median B", "A minus B", "state A", "state B")
    lines = []
    for row, both in pairs.items():
        errors = [[run.error for run in runs if run.error is not None] for runs in both]
        ours, theirs = map(middle, errors)
        known = ours is not None and theirs is not None and math.isfinite(ours) and math.isfinite(theirs)
        difference = signed(ours - theirs) if known else NOTHING
        states = [", ".join(dict.fromkeys(run.state.name for run in runs)) for runs in both]
        lines.append(
            (row, str(len(errors[0])), percent(ours), str(len(errors[1])), percent(theirs), difference, *states)
        )
    return Sheet("Final test errors in percent", header, tuple(lines), frozenset(header[1:6]))


def _tests(pairs: Pairs) -> Sheet:
    tested = [
        tuple(
            Errors(f"{runs[0].row}, {letter}", tuple(run.error for run in runs if run.error is not None))
            for letter, runs in zip("AB", both, strict=True)
        )
        for both in pairs.values()
    ]
    return comparison_sheet("Do A and B differ?", compare_pairs(tested))


def _pictures(pairs: Pairs, logarithmic: bool) -> list[Picture]:
    examples = {row: (example(ours), example(theirs)) for row, (ours, theirs) in pairs.items()}
    drawn = {row: both for row, both in examples.items() if any(run.history for run in both)}
    if not drawn:
        return []
    caption = "Error of a run of median result of each row, of A and of B"
    if len(drawn) > MOST_PANELS:
        caption += f"; the first {MOST_PANELS} of {len(drawn)} rows"
    with styled():
        return [Picture("compare", caption, curves_beside(drawn, logarithmic))]
