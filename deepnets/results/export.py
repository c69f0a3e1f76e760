"""The table of the paper and ours for other programs: CSV, Markdown, LaTeX."""

import csv
import io
import re
from collections.abc import Sequence

from deepnets.results.sheet import Sheet
from deepnets.results.sheets import result_sheets
from deepnets.results.table import Table

LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
    "∞": r"$\infty$",
    "<": "$<$",
    ">": "$>$",
}


def to_csv(tables: Sequence[Table]) -> str:
    """A line for each row of each column, errors in percent, unrounded; `inf` is a divergence."""
    text = io.StringIO()
    names = ["table", "column", "row", "n", "median", "low", "high", "mean", "std", "best"]
    names += ["published", "statistic", "difference", "verdict", "state", "errors"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for table in tables:
        for index, column in enumerate(table.columns):
            for row in table.rows:
                cell = table.cells[row, index]
                numbers = [cell.median, *(cell.interval or (None, None)), cell.mean, cell.std, cell.best]
                theirs = [cell.published.test_error, table.statistic if row in table.published else None]
                errors = " ".join(map(str, cell.errors))
                said = [cell.difference, cell.verdict, cell.remarks, errors]
                writer.writerow([table.name, column.label, row, len(cell.errors), *numbers, *theirs, *said])
    return text.getvalue()


def to_markdown(tables: Sequence[Table]) -> str:
    """A table for each column, with the rule of the verdicts below."""
    return "\n".join(
        _markdown(sheet.without_empty_columns()) for table in tables for sheet in result_sheets(table)
    ) + _notes(tables, "\n{}\n")


def to_latex(tables: Sequence[Table]) -> str:
    """A tabular with booktabs' rules for each column; needs `\\usepackage{booktabs}`."""
    return "\n".join(
        _latex(sheet.without_empty_columns()) for table in tables for sheet in result_sheets(table)
    ) + _notes(tables, "% {}\n")


def _markdown(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"

    rule = ["--:" if name in sheet.numbers else ":--" for name in sheet.header]
    lines = [f"**{sheet.title}**. {sheet.note}", "", line(sheet.header), line(rule), *map(line, sheet.lines)]
    return "\n".join(lines) + "\n"


def _latex(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return (
            "  " + " & ".join(re.sub(".", lambda found: LATEX.get(found[0], found[0]), cell) for cell in cells) + r" \\"
        )

    columns = "".join("r" if name in sheet.numbers else "l" for name in sheet.header)
    lines = [
        f"% {sheet.title}. {sheet.note}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"  \toprule",
        line(sheet.header),
        r"  \midrule",
        *map(line, sheet.lines),
        r"  \bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _notes(tables: Sequence[Table], form: str) -> str:
    return "".join(form.format(note) for note in dict.fromkeys(note for table in tables for note in table.notes))
