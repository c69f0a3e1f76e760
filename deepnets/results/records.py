"""The page of records: README.md of a folder of records, every number of it from the files beside it."""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from deepnets.config.sweep import SWEEPS
from deepnets.errors import UserError, printable
from deepnets.results.cell import Cell
from deepnets.results.claims_page import claims_page
from deepnets.results.columns import in_other_arithmetic
from deepnets.results.consistency import unchecked
from deepnets.results.export import markdown_sheets
from deepnets.results.read import Run, read_runs
from deepnets.results.sheet import MINUS
from deepnets.results.table import Table, tables_of
from deepnets.results.writing import writing
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.system.files import write_atomically

ENTRIES = {"protocol", "device", "threads", "seconds"}  # of result.json
ABOUT = "about.md"  # what a person writes about a table; {{ table }} is where its numbers stand


def write_records(folder: Path, own: Path | None = None) -> int:
    """Write the pages of `records_pages` into `folder` and print where they are; returns 0.

    Raises:
        UserError: as `records_pages`, or a file cannot be written.
    """
    for name, text in records_pages(folder, own).items():
        with writing(folder / name):
            write_atomically(folder / name, printable(text))
        print(printable(f"page         {RunFolder(folder / name)}"))
    return 0


def records_pages(folder: Path, own: Path | None = None) -> dict[str, str]:
    """The text of README.md and of claims.md (`claims_page`), by their names.

    README.md has what `folder`/about.md says, how to read the tables, and a section for each table by its name. A
    section is the table's about.md, a Jinja template with the functions of `numbers_of`, or a heading without one. The
    last section counts the facts that nothing in the records confirms. The claims are those of the sweep files in
    `own`, a project's, where it is named.

    Raises:
        UserError: there are no records, or an about.md names what is not there.
    """
    if not folder.is_dir() or not (folders := run_folders(folder)):
        raise UserError(f"{folder}: no records; --keep DIR copies those of ended runs there")
    places = sorted({run.path.parents[1] for run in folders})
    within = [other for place in places for other in _beside(place)]
    read: dict[Path, list[Run]] = defaultdict(list)
    for run in read_runs([folder]):  # all at once, which shows a copy in another table
        read[run.grid].append(run)
    tables = {
        place: tables_of([run for part in (place.resolve(), *_beside(place)) for run in read[part]], own=own)[0]
        for place in places
        if place.resolve() not in within
    }
    named = sorted({*tables, *(file.parent for file in folder.glob(f"*/{ABOUT}"))})
    notes = dict.fromkeys(note for table in tables.values() for note in table.notes)
    sections = [_about(folder, ""), "\n".join(f"* {note}" for note in notes)]
    sections += [_section(folder, place.name, tables.get(place)) for place in named]
    if lines := unchecked([run.files for runs in read.values() for run in runs if run.files]):
        sections.append("\n".join(["## What cannot be checked", "", *(f"* {line}" for line in lines)]))
    page = "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"
    return {"README.md": page, "claims.md": claims_page(folder, list(tables.values()), own or SWEEPS)}


def numbers_of(records: Path, here: str) -> SandboxedEnvironment:
    """Templates whose functions read numbers from the records; `table` is `here` where it is left out.

    `cell(row, column, table)`, a text of the table as it is printed; `result(row, key, seed, table)`, a value of
    result.json; `column(file, name, table, **where)`, numbers of a CSV file, of the lines that hold these values.
    Filters: `median`, `mean`, and `number(digits)`.
    """
    environment = SandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)

    def result(row: str, key: str, seed: int = 0, table: str = here) -> Any:
        (run,) = read_runs([records / table / row / f"seed{seed}"])
        if run.contradiction:
            raise ValueError(f"{run.folder} contradicts itself: {run.contradiction}")
        return run.result[key]

    @cache
    def cells(table: str) -> dict[str, Cell]:
        return _table(records / table).column(0)

    def cell(row: str, column: str, table: str = here) -> str:
        return cells(table)[row].facts()[column]

    def column(file: str, name: str, table: str = here, **where: str) -> list[float]:
        with (records / table / file).open() as lines:
            return [
                float(line[name])
                for line in csv.DictReader(lines)
                if line[name] and all(line[key] == str(value) for key, value in where.items())
            ]

    environment.globals |= {"cell": cell, "result": result, "column": column}
    environment.filters |= {"median": median, "mean": fmean, "number": _number}
    return environment


def _table(place: Path) -> Table:
    return tables_of(read_runs([place, *_beside(place)]))[0]


def _beside(place: Path) -> list[Path]:
    """The table's folders with `precision=` typed, but for those with an about.md, which are sections of their own."""
    return [other for other in in_other_arithmetic([place]) if not (other / ABOUT).is_file()]


def _section(folder: Path, name: str, table: Table | None) -> str:
    about = _about(folder, name, table=_table_text(table) if table else "")
    return about or f"## {name}\n\n{_table_text(table) if table else ''}"


def _about(folder: Path, name: str, **values: str) -> str:
    file = folder / name / ABOUT
    if not file.is_file():
        return ""
    try:
        return numbers_of(folder, name).from_string(file.read_text()).render(values)
    except (TemplateError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{file}: {type(error).__name__}: {error}; correct it") from error


def _table_text(table: Table) -> str:
    """Sweep file, protocol, seeds, arithmetic and the numbers."""
    # Of a file that cannot be read, or that lacks what a result has, a warning below says so.
    runs = [run for column in table.columns for run in column.runs if run.config and run.result.keys() >= ENTRIES]
    file = SWEEPS / f"{table.name}.yaml"
    hours = sum(run.result["seconds"] for run in runs) / 3600
    facts = {
        "Protocol": _several(run.result["protocol"].removeprefix("protocol: ") for run in runs),
        "Sweep file": f"`conf/sweep/{file.name}`" if file.is_file() else "",
        "Runs": f"{len(runs)}, seeds {_listed(run.seed for run in runs)}, {hours:.2g} hours",
        "Hardware": _listed(_hardware(run.result) for run in runs),
    }
    lines = "\n".join(f"* {name}: {text}" for name, text in facts.items() if text and runs)
    warnings = "".join(f"\n* Warning: {warning}" for warning in table.warnings)
    return f"{lines}{warnings}\n\n{markdown_sheets(table)}".strip()


def _several(protocols: Iterable[str]) -> str:
    """The one most runs have, with the number of others; earlier versions wrote fewer facts of the same one."""
    counts = Counter(protocols)
    facts = {protocol: set(protocol.split(", ")) for protocol in counts}
    whole = [protocol for protocol in counts if not any(facts[protocol] < other for other in facts.values())]
    if not whole:
        return ""
    most = max(whole, key=counts.__getitem__)
    return most + (f"; one of {len(whole)}, see result.json for the others" if len(whole) > 1 else "")


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _hardware(result: dict[str, Any]) -> str:
    return f"{result['device']}, {result['threads']} thread{'s' * (result['threads'] > 1)}"


def _number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", MINUS)
