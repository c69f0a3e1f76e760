"""Writes results for other programs: pandas, CSV, Markdown, LaTeX."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from deepnets.config.claim import all_claims
from deepnets.config.project import read_project
from deepnets.config.sweep import NO_KEY, SWEEPS
from deepnets.results.cell import Net, final_loss
from deepnets.results.claims import findings_of
from deepnets.results.columns import axes_of_rows, choice_of, columns_of, frame_of, mixes_code, rows_by_versions
from deepnets.results.read import Run, read_runs
from deepnets.results.table import Table, result_sheets, tables_of
from deepnets.system.printing import NOTHING, Sheet, latex_table, markdown_table, markdown_text, setting_text

NAMES = ["sweep", "row", "seed", "folder"]
CLAIM = ["sweep", "column", "claim", "place", "first", "second", "seeds", "outcome", "difference"]
CLAIM += ["low", "high", "p_holm", "seen_before"]
ENTRIES = (
    *("test_error", "last_test_error", "best_test_error", "train_error", "validation_error"),
    *("seconds", "images_per_second", "parameters", "device", "precision", "threads", "commit"),
)


class Results(pd.DataFrame):
    """A row per run: sweep, row, seed, status, errors (percent), time, device, commit and folder; then every setting.

    `column` is the run's column of its `table` in the report, which averages no runs of several columns; `code` are the
    versions of your own code that trained it. `epochs` is a setting, `trained_epochs` says how many the run has
    trained.
    The column of an option has its group's name (`model/shortcut`), if the run noted it; the column of a value has its
    dotted key (`model.depth`). A selection such as `results[results.seed == 0]` has the curves and claims of its runs.
    """

    _metadata = ["_runs", "_project_sweeps"]  # noqa: RUF012 (as pandas reads it)
    _runs: dict[str, Run]
    _project_sweeps: Path | None

    @property
    def _constructor(self) -> Callable[..., "Results"]:
        return Results

    def __finalize__(self, other: Any, method: str | None = None, **keywords: Any) -> "Results":
        """Keep the runs of all results that `pandas.concat` joins; pandas itself keeps those of one."""
        parts = [part for part in getattr(other, "objs", ()) if isinstance(part, Results)]
        if method != "concat" or not parts:
            return super().__finalize__(other, method, **keywords)
        self._runs = {folder: run for part in parts for folder, run in part._runs.items()}
        self._project_sweeps = parts[0]._project_sweeps
        return self

    @property
    def curves(self) -> pd.DataFrame:
        """The metrics.csv of these runs, a row per epoch, with sweep, row, seed and folder."""
        names = frame_of(self._members())[NAMES].to_dict("records")
        histories = [run.history for run in self._members()]
        curves = pd.DataFrame([name | epoch for name, epochs in zip(names, histories, strict=True) for epoch in epochs])
        return curves.astype({key: int for key in ("epoch", "iteration") if key in curves})

    @property
    def claims(self) -> pd.DataFrame:
        """The claims in the sweeps' files, tested on these runs: a row per claim, pair of rows and protocol.

        `difference` is the first row's mean error minus the second's, in percent points; for a registered claim it is
        the number that the claim's test computes from the runs. `low` and `high` are its interval at the last look, and
        None before the first look.
        """
        lines: list[dict[str, Any]] = []
        for table in tables_of(self._members(), project_sweeps=self._project_sweeps):
            for index in range(len(table.columns)):
                for finding in findings_of(table, index, table.sweeps):
                    low, high = finding.interval or (None, None)
                    names = {"sweep": table.title(index), "column": table.columns[index].label}
                    names |= {"claim": finding.claim.text, "place": finding.claim.place}
                    rows = {"first": finding.sides[0].row, "second": finding.other, "seeds": finding.seeds}
                    answer = {"outcome": finding.outcome.value, "difference": finding.difference}
                    lines.append(
                        names
                        | rows
                        | answer
                        | {"low": low, "high": high, "p_holm": finding.p_holm, "seen_before": finding.seen_before}
                    )
        return pd.DataFrame(lines, columns=CLAIM)

    def _members(self) -> list[Run]:
        return [self._runs[folder] for folder in self["folder"]]


def load_results(*folders: str | Path, project: str | Path | None = None) -> Results:
    """Read the runs, or records, in and below these folders, as in `load_results("outputs/he2016_table1")`.

    `project` is the file of your own project, whose sweeps' published numbers and claims are read. Warnings name the
    rows whose seeds were trained by different versions of your own code, and rows that differ in such a version.

    Raises:
        UserError: a folder is missing, or has no run in it.
    """
    all_claims.cache_clear()  # a sweep's file may have been edited since this notebook read it
    runs = {str(run.folder): run for run in read_runs([Path(folder) for folder in folders])}
    frame = frame_of(list(runs.values()))
    options = read_project(project).options if project else None
    project_sweeps = options and options / "sweep"
    columns = []
    for name, members in frame.groupby("table", sort=False):
        files = [place / f"{name}.yaml" for place in (*filter(None, [project_sweeps]), SWEEPS)]
        columns += columns_of(members, next(filter(Path.is_file, files), None))
    labels = {run.folder: column.label for column in columns for run in column.runs}
    for row in [row for column in columns for row, members in column.rows.items() if mixes_code(members)]:
        warnings.warn(f"{row}: different versions of your own code trained it: see `code`", stacklevel=2)
    for line in [line for column in columns for line in rows_by_versions(column)]:
        warnings.warn(line, stacklevel=2)
    details = [{"column": labels[run.folder]} | _entries(run) | run.options | run.settings for run in runs.values()]
    lines = frame[[*NAMES, "table", "status", "reason"]].to_dict("records")
    results = Results([names | of_run for names, of_run in zip(lines, details, strict=True)])
    results._runs, results._project_sweeps = runs, project_sweeps
    return results


def to_csv(tables: Sequence[Table]) -> str:
    """Write a line for each row or trial of each column: errors in percent, unrounded, `inf` if diverged.

    The last columns are the groups and keys that name the rows, such as `model/shortcut`; a row without runs has no
    values there. For a random search, columns for the settings that its trials drew follow, and one for the training
    loss of the last epoch.
    """
    nets = [cell for table in tables if table.trials for cell in table.cells.values() if isinstance(cell, Net)]
    drawn = list(dict.fromkeys(key for net in nets for key in net.drawn))
    searches = [table.trials for table in tables if table.trials]
    tables = [table.trials or table for table in tables]
    runs = [run for table in tables for cell in table.cells.values() for run in cell.runs]
    axes = axes_of_rows(runs)
    lines = []
    names = ["table", "column", "row", "n", "median", "low", "high", "mean", "std", "best", "best_epochs", "training"]
    names += ["published", "statistic", "difference", "true_low", "true_high", "verdict", "state", "errors"]
    for table in tables:
        for index, column in enumerate(table.columns):
            for row, cell in table.column(index).items():
                choices = [choice_of(cell.runs[0], axis) if cell.runs else None for axis in axes]
                numbers = [cell.median, *(cell.interval or (None, None)), cell.mean, cell.std, cell.best]
                numbers += [cell.compared_median if cell.published.best_epochs else None, cell.train_median]
                statistic = table.published.statistic if row in table.published.rows else None
                judged = [cell.published.test_error, statistic, cell.difference]
                judged += [*(cell.true_difference or (None, None)), cell.verdict, cell.remarks]
                last = [" ".join(map(str, cell.errors)), *choices]
                if nets:
                    run = cell.runs[0] if cell.runs and table in searches else None
                    last += [run.settings.get(key) if run else None for key in drawn]
                    last += [final_loss(run) if run and run.has_ended else None]
                cells = [table.name, column.label, row, len(cell.errors), *numbers, *judged, *last]
                lines.append([no_formula(cell) if isinstance(cell, str) else cell for cell in cells])
    names += [*axes, *drawn, "train_loss"] if nets else axes
    return pd.DataFrame(lines, columns=names, dtype=object).to_csv(index=False)


def no_formula(text: str) -> str:
    """Return the text for a CSV file, with an apostrophe in front if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) and text != NO_KEY else text


def to_markdown(tables: Sequence[Table]) -> str:
    """Write a table for each column, and the rules of the verdicts below the tables."""
    return "\n".join(map(markdown_sheets, tables)) + _notes(tables, "\n{}\n")


def markdown_sheets(table: Table) -> str:
    """Write the table's sheets without the rules of the verdicts."""
    return "\n".join(
        markdown_text(f"**{sheet.title}**. {sheet.note}") + f"\n\n{markdown_table(sheet.without_empty_columns())}\n"
        for sheet in result_sheets(table)
    )


def to_latex(tables: Sequence[Table]) -> str:
    """Write a tabular for each column, with the rules of booktabs, and the notes as comments below.

    What names the rows has a column for each axis. The document needs `\\usepackage{booktabs}`.
    """
    sheets = [_with_axes(table, sheet) for table in tables for sheet in result_sheets(table)]
    return "\n".join(latex_table(sheet.without_empty_columns()) for sheet in sheets) + _notes(tables, "% {}\n")


def _with_axes(table: Table, sheet: Sheet) -> Sheet:
    """Replace the names of rows by a column for each axis in which they differ; the note says what all rows share.

    The sheet stays as it is if a row has no runs, whose name alone does not tell its choices, or is of a search.
    """
    runs = {row: cell.runs[0] for (row, _), cell in table.cells.items() if cell.runs}
    rows = [line[0] for line in sheet.lines]
    if table.trials or not {*rows} <= runs.keys():
        return sheet
    axes = axes_of_rows(runs[row] for row in rows)
    choices = {axis: [_cell(choice_of(runs[row], axis)) for row in rows] for axis in axes}
    differing = {axis: values for axis, values in choices.items() if len({*values}) > 1}
    if not differing:
        return sheet
    words = Counter(last := [re.split(r"[/.]", axis)[-1] for axis in differing])
    header = tuple(word if words[word] == 1 else axis for word, axis in zip(last, differing, strict=True))
    shared = ", ".join(f"{axis}={values[0]}" for axis, values in choices.items() if axis not in differing)
    names = zip(*differing.values(), strict=True)
    return replace(
        sheet,
        header=(*header, *sheet.header[1:]),
        lines=tuple((*name, *line[1:]) for name, line in zip(names, sheet.lines, strict=True)),
        note=f"{sheet.note} All rows: {shared}." if shared else sheet.note,
    )


def _cell(choice: Any) -> str:
    return NOTHING if choice is None else setting_text(choice)


def _entries(run: Run) -> dict[str, Any]:
    trained = {f"trained_{name}": run.result.get(name) for name in ("epochs", "iterations")}
    return {name: run.result.get(name) for name in ENTRIES} | trained | {"code": run.code}


def _notes(tables: Sequence[Table], form: str) -> str:
    return "".join(form.format(note) for note in dict.fromkeys(note for table in tables for note in table.notes))
