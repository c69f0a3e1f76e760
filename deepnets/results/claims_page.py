"""Shows tested claims as sheets, as answers and on a page, with the seeds that are still missing."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnets.config.claim import Claim, Registered, Relation, decidable_of, registered_of
from deepnets.config.project import program
from deepnets.config.schema import Row
from deepnets.config.sweep import SWEEPS, matching, names_at, sweep_of
from deepnets.results.claims import (
    OTHER_DEPTH,
    are_of_other_depth,
    arithmetics_of,
    drawn_findings,
    findings_of,
    has_claims,
    is_of_other_depth,
)
from deepnets.results.columns import ARITHMETIC, FULL, Column
from deepnets.results.finding import CLAIM_RULE, LOOKS, MOST, Finding, Outcome, PairFinding
from deepnets.results.read import read_runs
from deepnets.results.registered import REGISTERED_RULE, RegisteredFinding
from deepnets.results.statistics import FEWEST_SEEDS
from deepnets.results.table import Table, tables_of
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.naming import folders_of
from deepnets.system.printing import NOTHING, Sheet, console_for, markdown_table, percent, print_sheet, signed

CLAIM_HEADER = (
    "claim",
    "outcome",
    "error",
    "place",
    "n",
    "seeds tested",
    "difference",
    "interval",
    "p (Holm)",
    "test set",
    "P",
    "next",
)
CLAIM_NUMBERS = frozenset(CLAIM_HEADER[4:])
ANSWERS = (Outcome.contradicted, Outcome.no_difference, Outcome.supported)
NO_LOOK = "no further look"
MOST_WAITING = 3  # undecided claims that the terminal names
SHOWN = ("claim", "error", "outcome", "n", "next")
OWN = "own setting"  # a sweep that repeats no published table
PAGE_HEAD = f"""# Claims of the papers, tested

Written by `{{command}}`. A sweep file states what its paper claims about its rows
(`sweep.claims`). Each line below is a claim, tested on the runs of one protocol. A registered claim is about more than
the errors of two rows; its file states the quantity and the margin of its one test. Runs in brackets are at a scale
that keeps the paper's depth, with narrower nets or fewer iterations, or in an {OWN}, whose nets, data or budget
were chosen here and not by the paper; they test the claim, not the paper's numbers. A command below trains only the
rows of the sweep that it names; a row of another sweep, written SWEEP/ROW, is trained by that sweep's command."""


@dataclass(frozen=True)
class Tested:
    """The findings of a column; `label` holds the options of the command that trains its runs, or is `FULL`.

    `sweep` is the column's sweep; it is empty for nets that an analysis draws itself.
    """

    sweep: str
    label: str
    shown: str
    scale: str
    findings: list[Finding]


def claim_sheets(table: Table, sweeps: Path | None = None) -> list[Sheet]:
    """Show the claims of the table's sweep, tested on each column."""
    sweeps = sweeps or table.sweeps
    if not has_claims(table, sweeps):
        return []
    sheets = []
    for index in range(len(table.columns)):
        findings = findings_of(table, index, sweeps)
        lines = tuple(map(claim_line, findings))
        rule = CLAIM_RULE + f" {REGISTERED_RULE}" * any(isinstance(each, RegisteredFinding) for each in findings)
        note = f"Not tested: {OTHER_DEPTH}." if is_of_other_depth(table, index, sweeps) else rule
        sheets.append(Sheet(f"{table.title(index)}: claims", CLAIM_HEADER, lines, CLAIM_NUMBERS, note))
    return sheets


def claim_answers(table: Table, most: int) -> list[str]:
    """Count each column's findings by outcome, then list up to `most` answers; those against the paper come first."""
    lines: list[str] = []
    if not has_claims(table, table.sweeps):
        return lines
    for index in range(len(table.columns)):
        title, found = table.title(index), findings_of(table, index, table.sweeps)
        findings = [each for each in found if all(each.seeds)]
        untested = [each for each in found if each.analyses and not all(each.seeds)]
        lines += [f"{title}: not tested yet: {each.text}; it needs {_next_look(each)}" for each in untested]
        if not findings:
            lines += [f"{title}: no claim tested: {OTHER_DEPTH}"] * is_of_other_depth(table, index, table.sweeps)
            continue
        counts = Counter(finding.outcome for finding in findings)
        by_answer = ", ".join(f"{count} {outcome}" for outcome in Outcome if (count := counts[outcome]))
        lines.append(f"{title}: {len(findings)} claim{'s' * (len(findings) > 1)} tested: {by_answer}")
        lines += _cost(table, index, findings)
        waiting = [each for each in findings if each.outcome is Outcome.undecided and _next_look(each)]
        for each in waiting[:MOST_WAITING]:
            so_far = f" ({_measured(each)})" if each.interval else _seen_before(each)
            needed = _next_look(each, meaning=" chance of an answer")
            lines.append(f"  undecided: {each.text}{so_far}; the next look lacks {needed}")
        lines += [f"  and {len(waiting) - MOST_WAITING} more wait for a look"] * (len(waiting) > MOST_WAITING)
        answered = [each for outcome in ANSWERS for each in findings if each.outcome is outcome]
        answered += filter(_is_final, findings)
        for each in answered[:most]:
            outcome = f"{each.outcome}, {NO_LOOK}" if each.outcome is Outcome.undecided else each.outcome
            lines.append(f"  {outcome}: {each.text}" + (f" ({_measured(each)})" if each.interval else ""))
        lines += [f"  and {len(answered) - most} more"] * (len(answered) > most)
    return lines


def _seen_before(finding: Finding) -> str:
    return f" ({finding.seen_before} of {sum(finding.seeds)} seen before)" if finding.seen_before else ""


def claim_line(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a line under `CLAIM_HEADER`."""
    return (
        _what(finding),
        finding.outcome,
        finding.number,
        finding.claim.place,
        ", ".join(map(str, finding.seeds)) + _seen_before(finding),
        str(finding.shown.seeds) if finding.shown else "",
        signed(finding.difference),
        _interval(finding.interval) if finding.interval else NOTHING,
        NOTHING if finding.p_holm is None else f"{finding.p_holm:.2g}",
        percent(finding.image_noise),
        percent(finding.superiority),
        _next(finding),
    )


def show_seeds(rows: Sequence[Row]) -> None:
    """If the sweep has claims, print each claim's outcome so far, and the seeds that its next look needs.

    The outcomes come from the runs that are already in the sweep's folder, but those that the command overwrites.
    """
    if not (claims := decidable_of(rows[0].config.sweep)):
        return
    folders = folders_of(list(rows))
    grids = sorted({folder.path.parents[1] for folder in folders})
    begun = [grid for grid in grids if grid.is_dir() and run_folders(grid)]
    console = console_for()
    places = [place.removeprefix("file://") for place in rows[0].search.places if place.startswith("file://")]
    project_sweeps = Path(places[0]) / "sweep" if places else None
    deleted = {folder.path for folder in folders if rows[0].config.overwrite}
    runs = [run for run in read_runs(begun) if run.folder.path not in deleted] if begun else []
    tables = tables_of(runs, project_sweeps=project_sweeps) if runs else []
    sheets = [sheet for table in tables for sheet in claim_sheets(table)]
    console.print()
    if not sheets:
        file = f"{rows[0].choices['sweep']}.yaml"
        folder = project_sweeps if project_sweeps and (project_sweeps / file).is_file() else SWEEPS
        is_shallow = are_of_other_depth((row.config.model for row in rows), folder / file)
        status = (
            f"not tested: {OTHER_DEPTH}"
            if is_shallow
            else f"each looks at its pairs of rows with {', '.join(map(str, LOOKS))} seeds"
        )
        console.print(f"claims     {len(claims)}, {status}")
    for sheet in sheets:
        print_sheet(console, sheet.of(SHOWN) if sheet.lines else sheet)


def claims_page(folder: Path, tables: Sequence[Table], sweeps: Path = SWEEPS) -> str:
    """Return Markdown: a section for each sweep in `sweeps` that has claims, a line for each claim, pair and column.

    `tables` are made of the records in `folder`. Claims without runs are listed with the command that trains them.
    """
    sections, waiting = [], 0
    tests: dict[tuple[object, ...], Finding] = {}
    by_claim: dict[tuple[str, Claim | Registered], list[Finding]] = {}
    for file in sorted(sweeps.glob("*.yaml")):
        claims, registered = decidable_of(sweep_of(file)), registered_of(sweep_of(file))
        open_ones = [claim for claim in registered if not claim.test]
        if claims:
            of_sweep = [table for table in tables if table.name == file.stem]
            places = [(table, index) for table in of_sweep for index in range(len(table.columns))]
            labels = Counter(table.columns[index].label for table, index in places)
            columns = [_tested(table, index, sweeps, labels[table.columns[index].label] > 1) for table, index in places]
            columns += _tested_elsewhere(file.stem, registered, tables, sweeps, folder)
            for column in columns:
                column.findings[:] = [finding for finding in column.findings if finding.claim in claims]
            tested = [column for column in columns if any(map(_has_runs, column.findings))]
            sections.append(_section(file, claims, tested))
            shallow = [table.columns[index].label for table, index in places if is_of_other_depth(table, index, sweeps)]
            sections += [f"Not tested at {label}: {OTHER_DEPTH}." for label in dict.fromkeys(shallow)]
            findings = [finding for column in tested for finding in column.findings]
            tests |= {_experiment(finding): finding for finding in findings if all(finding.seeds)}
            by_claim |= {(file.stem, claim): [each for each in findings if each.claim == claim] for claim in claims}
        elif registered:
            sections.append(f"## {file.stem}")
        sections += _entries("How the registered ones are measured", [claim for claim in registered if claim.test])
        sections += _entries("Registered, without a test yet", open_ones)
        waiting += len(open_ones)
    numbers = Counter(finding.outcome for finding in tests.values())
    counted = ", ".join(f"{numbers[outcome]} {outcome}" for outcome in Outcome)
    unlooked = sum(not finding.looks for finding in tests.values())
    with_runs = sum(any(all(each.seeds) for each in found) for found in by_claim.values())
    counts = (
        f"{len(by_claim)} claims, of which {with_runs} have runs. Of {len(tests)} tests (equal runs under several "
        f"names give one): {counted}, of which {unlooked} wait for their first look. Registered claims without a test: "
        f"{waiting}."
    )
    command = f"{program('report')} {RunFolder(folder)} --records"
    head = [PAGE_HEAD.format(command=command), counts, CLAIM_RULE, REGISTERED_RULE]
    page = "\n\n".join([*head, *sections]) + "\n"
    # An analysis needs weights. A record has none, so the command names the run that it was copied from, which lies by
    # default in the folder that holds the records' folder.
    return re.sub(
        rf"(analyze\.py \w+ '?){re.escape(str(RunFolder(folder)))}/", rf"\g<1>{RunFolder(folder.parent)}/", page
    )


def _entries(title: str, claims: Sequence[Registered]) -> list[str]:
    """List the claims, and how each is measured, under a title; empty if there are no claims."""
    lines = [f"* {claim.sentence[0].upper()}{claim.text[1:]}{claim.place and f'; {claim.place}'}." for claim in claims]
    return ["\n".join([f"{title}:\n", *lines])] * bool(claims)


def _cost(table: Table, index: int, findings: Sequence[Finding]) -> list[str]:
    """Say how many hours the rows in claims took, also per decided claim; empty if no claim is decided."""
    rows = {side.row for finding in findings for side in finding.sides}
    for device, unit in (("cpu", "core"), ("cuda", "GPU")):
        cells = [cell for row, cell in table.column(index).items() if row in rows and cell.hours(device)]
        decided = sum(finding.outcome is not Outcome.undecided for finding in findings)
        if cells and decided:
            hours = sum(cell.hours(device) for cell in cells)
            by_decided = f"{hours / decided:.2g} for each decided claim"
            return [f"  {hours:.2g} {unit}-hours of the rows that they name, {by_decided}"]
    return []


def _measured(finding: Finding) -> str:
    assert finding.shown
    assert finding.interval
    return f"{signed(finding.difference)}, {_interval(finding.interval)}, {finding.shown.seeds} {finding.counted}s each"


def _interval(bounds: tuple[float, float]) -> str:
    return " to ".join(map(signed, bounds))


def _is_final(finding: Finding) -> bool:
    """Return whether the claim stays undecided, because no further look can answer it."""
    return finding.outcome is Outcome.undecided and not _next_look(finding)


def _next(finding: Finding) -> str:
    if later := finding.later:
        measured = f"{signed(later.difference)}, {_interval((later.low, later.high))}"
        return f"{later.seeds} {finding.counted}s alone: {later.outcome} ({measured})"
    return NO_LOOK if _is_final(finding) else _next_look(finding)


def _next_look(finding: Finding, meaning: str = "") -> str:
    """Name the seeds, or the analyses, that each row lacks for the next look, and the chance that this look answers.

    `meaning` follows the percentage.
    """
    if finding.lacking is None:
        return ""
    more = f", and {len(finding.analyses) - 1} more" * (len(finding.analyses) > 1)
    texts = [f"the analysis `{command}`{more}" for command in finding.analyses[:1]]
    if any(finding.lacking):
        chance = f" ({100 * finding.chance:.0f}%{meaning})" if finding.chance is not None else ""
        pairs = zip(finding.sides, finding.lacking, strict=True)
        by_row = [(side.row, _listed(lacking, finding.counted)) for side, lacking in pairs]
        is_same = all(lacking == finding.lacking[0] for lacking in finding.lacking)
        seeds = by_row[0][1] if is_same else "; ".join(f"{row}: {listed}" for row, listed in by_row if listed)
        texts.append(seeds + chance)
    return "; ".join(texts)


def _listed(seeds: Sequence[int], unit: str) -> str:
    """Return text such as `seeds 3 4`; of more than `MOST`, only the first and last are named."""
    numbers = " ".join(map(str, seeds)) if len(seeds) <= MOST else f"{seeds[0]} to {seeds[-1]}"
    return f"{unit}{'s' * (len(seeds) > 1)} {numbers}" if seeds else ""


def _what(finding: Finding) -> str:
    """Return the claim's text for its line, with a fail's bound, without the error, which has a column of its own."""
    if not isinstance(finding, PairFinding):
        return finding.text
    bound = f" (above {finding.fail_above:.3g}%)" * (finding.claim.relation is Relation.fails)
    return f"{finding.sides[0].row} {finding.claim.relation} {finding.other}{bound}"


def _experiment(finding: Finding) -> tuple[object, ...]:
    """Return the experiment's key, which is the same for "a is lower than b" and "b is higher than a"."""
    identities = tuple(side.identities for side in finding.sides)
    if isinstance(finding, RegisteredFinding):
        return finding.claim.quantity, *identities
    assert isinstance(finding, PairFinding)
    relation = finding.claim.relation
    if relation is Relation.above:
        relation, identities = Relation.below, identities[::-1]
    return relation, finding.claim.error, *identities


def _tested(table: Table, index: int, sweeps: Path, is_shared: bool) -> Tested:
    """Test the claims on a column. If another column of the sweep has its label (`is_shared`), name the precision."""
    column = table.columns[index]
    label = _label(column, is_shared)
    is_own = table.published.statistic == "none"
    words = [label] * (label != FULL) + [OWN] * is_own
    shown = label if column.is_published_protocol and not is_own else f"({', '.join(words)})"
    return Tested(table.name, label, shown, column.scale, findings_of(table, index, sweeps))


def _tested_elsewhere(
    sweep: str, claims: Sequence[Registered], tables: Sequence[Table], sweeps: Path, records: Path
) -> list[Tested]:
    """Test the claims that are only about rows of another sweep, or about nets that an analysis draws itself."""
    names = {claim.elsewhere for claim in claims if claim.test} - {""}
    columns = [
        _tested(table, index, sweeps, False)
        for table in tables
        if table.name in names
        for index in range(len(table.columns))
    ]
    return [*columns, Tested("", FULL, "drawn nets", FULL, [*drawn_findings(sweep, claims, records)])]


def _label(column: Column, is_shared: bool) -> str:
    """Return the options with which a command trains the column's runs, or `FULL`."""
    options = {name: f"precision={option}" for option, name in ARITHMETIC.items()}
    words = [options.get(word, word) for word in column.label.split() if word != FULL]
    words += [options[name] for name in sorted(arithmetics_of(column) & options.keys())] * is_shared
    return " ".join(dict.fromkeys(words)) or FULL


def _has_runs(finding: Finding) -> bool:
    """Say whether each row has ended runs; they may lack an analysis."""
    return all(side.errors or side.waiting for side in finding.sides)


def _rows_here(finding: Finding) -> set[str]:
    """Return the rows of a finding that belong to its own sweep."""
    names = finding.claim.rows if isinstance(finding, RegisteredFinding) else (finding.sides[0].row, finding.other)
    return {row for row in names if "/" not in row}


def _section(file: Path, claims: Sequence[Claim | Registered], tested: Sequence[Tested]) -> str:
    """Write a sweep's findings column by column, then the claims that lack runs (by label) or an analysis."""
    parts, lines, left_out, waiting = [f"## {file.stem}"], [], {}, []
    with_runs = {finding.claim for each in tested for finding in each.findings if _has_runs(finding)}
    untested: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        if claim not in with_runs:
            home = claim.elsewhere if isinstance(claim, Registered) else ""
            untested.setdefault((home or file.stem, FULL), []).append(
                claim.text if isinstance(claim, Claim) else claim.sentence
            )
    for column in tested:
        lines += [(column.shown, *claim_line(finding)) for finding in column.findings if all(finding.seeds)]
        missing = [finding for finding in column.findings if not all(finding.seeds)]
        waiting += [
            f"* {finding.text[0].upper()}{finding.text[1:]}; {column.shown.strip('()')}; next: {_next(finding)}."
            for finding in missing
            if _has_runs(finding)
        ]
        if column.sweep != file.stem:
            continue
        missing = [finding for finding in missing if not _has_runs(finding)]
        names = names_at(file, column.scale)
        possible = [
            each for each in missing if not names or None not in (matching(row, names) for row in _rows_here(each))
        ]
        untested[file.stem, column.label] = [finding.text for finding in possible]
        left_out[column.scale] = [finding.text for finding in missing if finding not in possible]
    if lines:
        parts.append(
            markdown_table(Sheet("", ("runs", *CLAIM_HEADER), tuple(lines), CLAIM_NUMBERS).without_empty_columns())
        )
    for (sweep, label), texts in untested.items():
        options = [] if label == FULL else [label]
        command = " ".join([f"{program('train')} sweep={sweep}", *options, f"'seed=range({FEWEST_SEEDS})'"])
        if texts:
            parts.append(f"Without runs of both rows (`{command} dataset.root=DIR`): {'; '.join(texts)}.")
    parts += [
        f"About rows that scale={scale} leaves out: {'; '.join(texts)}." for scale, texts in left_out.items() if texts
    ]
    if waiting:
        parts.append("\n".join(["Waiting for an analysis:\n", *waiting]))
    return "\n\n".join(parts)
