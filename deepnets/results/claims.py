"""Which claims of a sweep file meet which runs of its table; their sheets, their page, the seeds that they lack."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from deepnets.config.claim import Claim, Measured, Relation, claims_of, margins_of, registered_of
from deepnets.config.schema import Row, axes_of
from deepnets.config.sweep import SWEEPS, names_at, set_at_scale, sweep_of
from deepnets.results.cell import FAIL_ABOVE, compared_error
from deepnets.results.columns import (
    ARITHMETIC,
    FULL,
    Column,
    arithmetic_of,
    columns_of,
    frame_of,
    in_other_arithmetic,
    is_plain,
)
from deepnets.results.finding import CHANCE, CLAIM_RULE, FAIL_MARGIN, LOOKS, MOST, Finding, Outcome, Side
from deepnets.results.read import Run, mixes_code, read_runs
from deepnets.results.sheet import NOTHING, Sheet, markdown_table, percent, print_sheet, signed
from deepnets.results.statistics import FEWEST_SEEDS, WORST_ERROR, holm
from deepnets.results.table import Table, tables_of
from deepnets.runs.folder import RunFolder, folders_of, run_folders
from deepnets.system.printing import console_for

DEPTH_KEYS = ("depth", "units")  # of the model's node
OTHER_DEPTH = "nets of another depth than the paper's"
CLAIM_HEADER = (
    "claim",
    "outcome",
    "error",
    "place",
    "n",
    "difference",
    "interval",
    "look",
    "p (Holm)",
    "test set",
    "P",
    "next",
)
CLAIM_NUMBERS = frozenset(CLAIM_HEADER[4:])
ANSWERS = (Outcome.contradicted, Outcome.no_difference, Outcome.supported)
SHOWN = ("claim", "error", "outcome", "n", "next")
OWN = "own setting"  # of a sweep that is no published table
PAGE_HEAD = f"""# Claims of the papers, tested

Written by `python scripts/report.py {{folder}} --records`. A sweep file states what its paper claims about its rows
(`sweep.claims`). Each line below is a claim about two rows, tested on the runs of one protocol. Registered are claims
that these tests cannot express, with the quantity and the margin of their one later test. In brackets: runs at a scale,
of the paper's depth, on narrower nets or with fewer iterations, and runs in an {OWN}, whose nets, data or budget
were chosen here and not by the paper; they test the claim, not the paper's numbers. A command below trains the rows of
its own sweep; those of another sweep, as in SWEEP/ROW, are trained by that one's."""

Experiment = tuple[Relation, Measured, frozenset[str], frozenset[str]]


@dataclass(frozen=True)
class Tested:
    """A column's findings; `label` is what the command adds for such runs, or `FULL`."""

    label: str
    shown: str
    scale: str
    findings: list[Finding]


def findings_of(table: Table, index: int, sweeps: Path) -> list[Finding]:
    """Test every claim of the table's sweep file in `sweeps` on a column; a claim about an axis is tested on each pair.

    Nets of another depth than the file's full scale are not tested, since the claims are about depth.
    """
    column, sweep = table.columns[index], sweep_of(sweeps / f"{table.name}.yaml")
    if not claims_of(sweep) or is_of_other_depth(table, index, sweeps):
        return []
    paper = min((cell.fail_above for cell in table.column(index).values()), default=math.inf)
    is_papers = column.is_published_protocol and not math.isinf(paper)
    margin = margins_of(sweep).get(column.scale)
    findings = []
    for claim in claims_of(sweep):
        name = f"{table.name}/{claim.hash}"
        other, _, second = claim.second.rpartition("/")
        second_rows = _sibling(column, other) if other else column.rows
        pairs = [(claim.first, second)] if other else pairs_of(claim, table.rows, len(axes_of(sweep)) or 1)
        for one, two in pairs:
            named = claim.above if column.is_published_protocol else None
            bound = named or (paper if is_papers else _fails_here(column, one))
            first, second_side = (
                _side(claim, name, row, runs.get(row, []), table.published.best_epochs)
                for row, runs in ((one, column.rows), (two, second_rows))
            )
            learns = is_papers or claim.relation is not Relation.fails or _learns(table, index, bound)
            findings.append(Finding(claim, first, second_side, bound, margin, learns))
    return _with_holm(findings)


def claim_sheets(table: Table, sweeps: Path | None = None) -> list[Sheet]:
    """Show the claims of the table's sweep, tested on each column."""
    sweeps = sweeps or table.sweeps
    if table.trials or not claims_of(sweep_of(sweeps / f"{table.name}.yaml")):
        return []
    sheets = []
    for index in range(len(table.columns)):
        lines = tuple(map(claim_line, findings_of(table, index, sweeps)))
        note = f"Not tested: {OTHER_DEPTH}." if is_of_other_depth(table, index, sweeps) else CLAIM_RULE
        sheets.append(Sheet(f"{table.title(index)}: claims", CLAIM_HEADER, lines, CLAIM_NUMBERS, note))
    return sheets


def claim_answers(table: Table, most: int) -> list[str]:
    """Count the claims of each column by answer, then say the answers in a line each, those against the paper first."""
    lines: list[str] = []
    if table.trials or not claims_of(sweep_of(table.sweeps / f"{table.name}.yaml")):
        return lines
    for index in range(len(table.columns)):
        findings = [finding for finding in findings_of(table, index, table.sweeps) if all(finding.seeds)]
        if not findings:
            continue
        counts = Counter(finding.outcome for finding in findings)
        said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
        lines.append(f"{table.title(index)}: {len(findings)} claim{'s' * (len(findings) > 1)} tested: {said}")
        lines += _cost(table, index, findings)
        answered = [each for outcome in ANSWERS for each in findings if each.outcome is outcome]
        lines += [f"  {each.outcome}: {each.text} ({_measured(each)})" for each in answered[:most]]
        lines += [f"  and {len(answered) - most} more"] * (len(answered) > most)
    return lines


def _cost(table: Table, index: int, findings: Sequence[Finding]) -> list[str]:
    """Say what the claims' rows took, by decided claim, beside ten seeds of each row; nothing where none is decided."""
    rows = {row for finding in findings for row in (finding.first.row, finding.second.row)}
    for device, unit in (("cpu", "core"), ("cuda", "GPU")):
        cells = [cell for row, cell in table.column(index).items() if row in rows and cell.hours(device)]
        decided = sum(finding.outcome is not Outcome.undecided for finding in findings)
        if cells and decided:
            hours = sum(cell.hours(device) for cell in cells)
            full = sum(MOST * cell.hours(device) / len(cell.errors) for cell in cells if cell.errors)
            return [
                f"  {hours / decided:.2g} {unit}-hours a decided claim, {hours:.2g} in all; {MOST} seeds: {full:.2g}"
            ]
    return []


def _measured(finding: Finding) -> str:
    assert finding.interval
    low, high = map(signed, finding.interval)
    return f"{signed(finding.difference)}, {low} to {high}, {finding.looks[-1].seeds} seeds each"


def claim_line(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a line under `CLAIM_HEADER`."""
    first, second = finding.seeds
    before = f" ({finding.seen_before} seen before)" if finding.seen_before else ""
    interval = f"{signed(finding.interval[0])} to {signed(finding.interval[1])}" if finding.interval else NOTHING
    return (
        f"{finding.first.row} {finding.claim.relation} {finding.other}",
        finding.outcome,
        finding.claim.error,
        finding.claim.place,
        f"{first}, {second}{before}",
        signed(finding.difference),
        interval,
        str(finding.looks[-1].seeds) if finding.looks else "",
        NOTHING if finding.p_holm is None else f"{finding.p_holm:.2g}",
        percent(finding.image_noise),
        percent(finding.superiority),
        _next_look(finding),
    )


def show_seeds(rows: Sequence[Row]) -> None:
    """Print, for a sweep with claims, what each has shown in the grid's folder, and the seeds its next look needs."""
    if not (claims := claims_of(rows[0].config.sweep)):
        return
    grids = dict.fromkeys(folder.path.parents[1] for folder in folders_of(list(rows)))
    begun = [grid for grid in grids if grid.is_dir() and run_folders(grid)]
    console = console_for()
    places = [place.removeprefix("file://") for place in rows[0].search.places if place.startswith("file://")]
    own = Path(places[0]) / "sweep" if places else None
    tables = tables_of(read_runs(begun), own=own) if begun else []
    sheets = [sheet for table in tables for sheet in claim_sheets(table)]
    console.print()
    if not sheets:
        file = f"{rows[0].choices['sweep']}.yaml"
        folder = own if own and (own / file).is_file() else SWEEPS
        is_shallow = are_of_other_depth((row.config.model for row in rows), folder / file)
        words = (
            f"not tested: {OTHER_DEPTH}"
            if is_shallow
            else f"each is looked at with {', '.join(map(str, LOOKS))} seeds of its rows"
        )
        console.print(f"claims     {len(claims)}, {words}")
    for sheet in sheets:
        print_sheet(console, sheet.of(SHOWN) if sheet.lines else sheet)


def claims_page(folder: Path, tables: Sequence[Table], sweeps: Path = SWEEPS) -> str:
    """Write Markdown with a section for each sweep in `sweeps` that has claims, a line for each claim, pair and column.

    `tables` are those of the records in `folder`. What lacks runs is named with the command that trains it.
    """
    sections, outcomes, claimed, waiting = [], dict[Experiment, Outcome](), 0, 0
    for file in sorted(sweeps.glob("*.yaml")):
        sweep = sweep_of(file)
        claims, registered = claims_of(sweep), registered_of(sweep)
        if claims:
            of_sweep = [table for table in tables if table.name == file.stem and not table.trials]
            places = [(table, index) for table in of_sweep for index in range(len(table.columns))]
            labels = Counter(table.columns[index].label for table, index in places)
            columns = [_tested(table, index, sweeps, labels[table.columns[index].label] > 1) for table, index in places]
            tested = [column for column in columns if any(all(finding.seeds) for finding in column.findings)]
            sections.append(_section(file, claims, tested))
            shallow = [table.columns[index].label for table, index in places if is_of_other_depth(table, index, sweeps)]
            sections += [f"Not tested at {label}: {OTHER_DEPTH}." for label in dict.fromkeys(shallow)]
            findings = [finding for column in tested for finding in column.findings]
            outcomes |= {_experiment(finding): finding.outcome for finding in findings if all(finding.seeds)}
            claimed += len(claims)
        elif registered:
            sections.append(f"## {file.stem}")
        if registered:
            entries = [f"* {claim.sentence[0].upper()}{claim.text[1:]}; {claim.place}." for claim in registered]
            sections.append("\n".join(["Registered, not tested yet:\n", *entries]))
        waiting += len(registered)
    numbers = Counter(outcomes.values())
    counted = ", ".join(f"{numbers[outcome]} {outcome}" for outcome in Outcome)
    counts = (
        f"{claimed} claims; of {len(outcomes)} experiments (equal runs under several names are one): "
        f"{counted}. Registered beside them, not tested yet: {waiting}."
    )
    head = [PAGE_HEAD.format(folder=RunFolder(folder)), counts, CLAIM_RULE]
    return "\n\n".join([*head, *sections]) + "\n"


def is_of_other_depth(table: Table, index: int, sweeps: Path) -> bool:
    """Say whether the nets of a column have another depth than the paper's, as at scale=mini."""
    models = [run.config["model"] for run in table.columns[index].runs if run.config]
    return are_of_other_depth(models, sweeps / f"{table.name}.yaml")


def are_of_other_depth(models: Iterable[Mapping[str, Any]], file: Path) -> bool:
    """Say whether one of the `models` (nodes of a configuration) has another depth than the sweep file sets."""
    papers = {key: set_at_scale(file, f"model.{key}", "full") for key in DEPTH_KEYS}
    return any(model.get(key) != depth for model in models for key, depth in papers.items() if depth)


def pairs_of(claim: Claim, rows: Sequence[str], axes: int) -> list[tuple[str, str]]:
    """Return the pairs of rows that a claim is about: values of an axis stand for all pairs that differ in it alone.

    A name with a word for each of the `axes` is a row, whether there are runs of it or not.
    """
    if claim.first in rows or claim.second in rows or claim.first.count(",") + 1 >= axes:
        return [(claim.first, claim.second)]
    pairs = []
    for row in rows:
        values = row.split(",")
        partner = ",".join(claim.second if value == claim.first else value for value in values)
        if partner != row and partner in rows:
            pairs.append((row, partner))
    return pairs


def _fails_here(column: Column, row: str) -> float:
    """Return the error in percent above which a row fails here: `FAIL_MARGIN` below the plain net's mean.

    If no plain net of the column has ended, or the row is the plain net, it is `FAIL_MARGIN` below that of guessing.
    """
    plain = [run.error for run in column.runs if run.row != row and run.error is not None and is_plain(run)]
    return (fmean(min(error, WORST_ERROR) for error in plain) if plain else CHANCE) - FAIL_MARGIN


def _learns(table: Table, index: int, bound: float) -> bool:
    """Say whether the rows that learn in the paper learn here: their mean errors are at most `bound` percent."""
    cells = table.column(index).values()
    learning = [
        cell for cell in cells if isinstance(error := cell.published.test_error, float | int) and error <= FAIL_ABOVE
    ]
    means = [fmean(min(error, WORST_ERROR) for error in cell.errors) for cell in learning if cell.errors]
    return all(mean <= bound for mean in means)


def _with_holm(findings: Sequence[Finding]) -> list[Finding]:
    """Correct the p of the findings by Holm; pairs of the same experiments, whatever their names, count once."""
    by_pair = {_pair(finding): finding.p for finding in findings if finding.p is not None}
    corrected = dict(zip(by_pair, holm(list(by_pair.values())), strict=True))
    return [replace(finding, p_holm=corrected.get(_pair(finding))) for finding in findings]


def _pair(finding: Finding) -> tuple[Measured, frozenset[frozenset[str]]]:
    return finding.claim.error, frozenset({finding.first.identities, finding.second.identities})


def _sibling(column: Column, other: str) -> dict[str, list[Run]]:
    """Read the rows of another sweep, trained as the column was, from the folder beside it."""
    folders: list[Path] = []
    for grid in sorted({run.grid for run in column.runs}):
        folder = grid.with_name("+".join([other, *grid.name.split("+")[1:]]))
        folders += [folder] * folder.is_dir() + in_other_arithmetic([folder])
    columns = columns_of(frame_of(read_runs(list(dict.fromkeys(folders)))))
    alike = [each for each in columns if _arithmetic(each) == _arithmetic(column)]
    return alike[0].rows if len(alike) == 1 else {}


def _arithmetic(column: Column) -> set[str]:
    return {arithmetic_of(run) for run in column.runs} - {""}


def _side(claim: Claim, name: str, row: str, runs: Sequence[Run], best_epochs: int | None) -> Side:
    if mixes_code(runs):
        runs = []
    ended = [(run, error) for run in runs if (error := _error(run, claim.error, best_epochs)) is not None]
    return Side(
        row,
        errors=tuple(min(error, WORST_ERROR) for _, error in ended),
        # A run frozen before claims were named by their sweep noted the bare hashes of its own sweep's.
        known=tuple(bool({name, claim.hash} & {*run.result.get("claims", [])}) for run, _ in ended),
        seeds=tuple(-1 if run.seed is None else run.seed for run, _ in ended),
        wrong=tuple(run.test_wrong if error == run.error else None for run, error in ended),
        identities=frozenset(run.experiment for run, _ in ended),
    )


def _error(run: Run, measured: Measured, best_epochs: int | None) -> float | None:
    if run.error is None or math.isinf(run.error) or measured is Measured.test:
        return compared_error(run, best_epochs)
    return run.result.get("train_error")


def _next_look(finding: Finding) -> str:
    """Name the seeds that each row lacks for the next look, and the chance that it shows the difference seen so far."""
    if finding.lacking is None:
        return ""
    first, second = (" ".join(map(str, seeds)) or "none" for seeds in finding.lacking)
    chance = f" ({100 * finding.chance:.0f}%)" if finding.chance is not None else ""
    return (f"seeds {first}" if first == second else f"seeds {first} and {second}") + chance


def _experiment(finding: Finding) -> Experiment:
    """Return what identifies an experiment: "a is lower than b" is the same one as "b is higher than a"."""
    relation, rows = finding.claim.relation, (finding.first.identities, finding.second.identities)
    if relation is Relation.above:
        relation, rows = Relation.below, rows[::-1]
    return relation, finding.claim.error, *rows


def _tested(table: Table, index: int, sweeps: Path, is_shared: bool) -> Tested:
    """Test a column. If the label `is_shared` by another column of the sweep, this one names its precision too."""
    column = table.columns[index]
    label = _label(column, is_shared)
    is_own = table.published.statistic == "none"
    words = [label] * (label != FULL) + [OWN] * is_own
    shown = label if column.is_published_protocol and not is_own else f"({', '.join(words)})"
    return Tested(label, shown, column.scale, findings_of(table, index, sweeps))


def _label(column: Column, is_shared: bool) -> str:
    """Return the options with which the command would train such runs."""
    options = {name: f"precision={option}" for option, name in ARITHMETIC.items()}
    words = [options.get(word, word) for word in column.label.split() if word != FULL]
    words += [options[name] for name in sorted(_arithmetic(column) & options.keys())] * is_shared
    return " ".join(dict.fromkeys(words)) or FULL


def _rows_here(finding: Finding) -> set[str]:
    """Return the rows of a finding that are in its own sweep."""
    return {row for row in (finding.first.row, finding.other) if "/" not in row}


def _section(file: Path, claims: Sequence[Claim], tested: Sequence[Tested]) -> str:
    """Write a sweep's findings, column by column, and then by label the claims that lack the runs of a row."""
    parts, lines = [f"## {file.stem}"], []
    met = {finding.claim for column in tested for finding in column.findings if all(finding.seeds)}
    untested = {FULL: [claim.text for claim in claims if claim not in met]}
    left_out = {}
    for column in tested:
        lines += [(column.shown, *claim_line(finding)) for finding in column.findings if all(finding.seeds)]
        missing = [finding for finding in column.findings if not all(finding.seeds)]
        names = {*names_at(file, column.scale)}
        possible = [finding for finding in missing if not names or _rows_here(finding) <= names]
        untested[column.label] = [finding.text for finding in possible]
        left_out[column.scale] = [finding.text for finding in missing if finding not in possible]
    if lines:
        parts.append(
            markdown_table(Sheet("", ("runs", *CLAIM_HEADER), tuple(lines), CLAIM_NUMBERS).without_empty_columns())
        )
    for label, texts in untested.items():
        options = [] if label == FULL else [label]
        command = " ".join([f"python scripts/train.py sweep={file.stem}", *options, f"'seed=range({FEWEST_SEEDS})'"])
        if texts:
            parts.append(f"Without runs of both rows (`{command} dataset.root=DIR`): {'; '.join(texts)}.")
    parts += [
        f"About rows that scale={scale} leaves out: {'; '.join(texts)}." for scale, texts in left_out.items() if texts
    ]
    return "\n\n".join(parts)
