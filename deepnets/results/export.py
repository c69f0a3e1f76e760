"""Tables for other programs: CSV, Markdown, LaTeX."""

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
    """A line for each row of each column, in a search each trial: errors in percent, unrounded, `inf` if diverged.

    A text that a spreadsheet would take for a formula has an apostrophe before it, as is usual.
    """
    text = io.StringIO()
    names = ["table", "column", "row", "n", "median", "low", "high", "mean", "std", "best", "best_epochs", "training"]
    names += ["published", "statistic", "difference", "true_low", "true_high", "verdict", "state", "errors"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for table in [table.trials or table for table in tables]:
        for index, column in enumerate(table.columns):
            for row, cell in table.column(index).items():
                numbers = [cell.median, *(cell.interval or (None, None)), cell.mean, cell.std, cell.best]
                numbers += [cell.compared_median if cell.published.best_epochs else None, cell.train_median]
                statistic = table.published.statistic if row in table.published.rows else None
                judged = [cell.published.test_error, statistic, cell.difference]
                judged += [*(cell.true_difference or (None, None)), cell.verdict, cell.remarks]
                errors = " ".join(map(str, cell.errors))
                cells = [table.name, column.label, row, len(cell.errors), *numbers, *judged, errors]
                writer.writerow([_no_formula(cell) if isinstance(cell, str) else cell for cell in cells])
    return text.getvalue()


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def to_markdown(tables: Sequence[Table]) -> str:
    """A table for each column, with the rule of the verdicts below."""
    return "\n".join(map(markdown_sheets, tables)) + _notes(tables, "\n{}\n")


def markdown_sheets(table: Table) -> str:
    """The table alone, in Markdown."""
    return "\n".join(
        f"**{sheet.title}**. {sheet.note}\n\n{markdown_table(sheet.without_empty_columns())}\n"
        for sheet in result_sheets(table)
    )


def to_latex(tables: Sequence[Table]) -> str:
    """A tabular with booktabs' rules for each column; needs `\\usepackage{booktabs}`."""
    return "\n".join(
        _latex(sheet.without_empty_columns()) for table in tables for sheet in result_sheets(table)
    ) + _notes(tables, "% {}\n")


def markdown_table(sheet: Sheet) -> str:
    """Header and lines alone."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"

    rule = ["--:" if name in sheet.numbers else ":--" for name in sheet.header]
    return "\n".join([line(sheet.header), line(rule), *map(line, sheet.lines)])


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
