"""The page of claims: what all papers claim, beside what the records say."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnets.config.claim import Claim, Measured, Relation, claims_of, registered_of
from deepnets.config.sweep import SWEEPS, names_at, sweep_of
from deepnets.results.claims import OTHER_DEPTH, findings_of, is_of_other_depth
from deepnets.results.columns import ARITHMETIC, FULL, Column, arithmetic_of
from deepnets.results.export import markdown_table
from deepnets.results.finding import RULE, Finding, Outcome
from deepnets.results.sheet import Sheet
from deepnets.results.sheets import CLAIM_HEADER, CLAIM_NUMBERS, claim_line
from deepnets.results.statistics import FEWEST_SEEDS
from deepnets.results.table import Table
from deepnets.runs.folder import RunFolder

OWN = "own setting"  # of a sweep that is no published table
ABOUT = f"""# Claims of the papers, tested

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


def claims_page(folder: Path, tables: Sequence[Table], sweeps: Path = SWEEPS) -> str:
    """Markdown: a section for each sweep of `sweeps` that has claims, with a line for each claim, pair and column.

    `tables` are those of the records in `folder`. What lacks runs is named with the command that trains it.
    """
    sections, outcomes, claimed, waiting = [], dict[Experiment, Outcome](), 0, 0
    for file in sorted(sweeps.glob("*.yaml")):
        sweep = sweep_of(file)
        claims, registered = claims_of(sweep), registered_of(sweep)
        if claims:
            of_sweep = [table for table in tables if table.name == file.stem and not table.trials]
            found = [(table, index) for table in of_sweep for index in range(len(table.columns))]
            labels = Counter(table.columns[index].label for table, index in found)
            columns = [_tested(table, index, sweeps, labels[table.columns[index].label] > 1) for table, index in found]
            tested = [column for column in columns if any(all(finding.seeds) for finding in column.findings)]
            sections.append(_section(file, claims, tested))
            shallow = [table.columns[index].label for table, index in found if is_of_other_depth(table, index, sweeps)]
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
    head = [ABOUT.format(folder=RunFolder(folder)), counts, RULE]
    return "\n\n".join([*head, *sections]) + "\n"


def _experiment(finding: Finding) -> Experiment:
    """What tells experiments apart: that a is lower than b says the same as that b is higher than a."""
    relation, rows = finding.claim.relation, (finding.first.identities, finding.second.identities)
    if relation is Relation.above:
        relation, rows = Relation.below, rows[::-1]
    return relation, finding.claim.error, *rows


def _tested(table: Table, index: int, sweeps: Path, is_shared: bool) -> Tested:
    """`is_shared`: another column of the sweep has the same label, so this one names its precision too."""
    column = table.columns[index]
    label = _label(column, is_shared)
    is_own = table.published.statistic == "none"
    words = [label] * (label != FULL) + [OWN] * is_own
    shown = label if column.is_published_protocol and not is_own else f"({', '.join(words)})"
    scale = next((run.settings.get("scale.name", FULL) for run in column.runs if run.config), FULL)
    return Tested(label, shown, scale, findings_of(table, index, sweeps))


def _label(column: Column, is_shared: bool) -> str:
    """As the command would say it."""
    options = {name: f"precision={option}" for option, name in ARITHMETIC.items()}
    words = [options.get(word, word) for word in column.label.split() if word != FULL]
    words += [
        options[name] for name in sorted({arithmetic_of(run) for run in column.runs} & options.keys())
    ] * is_shared
    return " ".join(dict.fromkeys(words)) or FULL


def _rows_here(finding: Finding) -> set[str]:
    """The rows of a finding that are its sweep's own."""
    return {row for row in (finding.first.row, finding.other) if "/" not in row}


def _section(file: Path, claims: Sequence[Claim], tested: Sequence[Tested]) -> str:
    """The findings of a sweep by the label of their column; then, by label, what lacks the runs of a row."""
    parts, lines = [f"## {file.stem}"], []
    met = {finding.claim for column in tested for finding in column.findings if all(finding.seeds)}
    untested = {FULL: [claim.text for claim in claims if claim not in met]}
    left_out = {}
    for column in tested:
        lines += [(column.shown, *claim_line(finding)) for finding in column.findings if all(finding.seeds)]
        missing = [finding for finding in column.findings if not all(finding.seeds)]
        names = names_at(file, column.scale)
        there = [finding for finding in missing if not names or _rows_here(finding) <= names]
        untested[column.label] = [finding.text for finding in there]
        left_out[column.scale] = [finding.text for finding in missing if finding not in there]
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
