"""`plan=true`: before any run starts, prints a sweep's rows, their cost on this device, and how much is finished."""

import csv
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Column, Table

from deepnets.config.build import build
from deepnets.config.schema import Config, Precision, Row
from deepnets.data.dataset import Dataset
from deepnets.errors import UserError, listed
from deepnets.launch.cost import Paces, makespan, seconds_of_seeds
from deepnets.launch.grid import Launcher, begun_runs, check_tables, launchable
from deepnets.launch.reuse import (
    before_claims,
    beside_other_code,
    beside_other_settings,
    claims_below,
    kept_by_queue,
    print_twins,
    trained_before,
    twins_of,
    use_chosen_code,
)
from deepnets.runs.checkpoint import LAST
from deepnets.runs.code import changed_files, code_of, code_to_execute, noted_code
from deepnets.runs.contents import Code, Unreadable
from deepnets.runs.folder import OtherSettings, RunFolder, lines_by_reason, remedies_of
from deepnets.runs.initial_weights import check_start
from deepnets.runs.naming import folders_of
from deepnets.runs.record import protocol_change, protocol_of
from deepnets.runs.status import UNREADABLE
from deepnets.system.files import LONGEST_METRICS, read_text
from deepnets.system.printing import as_text, console_for, print_line
from deepnets.training.checks import check_settings
from deepnets.training.hardware import choose_precision, describe, find_device, with_counted_devices
from deepnets.training.size import NetworkSize, size_of

FLOPS_PER_MAC = 2 * 3  # a multiply and an add; the backward pass costs twice the forward pass
TIMED = "timed"
ILLEGAL = "cannot start"
COPIED = "to copy"
QUEUED = "queued or running"  # in the launcher's queue, or in another process
SHORT_SECONDS = 60  # a shorter run is one whose start shows in the total
MOST_PROTOCOLS = 3
DEVICES = (1, 8, 64)  # the numbers of devices whose time is printed


def show_plan(rows: list[Row]) -> int:
    """Print the plan of these runs; do not train them or write to their folders.

    Returns the exit code: 1 if a run cannot start or lacks its data.
    """
    folders, first = folders_of(rows), rows[0].config
    claims_below.cache_clear()
    check_tables(rows, folders)
    launcher: Launcher = build("launcher", first.launcher)
    begun, queued = {folder for folder in folders if folder.has_begun}, list[RunFolder]()
    with suppress(UserError):  # SLURM does not answer, which `describe` says below
        begun, queued = begun_runs(launcher, first, folders)
    chosen = use_chosen_code(rows, folders, begun)
    paces = Paces(first.plan == TIMED)
    planned = []
    with Console(stderr=True).status("planning") as status:  # shown only on a terminal
        for number, (row, folder) in enumerate(zip(rows, folders, strict=True), start=1):
            status.update(as_text(f"planning {number}/{len(rows)} {folder}"))
            has_begun, is_queued = folder in begun, folder in queued
            planned.append(_plan(row.config, folder, launcher, paces, chosen.get(folder), has_begun, is_queued))
    twins = {} if first.overwrite else twins_of(rows, folders)
    twins = {folder: twin for folder, twin in twins.items() if not folder.has_begun}
    if first.reuse and not first.overwrite:
        planned = [
            replace(run, state=COPIED, left=0.0, seconds=0.0) if run.folder in twins and run.state != ILLEGAL else run
            for run in planned
        ]
    _print(first, planned)
    left = {run.folder: row.config for row, run in zip(rows, planned, strict=True) if run.left}
    if left and not any(run.state == ILLEGAL for run in planned):
        try:
            for line in launcher.describe(left):
                print_line(line)
        except UserError as error:  # SLURM does not answer: the plan holds, and the command without it would fail
            print_line(f"launcher   {error}")
    for line in remedies_of(filter(None, [run.error for run in planned]), [row.config for row in rows]):
        print_line(line)
    if first.overwrite and (there := [folder for folder in folders if folder.has_begun]):
        deleted = Counter("finished" if folder.is_complete else "unfinished" for folder in there)
        where = listed([folder.path.parent.name for folder in there])
        print_line(f"overwrite=true first deletes {deleted.total()} of these runs: {_counted(deleted)}, of {where}")
    changes = dict.fromkeys(run.changed for run in planned if run.changed)
    words = {folder: row.overrides for row, folder in zip(rows, folders, strict=True)}
    for files in changes:
        print_line(trained_before([run.folder for run in planned if run.changed == files], files, words))
    new_code = {run.folder: run.code for run in planned if run.left and run.code and run.folder not in queued}
    for line in (kept := kept_by_queue(queued)):
        print_line(line)
    if told := beside_other_code(new_code, queued, is_told=bool(changes or kept)):
        print_line(told)
    new = {run.folder for run in planned if run.state == "new"}
    pairs = list(zip(rows, folders, strict=True))
    told = beside_other_settings([pair for pair in pairs if pair[1] in new])
    for line in filter(None, (told, before_claims(pairs, new))):
        print_line(line)
    print_twins(twins, "" if first.reuse else "; reuse=true copies them")
    return 1 if any(run.problem for run in planned) else 0


@dataclass(frozen=True)
class Compute:
    """The cost of a whole run: the operations of its training, and an estimate of its seconds on this device.

    `seconds` is 0 if the configured device is not on this machine.
    """

    flops: float
    seconds: float


def compute_of(rows: Sequence[Row]) -> list[Compute]:
    """Return the compute of each row from its start, even if a part of it is trained already.

    Raises:
        UserError: a row cannot start or lacks its data.
    """
    launcher: Launcher = build("launcher", rows[0].config.launcher)
    paces = Paces(measure=False)
    compute = []
    for row, folder in zip(rows, folders_of(list(rows)), strict=True):
        planned = _plan(replace(row.config, overwrite=True), folder, launcher, paces)
        if planned.problem:
            raise UserError(f"{folder}: {planned.problem}")
        compute.append(Compute(planned.flops, planned.seconds))
    return compute


@dataclass(frozen=True)
class _Planned:
    """One run of the plan: its state and, if it is legal, its size, its cost and how much of it is left.

    `flops` count the whole training, without evaluations. `left` is the fraction that is not trained yet. It takes
    `seconds` on one device, 0 if nothing is left or the device is not on this machine; `spread` is the relative error
    of that time, None if the time is an estimate. The run uses `devices` devices and `memory` bytes on each, 0 if the
    memory was never measured. `problem` says which data it lacks, or why it cannot start: then it is the summary of
    `error`. A run that is not complete would execute `code` of the user's; `changed` names the files of it that have
    changed since a run finished. `protocol` is empty if the run is complete or cannot start.
    """

    folder: RunFolder
    state: str
    left: float
    size: NetworkSize | None = None
    flops: float = 0.0
    seconds: float = 0.0
    devices: int = 1
    memory: int = 0
    spread: float | None = None
    problem: str | None = None
    error: UserError | None = None
    code: Code | None = None
    changed: str = ""
    protocol: str = ""


def _plan(
    config: Config,
    folder: RunFolder,
    launcher: Launcher,
    paces: Paces,
    chosen: Code | UserError | None = None,
    has_begun: bool = False,
    is_queued: bool = False,
) -> _Planned:
    """Plan one run; `chosen` is as in `use_chosen_code`, `has_begun` and `is_queued` as in `begun_runs`."""
    state, size = _state(config, folder, is_queued), None
    is_complete = state not in ("new", "resumable", QUEUED)
    try:
        if isinstance(chosen, UserError):
            raise chosen
        folder.check(config)
        if has_begun and not is_queued and not is_complete and not config.overwrite:
            code_to_execute(folder, config, "code={}")
        code = code_of(config)
        code_hash = code.hash if code else None
        dataset, iterations = check_settings(config if is_complete else launchable(config, launcher), code_hash)
        size = size_of(config, dataset, code_hash)
        if not is_complete:
            check_start(config)
        epochs, images = _extent(config, dataset, iterations)
        has_trained = state != "new" and (folder.path / LAST).is_file()
        left = 0.0 if is_complete else 1 - (_trained(folder) / iterations if has_trained else 0.0)
        protocol = "" if is_complete else _protocol(config, dataset, iterations)
        planned = _Planned(folder, state, left, size, FLOPS_PER_MAC * size.macs * images, protocol=protocol)
        if is_complete:
            before = noted_code(folder) if code else None
            changed = changed_files(folder, before, code) if code and before else []
            return replace(planned, changed=", ".join(changed))
        missing = dataset.source.found.missing
        planned = replace(planned, problem=missing, code=code)
        if not _is_here(config.device):  # e.g. on a login node, whose CPU says nothing about the device
            return planned
        config = with_counted_devices(config)
        if not paces.measure and (each := seconds_of_seeds(folder, config)):
            return replace(planned, seconds=left * iterations * each, devices=config.devices)
        pace, is_measured = paces.of(config, dataset, size)
        tested = dataset.source.found.sizes[1]
        evaluated = epochs * (tested + dataset.validation) + dataset.final_passes * tested
        reading = 0.0 if missing else dataset.reading_seconds  # workers read while the device computes
        seconds = left * (images * max(pace.training, reading) + evaluated * max(pace.evaluation, reading))
        spread = pace.spread if is_measured else None
        return replace(planned, seconds=seconds, devices=config.devices, memory=pace.memory, spread=spread)
    except UserError as error:
        is_left = is_complete or is_queued
        if is_left and not isinstance(error, OtherSettings) and (folder.path / "config.yaml").is_file():
            return _Planned(folder, state, 0.0, size)
        return _Planned(folder, ILLEGAL, 1.0, size, problem=error.summary, error=error)


def _protocol(config: Config, dataset: Dataset, iterations: int) -> str:
    """Describe the run's protocol, with its arithmetic if the device is here, else with the configured one."""
    is_known = _is_here(config.device) or config.precision is not Precision.auto
    device = find_device(config.device) if _is_here(config.device) else torch.device("cpu")
    precision = choose_precision(config.precision, device) if is_known else f"precision {config.precision}"
    schedule = build("schedule", config.schedule, total=iterations)
    return protocol_of(config, schedule, iterations, ceil(dataset.training_size / config.batch_size), precision)


def _state(config: Config, folder: RunFolder, is_queued: bool) -> str:
    """Return `new`, `QUEUED`, `resumable`, or how a complete run ended: `finished` or `diverged`."""
    if config.overwrite:
        return "new"
    if result := folder.completed:
        return result.status
    if is_queued:
        return QUEUED
    return "resumable" if (folder.path / LAST).is_file() else "new"


def _extent(config: Config, dataset: Dataset, iterations: int) -> tuple[int, int]:
    """Return the number of epochs and of training images in this number of iterations.

    An incomplete epoch counts too, because it ends with an evaluation.
    """
    batches = ceil(dataset.training_size / config.batch_size)
    whole, rest = divmod(iterations, batches)
    return whole + (rest > 0), whole * dataset.training_size + rest * config.batch_size


def _trained(folder: RunFolder) -> int:
    """Return how many iterations the run has trained up to its last completed epoch."""
    file = folder.path / "metrics.csv"
    try:
        rows = list(csv.DictReader(read_text(file, LONGEST_METRICS).splitlines()))
        return int(rows[-1]["iteration"]) if rows else 0
    except FileNotFoundError:
        return 0
    except UNREADABLE as error:
        raise Unreadable(file, error) from error


def _print(config: Config, planned: list[_Planned]) -> None:
    console = console_for()
    table = Table(Column("row", overflow="fold"), box=None, pad_edge=False)
    for name in ("runs", "parameters", "MACs", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state")
    table.add_column("time left", justify="right", no_wrap=True)
    rows: dict[Path, list[_Planned]] = {}
    for run in planned:
        rows.setdefault(run.folder.path.parent, []).append(run)
    is_one_grid = len({row.parent for row in rows}) == 1
    for row, runs in rows.items():
        table.add_row(as_text(row.name if is_one_grid else f"{row.parent.name}/{row.name}"), *_cells(runs))
    console.print(table)
    console.print()
    together = Counter(run.state for run in planned)
    flops, left = sum(run.flops for run in planned), sum(run.flops * run.left for run in planned)
    lines = [f"runs       {len(planned)}: {_counted(together)}"]
    if flops:  # none if no run can start
        cost = f"{_pflop(flops)} PFLOP in all, {_pflop(left)} left: 2 x 3 x MACs x training images"
        lines += [*_times(planned, config), f"compute    {cost}", *_protocols(planned)]
    for line in lines:
        console.print(as_text(line), soft_wrap=True)
    _print_problems(console, planned)


def _times(planned: Sequence[_Planned], config: Config) -> list[str]:
    if not _is_here(config.device):
        return [f"time left  not measured: device={config.device} is not on this machine"]
    runs = [(run.seconds, run.devices) for run in planned if run.seconds]
    most = max((devices for _, devices in runs), default=1)
    # Of equal times, this keeps the one with the fewest devices.
    lengths = {makespan(runs, count): count for count in reversed(DEVICES) if count >= most}
    times = [f"{_duration(seconds)} on {count}" for seconds, count in reversed(lengths.items())]
    notes = ["assumes that devices=N is N times as fast"] * (most > 1)
    if config.launcher.get("stacked", 1) > 1:
        notes.append(f"one by one, not launcher.stacked={config.launcher['stacked']}")
    if any(run.seconds and run.spread is None for run in planned):
        notes.append(
            f"~ estimated from finished seeds, else from nets with layers like these; plan={TIMED} times each net"
        )
    if any(seconds < SHORT_SECONDS for seconds, _ in runs):
        notes.append("without what each run takes to start")
    device = describe(find_device(config.device))
    note = f" ({'; '.join(notes)})" if notes else ""
    return [f"time left  {', '.join(times) or f'for runs on {most} devices'} x {device}{note}"]


def _protocols(planned: Sequence[_Planned]) -> list[str]:
    """Describe the first protocol, then what others have instead of it; several protocols name their rows."""
    rows: dict[str, dict[str, None]] = {}
    for run in planned:
        if run.protocol:
            rows.setdefault(run.protocol, {})[run.folder.path.parent.name] = None
    first = next(iter(rows), "")
    lines = []
    for line, others in [*rows.items()][:MOST_PROTOCOLS]:
        change = protocol_change(line, first)
        text = f"the same, but {change}" if change else line.removeprefix("protocol: ")
        lines.append(f"protocol   {f'of {listed(others)}: ' * (len(rows) > 1)}{text}")
    return lines + [f"protocol   and {len(rows) - MOST_PROTOCOLS} more, of other rows"] * (len(rows) > MOST_PROTOCOLS)


def _cells(planned: list[_Planned]) -> tuple[str, ...]:
    """Return a row's cells after its name; `planned` are the row's seeds."""
    states = Counter(run.state for run in planned)
    size = next((run.size for run in planned if run.size), None)
    memory = max(run.memory for run in planned)
    seconds = sum(run.seconds for run in planned)
    return (
        str(len(planned)),
        f"{size.parameters:,}" if size else "",
        _macs(size.macs) if size else "",
        _bytes(memory) if memory else "",
        _counted(states) if len(states) > 1 else planned[0].state,
        _time(seconds, [run.spread for run in planned if run.seconds]),
    )


def _time(seconds: float, spreads: Sequence[float | None]) -> str:
    """Format a time with the largest spread of its measurements, or with ~ as an estimate."""
    if not seconds:
        return ""
    measured = [spread for spread in spreads if spread is not None]
    if len(measured) < len(spreads):
        return f"~ {_duration(seconds)}"
    return f"{_duration(seconds)} ± {max(1, round(100 * max(measured)))}%"


def _counted(states: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _print_problems(console: Console, planned: list[_Planned]) -> None:
    illegal = {run.folder: run.problem for run in planned if run.problem and run.state == ILLEGAL}
    lacking = {run.folder: run.problem for run in planned if run.problem and run.folder not in illegal}
    for problems, verb in ((illegal, "cannot start"), (lacking, "lack their data")):
        if problems:
            console.print(f"\n{len(problems)} of {len(planned)} runs {verb}:")
        for line in lines_by_reason(problems):
            console.print(as_text(line), soft_wrap=True)


def _is_here(device: str) -> bool:
    """Return whether this machine has the device."""
    try:
        find_device(device)
    except UserError:
        return False
    return True


def _pflop(flops: float) -> str:
    return f"{flops / 1e15:,.0f}" if flops >= 1e17 else f"{flops / 1e15:.3g}"


def _macs(macs: int) -> str:
    return f"{macs / 1e9:.2f}G" if macs >= 1e9 else f"{macs / 1e6:.2f}M"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _duration(seconds: float) -> str:
    """Format an estimated time in the largest unit that fits, with few digits."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"
