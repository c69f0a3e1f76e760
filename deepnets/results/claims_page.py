"""The page of claims: what all papers claim, beside what the records say."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deepnets.config.claim import Claim, claims_of
from deepnets.results.claims import RULE, Finding, Outcome, findings_of
from deepnets.results.columns import FULL
from deepnets.results.export import markdown_table
from deepnets.results.published import SWEEPS, sweep_of
from deepnets.results.sheet import Sheet
from deepnets.results.sheets import CLAIM_HEADER, CLAIM_NUMBERS, claim_line
from deepnets.results.table import Table
from deepnets.runs.folder import RunFolder

ABOUT = """# Claims of the papers, tested

Written by `python scripts/report.py {folder} --records`. A sweep file states what its paper claims about its rows
(`sweep.claims`). Each line below is a claim about two rows, tested on the runs of one protocol. In brackets: runs at a
scale, on narrower nets or with fewer iterations than the paper's; they test the claim, not the paper's numbers."""


def claims_page(folder: Path, tables: Sequence[Table], sweeps: Path = SWEEPS) -> str:
    """Markdown: a section for each sweep of `sweeps` that has claims, with a line for each claim, pair and column.

    `tables` are those of the records in `folder`. Claims without runs are named with the command that trains them.
    """
    sections, outcomes, claimed = [], Counter[str](), 0
    for file in sorted(sweeps.glob("*.yaml")):
        if claims := claims_of(sweep_of(file)):
            of_sweep = [table for table in tables if table.name == file.stem and not table.trials]
            found = [
                (column.label, finding)
                for table in of_sweep
                for index, column in enumerate(table.columns)
                for finding in findings_of(table, index, sweeps)
                if any(finding.seeds)
            ]
            sections.append(_section(file, claims, found))
            outcomes.update(finding.outcome for _, finding in found if all(finding.seeds))
            claimed += len(claims)
    counted = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in Outcome)
    head = [ABOUT.format(folder=RunFolder(folder)), f"{claimed} claims; tested at a scale or in full: {counted}.", RULE]
    return "\n\n".join([*head, *sections]) + "\n"


def _section(file: Path, claims: Sequence[Claim], found: Sequence[tuple[str, Finding]]) -> str:
    """The findings of a sweep, each with the label of its column, and the claims that have none."""
    parts = [f"## {file.stem}"]
    if found:
        lines = tuple((f"({label})" if label != FULL else label, *claim_line(finding)) for label, finding in found)
        sheet = Sheet("", ("runs", *CLAIM_HEADER), lines, CLAIM_NUMBERS).without_empty_columns()
        parts.append(markdown_table(sheet))
    met = {finding.claim for _, finding in found}
    if missing := [claim.text for claim in claims if claim not in met]:
        command = f"python scripts/train.py sweep={file.stem} dataset.root=DIR"
        parts.append(f"Without a run (`{command}`): {'; '.join(missing)}.")
    return "\n\n".join(parts)
