"""The page of claims: what all papers claim, beside what the records say."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deepnets.config.claim import Claim, claims_of
from deepnets.config.sweep_file import SWEEPS, sweep_of
from deepnets.results.claims import OTHER_DEPTH, RULE, Finding, Outcome, findings_of, is_of_other_depth
from deepnets.results.columns import FULL
from deepnets.results.export import markdown_table
from deepnets.results.sheet import Sheet
from deepnets.results.sheets import CLAIM_HEADER, CLAIM_NUMBERS, claim_line
from deepnets.results.table import Table
from deepnets.runs.folder import RunFolder

ABOUT = """# Claims of the papers, tested

Written by `python scripts/report.py {folder} --records`. A sweep file states what its paper claims about its rows
(`sweep.claims`). Each line below is a claim about two rows, tested on the runs of one protocol. In brackets: runs at a
scale, of the paper's depth, on narrower nets or with fewer iterations; they test the claim, not the paper's numbers."""


def claims_page(folder: Path, tables: Sequence[Table], sweeps: Path = SWEEPS) -> str:
    """Markdown: a section for each sweep of `sweeps` that has claims, with a line for each claim, pair and column.

    `tables` are those of the records in `folder`. What lacks runs is named with the command that trains it.
    """
    sections, outcomes, claimed = [], Counter[str](), 0
    for file in sorted(sweeps.glob("*.yaml")):
        if claims := claims_of(sweep_of(file)):
            of_sweep = [table for table in tables if table.name == file.stem and not table.trials]
            found = [
                (column.label, findings_of(table, index, sweeps))
                for table in of_sweep
                for index, column in enumerate(table.columns)
            ]
            tested = [(label, findings) for label, findings in found if any(all(each.seeds) for each in findings)]
            sections.append(_section(file, claims, tested))
            sections += [
                f"Not tested at {column.label}: {OTHER_DEPTH}."
                for table in of_sweep
                for index, column in enumerate(table.columns)
                if is_of_other_depth(table, index, sweeps)
            ]
            outcomes.update(finding.outcome for _, findings in tested for finding in findings if all(finding.seeds))
            claimed += len(claims)
    counted = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in Outcome)
    head = [ABOUT.format(folder=RunFolder(folder)), f"{claimed} claims; tested at a scale or in full: {counted}.", RULE]
    return "\n\n".join([*head, *sections]) + "\n"


def _section(file: Path, claims: Sequence[Claim], tested: Sequence[tuple[str, Sequence[Finding]]]) -> str:
    """The findings of a sweep by the label of their column; then, by label, what lacks the runs of a row."""
    parts, lines = [f"## {file.stem}"], []
    met = {finding.claim for _, findings in tested for finding in findings if all(finding.seeds)}
    untested = {FULL: [claim.text for claim in claims if claim not in met]}
    for label, findings in tested:
        shown = f"({label})" if label != FULL else label
        lines += [(shown, *claim_line(finding)) for finding in findings if all(finding.seeds)]
        untested[label] = [finding.text for finding in findings if not all(finding.seeds)]
    if lines:
        parts.append(markdown_table(Sheet("", ("runs", *CLAIM_HEADER), lines, CLAIM_NUMBERS).without_empty_columns()))
    for label, texts in untested.items():
        command = f"python scripts/train.py sweep={file.stem} {'' if label == FULL else label + ' '}dataset.root=DIR"
        if texts:
            parts.append(f"Without runs of both rows (`{command}`): {'; '.join(texts)}.")
    return "\n\n".join(parts)
