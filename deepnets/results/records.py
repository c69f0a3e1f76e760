"""Keeps records, the small files of ended runs that are committed beside the code, and writes pages about them."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from deepnets.config.claim import registered_on_file
from deepnets.config.identity import identity_hash
from deepnets.config.quantity import Analysed
from deepnets.config.safe_yaml import LONGEST
from deepnets.config.sweep import SWEEPS, sweep_of
from deepnets.errors import UserError, listed, printable
from deepnets.results.cell import Cell, hours_of
from deepnets.results.claims import has_claims
from deepnets.results.claims_page import PAGE_HEAD, claims_page
from deepnets.results.columns import frame_of, in_other_arithmetic
from deepnets.results.export import markdown_sheets
from deepnets.results.read import Run, read_runs, unchecked
from deepnets.results.registered import PLACES, analysed_number, noted_by
from deepnets.results.table import Table, tables_of
from deepnets.results.verify import Verifications, verified_line
from deepnets.runs.code import copy_code
from deepnets.runs.contents import Origin, Result, Unreadable
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.record import PART, protocol_change
from deepnets.system.files import LONGEST_METRICS, read_text, write_atomically, writing
from deepnets.system.printing import MINUS, markdown_text

ABOUT = "about.md"  # a hand-written text about a table; {{ table }} in it becomes the table's numbers
BENCH = "bench.json"  # the figures of scripts/bench.py, by what it measured
MOST_PROTOCOLS = 3  # that a line tells apart
ENTRIES = {"protocol", "device", "threads", "seconds"}  # the entries of result.json that the page shows


def keep(paths: Sequence[Path], into: Path) -> int:
    """Copy config.yaml, metrics.csv and result.json of the ended runs in `paths` to into/<sweep's folder>/<row>/<seed>.

    The analysis files from which claims take numbers, and notes of verifications, are copied too: notes that a record
    has already stay. A record names no folder of this machine. Reports
    read records as they read runs, and a record in an output root counts there as a finished run. A run with a file
    that is a link or cannot be read is not kept, but named. Returns 1 if there is such a run, else 0.

    Raises:
        UserError: a folder has no runs, the files of a run contradict each other, a record would replace another run's,
            or a file cannot be written.
    """
    runs = read_runs(paths)
    for run in runs:
        if run.contradiction:
            raise UserError(
                f"{run.folder}: contradicts itself: {run.contradiction}; restore the file that was changed, or train "
                "the run again"
            )
    refused = [reason for run in runs if (reason := _obstacle(run))]
    print(printable("".join(f"not kept     {reason}\n" for reason in refused)), end="")
    ended = [run for run in runs if run.has_ended and not _obstacle(run)]
    records: dict[Path, Run] = {}
    for run in ended:
        if "identity" not in run.result:
            raise UserError(
                f"{run.folder}: result.json does not say which run it belongs to (identity); train the run again"
            )
        folder = into / run.grid.name / run.row / run.folder.path.name
        other = records[folder].folder if folder in records else RunFolder(folder)
        existing = identity_hash(other.config) if (other.path / "config.yaml").is_file() else None
        if folder in records or existing not in (None, identity_hash(run.folder.config)):
            raise UserError(
                f"{run.folder}: its record would replace the record of another run, {other}; name another folder"
            )
        records[folder] = run
    for folder, run in records.items():
        with writing(into):
            _copy(run, folder)
    unfinished = len(runs) - len(ended) - len(refused)
    places = listed(str(RunFolder(folder.parents[1])) for folder in records) or RunFolder(into)
    print(
        printable(f"records      {len(ended)} runs in {places}" + (f"; not ended: {unfinished}" if unfinished else ""))
    )
    return 1 if refused else 0


def write_records(folder: Path, project_sweeps: Path | None = None) -> int:
    """Write the pages of `records_pages` into `folder` and print where they are; returns 0.

    Raises:
        UserError: `records_pages` raises it, or a file cannot be written.
    """
    pages = records_pages(folder, project_sweeps)
    for name, text in pages.items():
        with writing(folder / name):
            write_atomically(folder / name, printable(text))
        print(printable(f"page         {RunFolder(folder / name)}"))
    old = folder / "claims.md"
    if old.is_file() and old.name not in pages and old.read_text().startswith(PAGE_HEAD.partition("\n")[0]):
        old.unlink()  # its claims were about records that are gone
    if line := _uncounted(folder, project_sweeps or SWEEPS):
        print(printable(line))
    return 0


def _uncounted(folder: Path, sweeps: Path) -> str:
    """Say which sweeps with claims, whose files are beside their records, are not in `sweeps`; empty if all are."""
    files = {file.name: file for file in sorted(folder.glob("*/*.yaml")) if file.name != "config.yaml"}
    others = [file for name, file in files.items() if not (sweeps / name).is_file()]
    names = [file.stem for file in others if sweep_of(file).get("claims")]
    remedy = "--project FILE or --config-dir DIR adds" if sweeps == SWEEPS else f"{sweeps} does not have"
    return f"claims.md lacks the claims of {', '.join(names)}: {remedy} their sweep files." if names else ""


def records_pages(folder: Path, project_sweeps: Path | None = None) -> dict[str, str]:
    """Return the texts of README.md, claims.md (`claims_page`, if claims are about the records) and bench.md, by name.

    README.md has the text of `folder`/about.md or a title, how to read the tables, and a section for each table, sorted
    by name. A section is the table's about.md, a Jinja template that may call the functions of `numbers_of`; without
    that file, it is a heading and the table. The last section counts the facts that nothing in the records confirms. If
    `project_sweeps`, the folder of a project's sweep files, is given, the claims come from these files.

    Raises:
        UserError: there are no records, or an about.md names something that is not there.
    """
    if not folder.is_dir() or not (folders := run_folders(folder)):
        raise UserError(f"{folder}: no records; --keep DIR copies the records of ended runs there")
    places = sorted({run.grid for run in folders})
    within = [other for place in places for other in _beside(place)]
    runs = read_runs([folder])  # all at once, to find a copy in another table
    read = {grid: list(of_grid) for grid, of_grid in frame_of(runs).groupby("grid", sort=False)["run"]}
    tables = {
        place.name: tables_of(
            [run for part in (place, *_beside(place)) for run in read.get(part, [])], project_sweeps=project_sweeps
        )[0]
        for place in places
        if place not in within
    }
    named = sorted({*tables, *(file.parent.name for file in folder.glob(f"*/{ABOUT}"))})
    notes = dict.fromkeys(note for table in tables.values() for note in table.notes)
    sections = [_about(folder, "") or "# Results on record", "\n".join(f"* {note}" for note in notes)]
    sections += [_section(folder, name, tables.get(name)) for name in named]
    if lines := unchecked(runs):
        sections.append("\n".join(["## What cannot be checked", "", *(f"* {line}" for line in lines)]))
    page = "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"
    pages, sweeps = {"README.md": page}, project_sweeps or SWEEPS
    uncounted = _uncounted(folder, sweeps)
    if uncounted or any(has_claims(table, sweeps) for table in tables.values()):
        pages["claims.md"] = claims_page(folder, list(tables.values()), sweeps) + f"\n{uncounted}\n" * bool(uncounted)
    return pages | ({"bench.md": bench_page(folder / BENCH)} if (folder / BENCH).is_file() else {})


def bench_page(file: Path) -> str:
    """Return Markdown with every figure in `file`, which `scripts/bench.py WHAT --json` wrote, a section for each WHAT.

    Raises:
        UserError: the file cannot be read, or lacks an entry.
    """
    lines = [
        "# Measured speed and memory",
        "",
        "Written by `python scripts/report.py outputs/records --records` from `bench.json`, the measurements of",
        "`python scripts/bench.py WHAT --json FILE`. The candidates of a table took turns in one run on one",
        "machine, so compare them within a table only. A ratio is the first candidate's value divided by this one's,",
        "and ranges are over the repeats.",
    ]
    try:
        for what, measured in json.loads(read_text(file, LONGEST)).items():
            facts = (measured["device"], measured.get("processor"), f"{measured['threads']} threads")
            lines += ["", f"## {what}", "", ", ".join([*filter(None, facts), f"torch {measured['torch']}"]) + "."]
            for title, table in measured["tables"].items():
                lines += ["", f"### {title}", "", f"| | {table['unit']} | range | ratio | range |"]
                lines += ["| :-- | --: | --: | --: | --: |"]
                lines += [_bench_row(name, row) for name, row in table["candidates"].items()]
                remarks = [*(f"{name} is absent: {why}" for name, why in table["absent"].items()), *table["notes"]]
                lines += [*[""][: len(remarks)], *(f"* {remark[:1].upper()}{remark[1:]}." for remark in remarks)]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{file}: {type(error).__name__}: {error}; measure again with scripts/bench.py") from error
    return "\n".join(lines).rstrip() + "\n"


def _bench_row(name: str, row: dict[str, float]) -> str:
    values = (row[key] for key in ("median", "low", "high", "ratio_median", "ratio_low", "ratio_high"))
    value, low, high, ratio, lowest, highest = (f"{x:,.0f}" if x >= 1000 else f"{x:.4g}" for x in values)
    return f"| {name} | {value} | {low} to {high} | {ratio} | {lowest} to {highest} |"


def numbers_of(records: Path, here: str) -> SandboxedEnvironment:
    """Make a template environment with functions that read numbers from the records; `here` is the default `table`.

    `cell(row, column, table)` returns a cell's text as the table prints it, `result(row, key, seed, table)` a value of
    result.json, and `column(file, name, table, **where)` the numbers in a column of a CSV file, from the lines that
    have the values in `where`. The filters are `median`, `mean` and `number(digits)`.
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


def _obstacle(run: Run) -> str | None:
    """Name the first file of the run that cannot be kept, and why; None if all files can be kept."""
    if run.broken:
        return run.broken[0]
    try:
        Verifications.read(run.folder.path)
    except Unreadable as error:
        return str(error)
    missing = run.has_ended and not (run.folder.path / "metrics.csv").exists()
    return f"{run.folder}/metrics.csv: is missing" if missing else None


def _copy(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "metrics.csv", read_text(run.folder.path / "metrics.csv", LONGEST_METRICS))
    Result.model_validate(run.result).write(folder)
    copy_code(run.folder, folder.parents[1])
    if notes := Verifications.read(run.folder.path):
        kept = (Verifications.read(folder) or Verifications()).verifications
        new = [note for note in notes.verifications if note not in kept]
        Verifications(verifications=(*kept, *new)).write(folder)
    sweep = run.grid / f"{run.table}.yaml"  # the copy of the sweep's file
    if not (SWEEPS / sweep.name).is_file() and sweep.is_file() and not sweep.is_symlink():
        write_atomically(folder.parents[1] / sweep.name, _text(sweep, LONGEST))
    if run.table != run.grid.name.split("+")[0]:  # the folder's name does not tell the sweep, so the record notes it
        Origin(choices={"sweep": run.table}).write(folder)
    for of in {claim.test.of for _, claim in registered_on_file(SWEEPS) if claim.test}:
        if isinstance(of, Analysed):
            _copy_analysis(of, run.folder.path / "analysis", folder / "analysis")
    config = run.config | {"output_root": "outputs", "dataset": run.config["dataset"] | {"root": "data"}}
    if config.get("weights"):  # a path on this machine, like the two above; the weights' hash stays
        config["weights"] = Path(config["weights"]).name
    write_atomically(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))


def _copy_analysis(of: Analysed, source: Path, into: Path) -> None:
    """Copy the numbers and options of an analysis, but no option that names a place on this machine.

    Numbers that count for the claim are not replaced by those of an analysis with other options.
    """
    is_worse = analysed_number(source, of) is None and (into / of.file).is_file()
    if (source / of.file).is_file() and not is_worse and (noted := noted_by(source, of.analysis)):
        into.mkdir(exist_ok=True)
        write_atomically(into / of.file, _text(source / of.file, LONGEST_METRICS))
        noted["options"] = {name: value for name, value in noted["options"].items() if name not in PLACES}
        write_atomically(into / f"{of.analysis}.json", json.dumps(noted, indent=1, ensure_ascii=False) + "\n")


def _text(file: Path, longest: int) -> str:
    """Read a file that is kept with a run; raises UserError if it is no text or too long."""
    try:
        return read_text(file, longest)
    except ValueError as error:
        raise UserError(f"{file}: cannot be kept ({error}); correct it, or move it elsewhere") from error


def _table(place: Path) -> Table:
    return tables_of(read_runs([place, *_beside(place)]))[0]


def _beside(place: Path) -> list[Path]:
    """Find the same table's folders for other values of `precision`, except those with an about.md of their own."""
    return [other for other in in_other_arithmetic([place]) if not (other / ABOUT).is_file()]


def _section(folder: Path, name: str, table: Table | None) -> str:
    about = _about(folder, name, table=_table_text(table) if table else "")
    return about or f"## {markdown_text(name)}\n\n{_table_text(table) if table else ''}"


def _about(folder: Path, name: str, **values: str) -> str:
    file = folder / name / ABOUT
    if not file.is_file():
        return ""
    try:
        return numbers_of(folder, name).from_string(read_text(file, LONGEST)).render(values)
    except (TemplateError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{file}: {type(error).__name__}: {error}; correct it") from error


def _table_text(table: Table) -> str:
    """Return Markdown with a table's sweep file, protocol, seeds, hardware, warnings and numbers."""
    # Runs with a file that cannot be read, or an incomplete result, are left out; a warning below says so.
    runs = [run for column in table.columns for run in column.runs if run.config and run.result.keys() >= ENTRIES]
    file = SWEEPS / f"{table.name}.yaml"
    hours = sum(hours_of(run.result) for run in runs)
    facts = {
        "Protocol": _protocols(runs),
        "Sweep file": f"`conf/sweep/{file.name}`" if file.is_file() else "",
        "Runs": f"{len(runs)}, seeds {_listed(run.seed for run in runs)}, {hours:.2g} hours",
        "Hardware": _listed(_hardware(run.result) for run in runs),
        "Verified": verified_line(runs),
    }
    lines = "\n".join(f"* {name}: {markdown_text(text)}" for name, text in facts.items() if text and runs)
    warnings = "".join(f"\n* Warning: {markdown_text(warning)}" for warning in table.warnings)
    return f"{lines}{warnings}\n\n{markdown_sheets(table)}".strip()


def _protocols(runs: Sequence[Run]) -> str:
    """Give the most common protocol, and how that of other rows differs; of many, as in a search, only the number.

    Protocols of old versions, which lack the schedule, are left out.
    """
    counts = Counter(run.result["protocol"].removeprefix("protocol: ") for run in runs)
    facts = {protocol: set(PART.split(protocol)) for protocol in counts}
    whole = [protocol for protocol in counts if not any(_lacks(facts[protocol], other) for other in facts.values())]
    if not whole:
        return ""
    most = max(whole, key=counts.__getitem__)
    if len(whole) > MOST_PROTOCOLS:
        return f"{most}; one of {len(whole)}, see result.json for the others"
    text = most
    for other in whole:
        if other != most:
            rows = listed(run.row for run in runs if run.result["protocol"].removeprefix("protocol: ") == other)
            text += f"; {rows}: {protocol_change(other, most) or other}"
    return text


def _lacks(protocol: set[str], other: set[str]) -> bool:
    """Return whether the parts of a protocol are those of the other without a learning rate."""
    return protocol < other and any(part.startswith("learning rate") for part in other - protocol)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _hardware(result: dict[str, Any]) -> str:
    return f"{result['device']}, {result['threads']} thread{'s' * (result['threads'] > 1)}"


def _number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", MINUS)
