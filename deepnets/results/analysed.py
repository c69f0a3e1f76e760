"""Reads the numbers that registered claims take from the CSV files of `deepnets analyze`."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from deepnets.config.claim_test import Analysed, Column, Lines, nearest
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder
from deepnets.system.files import LONGEST, read_text

FUNCTIONS: dict[str, Callable[[pd.Series], pd.Series]] = {"log2": np.log2, "log10": np.log10, "abs": np.abs}
REDUCE: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
    "slope": lambda x, y: stats.linregress(x, y).slope,
    "tau": lambda x, y: stats.kendalltau(x, y).statistic,
    "pearson": lambda x, y: stats.pearsonr(x, y).statistic,
}


def analysed_number(folder: Path, of: Analysed) -> float | None:
    """Return the number that the analysis in `folder` measured; None if the analysis is missing or had other options.

    It is nan if it is undefined, as the logarithm of a negative number is.

    Raises:
        UserError: a file cannot be read, or the table has no such column or lines.
    """
    file = folder / of.file
    noted = noted_by(folder, of.analysis).get("options", {})
    if not file.is_file() or any(str(noted.get(name.replace("-", "_"))) != value for name, value in of.options):
        return None
    try:
        table = pd.read_csv(io.StringIO(read_text(file, LONGEST)))
    except (OSError, ValueError) as error:
        raise UserError(f"{RunFolder(file)}: cannot be read: {error}; delete it, or analyze again") from error
    if "run" in table and len(table):  # the first run is the folder's own; the analysis showed the others beside it
        table = table[table["run"] == table["run"].iloc[0]]
    number = _number(table, of, of.where, file)
    if of.minus:
        number -= _number(table, of, tuple((dict(of.where) | dict(of.minus)).items()), file)
    return number if math.isfinite(number) else math.nan


def noted_by(folder: Path, analysis: str) -> dict[str, Any]:
    """Return the options, findings and claims that an analysis noted in NAME.json; empty if the file is missing.

    Raises:
        UserError: the file cannot be read.
    """
    file = folder / f"{analysis}.json"
    try:
        noted = json.loads(read_text(file, LONGEST)) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{RunFolder(file)}: cannot be read: {error}; delete it, or analyze again") from error
    return noted if isinstance(noted, dict) else {}


def _number(table: pd.DataFrame, of: Analysed, lines: Lines, file: Path) -> float:
    for name, value in lines:
        column = _named(table, name, file)
        table = table[_numeric(column).between(*value) if isinstance(value, tuple) else column == value]
    if table.empty:
        raise UserError(f"{RunFolder(file)}: no line has {', '.join(f'{name} {value}' for name, value in lines)}")
    if of.by:
        _named(table, of.by, file)
        table = table.groupby(of.by, as_index=False).mean(numeric_only=True)
    with np.errstate(all="ignore"):  # numbers without a logarithm become nan
        columns = [_values(table, column, file).to_numpy() for column in of.columns]  # pandas would leave nan out
        return float(REDUCE[of.reduction](*columns))


def _values(table: pd.DataFrame, column: Column, file: Path) -> pd.Series:
    values = _numeric(_named(table, column.name, file))
    values = FUNCTIONS[column.function](values) if column.function else values
    return values if column.below is None else (values < column.below).astype(float)


def _named(table: pd.DataFrame, name: str, file: Path) -> pd.Series:
    if name not in table:
        raise UserError(f"{RunFolder(file)}: has no column {name}{nearest(name, [str(each) for each in table])}")
    return table[name]


def _numeric(column: pd.Series) -> pd.Series:
    return pd.to_numeric(column, errors="coerce")
