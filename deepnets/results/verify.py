"""Verifies records: trains their first iterations again, and compares the losses with the effect of rounding alone."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from deepnets.config.identity import identity_hash
from deepnets.config.project import git_commit
from deepnets.config.schema import Config, Precision
from deepnets.errors import UserError, brief, printable
from deepnets.results.published import Printed, true_difference
from deepnets.results.read import Run, read_runs, unchecked
from deepnets.results.statistics import FEWEST_SEEDS, WORST_ERROR, largest_gap
from deepnets.runs.code import code_to_execute
from deepnets.runs.contents import Origin, Result, RunFile
from deepnets.runs.execute import run as train
from deepnets.runs.folder import RunFolder, lines_by_reason
from deepnets.runs.initial_weights import start_from_weights, with_weights_from
from deepnets.runs.log import TIME_COLUMNS
from deepnets.runs.record import Evidence, data_of, differing
from deepnets.system.files import LONGEST, read_text, writing
from deepnets.training.assembly import dataset_of, prepare
from deepnets.training.fit import Training, fit
from deepnets.training.hardware import describe, find_device, processor_model

VERIFIABLE = {"beginning", "iterations", "data", "threads", "precision", "versions", "device", "processes"}
PRECISIONS = ("float32", "bfloat16")
MOVED = 12  # trainings with moved images, besides the one with the images as they are
SEPARATED = 0.01  # once rounding has moved a loss by this share of it, later losses show little
SAME_NAMES = "torch and the processor's name are the record's, but processors of one name may round differently"
SAME_PROCESSOR = "torch and the processor are the record's"


class Verification(BaseModel):
    """The outcome of a verification: the `loss` (from 1) that stands out most, its `gap` and the `allowed` gap in nats.

    `result` is the `checksum` of the verified result.json, so that a run trained again counts as not verified.
    `compared` is the number of losses; `device` and `versions` describe the machine that verified. If `is_whole`, the
    run was trained to its end: `compared` is the number of iterations, and `gap` the distance from the test error to
    the row's mean, in percent points.
    """

    model_config = ConfigDict(frozen=True)

    date: str
    commit: str | None
    versions: dict[str, str]
    device: str
    result: str
    compared: int
    is_equal: bool
    is_whole: bool = False
    loss: int | None = None
    gap: float | None = None
    allowed: float | None = None
    passed: bool


class Verifications(RunFile):
    """The file verifications.json: all verifications of a record that were noted, failed ones too."""

    FILE = "verifications.json"

    verifications: tuple[Verification, ...] = ()

    def with_one_more(self, verification: Verification) -> "Verifications":
        return Verifications(verifications=(*self.verifications, verification))


def verify(
    paths: Sequence[Path],
    root: str,
    note: bool = False,
    scratch: Path | None = None,
    weights: Sequence[Path] = (),
) -> int:
    """Train the first iterations of each record again, on the data in `root`, and print how they compare.

    If `scratch` is given, each record is trained in that folder from beginning to end and compared as `_verify_whole`
    says. On the record's processor, losses and weights are equal bit by bit; elsewhere `largest_gap` says how far the
    losses may differ. A processor's name does not tell its generation, so equal names do not require equal bits. A
    record that contradicts itself is not trained; a record that cannot be compared is named with the reason. A record
    that started from weights takes them from one of `weights`, runs or files. `note` adds each verdict to
    verifications.json beside the record. Returns 1 if not all are verified.

    Raises:
        UserError: a folder has no runs, no run can be compared, or a note cannot be read or written.
    """
    read = read_runs(paths)
    runs = [run for run in read if not run.contradiction]
    for run in read:
        if run.contradiction:
            print(printable(f"{run.folder}: contradicts itself: {run.contradiction}"))
    notes = {run.folder: Verifications.read(run.folder.path) or Verifications() for run in runs if note}
    reasons: dict[RunFolder, str] = {}
    has_failed = len(runs) < len(read)
    for run in runs:
        try:
            config, device = _here(run, root, weights)
            verification = _verify_whole(run, config, device, scratch) if scratch else _verify(run, config, device)
        except UserError as error:
            reasons[run.folder] = str(error)
            continue
        has_failed |= not verification.passed
        if note:
            with writing(run.folder.path):
                notes[run.folder].with_one_more(verification).write(run.folder.path)
    count = [f"{len(reasons)} of {len(runs)} runs cannot be compared:"] * bool(reasons)
    lines = [*count, *lines_by_reason(reasons)]
    if reasons and len(reasons) == len(runs):
        raise UserError("\n".join(lines))
    for line in (*lines, *(f"cannot be checked: {line}" for line in unchecked(runs))):
        print(printable(line))
    return int(has_failed or bool(reasons))


def verified_line(runs: Sequence[Run]) -> str:
    """Say how many of a table's runs were verified, on how many kinds of processor, and which failed; empty if none."""
    notes = {run.folder: _notes(run) for run in runs}
    passed = [note for run_notes in notes.values() for note in run_notes if note.passed]
    if not any(notes.values()):
        return ""
    verified = sum(any(note.passed for note in run_notes) for run_notes in notes.values())
    devices = sorted({note.device for note in passed})
    kinds = f", on {len(devices)} kind{'s' * (len(devices) > 1)} of processor ({', '.join(devices)})" if devices else ""
    failed = [
        f"{run.row}/{run.folder.path.name} differed on {note.device} ({note.date[:10]})"
        for run in runs
        for note in notes[run.folder]
        if not note.passed
    ]
    return f"{verified} of {len(runs)} runs{kinds}" + "".join(f"; {failure}" for failure in failed)


def checksum(run: Run) -> str:
    """Return sixteen hexadecimal digits (SHA-256) of the run's result.json."""
    return hashlib.sha256(read_text(run.folder.path / Result.FILE, LONGEST).encode()).hexdigest()[:16]


def _notes(run: Run) -> tuple[Verification, ...]:
    """Return the verifications of the run's result.json as it is now."""
    notes = Verifications.read(run.folder.path)
    return tuple(note for note in notes.verifications if note.result == checksum(run)) if notes else ()


def _verify(run: Run, config: Config, device: torch.device) -> Verification:
    """Train the first iterations of a record again, compare the losses, and print the outcome in a line.

    Raises:
        UserError: the record cannot be compared; the message gives the reason.
    """
    result = run.result
    torch.set_num_threads(result["threads"])
    beginning, precision = result["beginning"], getattr(torch, result["precision"])
    fresh = partial(_fresh, config, device, precision)
    now = _begun(fresh(), len(beginning["losses"]))
    changes = "; ".join(_changes(result, config.launcher, device))
    is_equal, gap, compared = now == beginning, None, len(beginning["losses"])
    if is_equal:
        text, passed = "equal bit by bit", True
    elif now["losses"] == beginning["losses"]:
        text, passed = "the losses are equal bit by bit, the weights after them are not", True
        text += "" if changes else f"; {_same(result)}"
    else:
        record, here = (np.array(losses, float) for losses in (beginning["losses"], now["losses"]))  # null is nan
        moved, ends = _moved(record, here, fresh)
        compared = moved.shape[1]
        gap = largest_gap(record[:compared], here[:compared], moved)
        passed = gap.gap <= gap.allowed
        text = f"loss {gap.loss} is apart by {gap.gap:.1e}, where rounding explains {gap.allowed:.1e}"
        text += "" if changes else f"; {_same(result)}"
        text += f"; the first {compared} are compared{ends}"
    iterations = f"the first {len(beginning['losses'])} of {result['iterations']} iterations"
    _say(run, passed, f"{iterations}, {text}", changes)
    outcome = {"compared": compared, "is_equal": is_equal, "passed": passed, **(gap._asdict() if gap else {})}
    return _verification(run, device, **outcome)


def _verify_whole(run: Run, config: Config, device: torch.device, scratch: Path) -> Verification:
    """Train a record from beginning to end in `scratch`, or resume there, and print how it compares.

    If `_changes` finds nothing and the first iterations are equal bit by bit, every epoch and the images that were
    right must be equal too; otherwise the final error must lie in the prediction interval of the row's seeds. If these
    are too few, the first iterations are tried before the record is trained.

    Raises:
        UserError: the record cannot be compared; the message gives the reason.
    """
    result = run.result
    folder = RunFolder(scratch / run.grid.name / run.row / run.folder.path.name)
    config = replace(
        config,
        precision=Precision.bf16 if result["precision"] == "bfloat16" else Precision.fp32,
        threads=result["threads"],
        devices=1,
        output_root=str(scratch),
    )
    if (folder.path / "config.yaml").is_file() and identity_hash(folder.config) != identity_hash(config):
        raise UserError(f"{folder} is another run; name another --scratch")
    changes = "; ".join(_changes(result, config.launcher, device))
    unequal = f"the first iterations are not equal bit by bit; {_same(result)}"
    errors = [each.error for each in read_runs([run.folder.path.parent]) if each.error is not None]
    few = f"and the row has {len(errors)} of {FEWEST_SEEDS} seeds, too few for an interval of its error"
    if len(errors) < FEWEST_SEEDS and not folder.is_complete:
        torch.set_num_threads(result["threads"])
        begun = _begun(_fresh(config, device, getattr(torch, result["precision"])), len(result["beginning"]["losses"]))
        if begun != result["beginning"]:
            raise UserError(f"bits cannot be equal ({changes or unequal}), {few}; it was not trained to its end")
    folder.freeze(config, Origin())
    train(folder)
    (again,) = read_runs([folder.path])
    if again.result["beginning"] != result["beginning"]:
        changes = changes or unequal
    is_equal = _bits(again) == _bits(run)
    if run.error is None or again.error is None:
        raise UserError("a result has no final error")
    gap = allowed = None
    if is_equal or not changes:
        passed, same = is_equal, "though torch, the device and the first iterations are the same"
        text = "every epoch is equal bit by bit" if is_equal else same
    else:
        error = min(again.error, WORST_ERROR)  # for a run that diverged
        if (interval := true_difference(errors, Printed(error))) is None:
            raise UserError(f"bits are not equal ({changes}), {few}")
        low, high = (error + side for side in interval)
        gap, allowed, passed = abs(error - (low + high) / 2), (high - low) / 2, low <= error <= high
        text = f"the interval of the row's {len(errors)} seeds is {low:.2f} to {high:.2f} %"
    both = f"error {run.error:.2f} % then, {again.error:.2f} % now"
    _say(run, passed, f"all {result['iterations']} iterations, {both}, {text}", changes)
    outcome = {"compared": result["iterations"], "is_equal": is_equal, "passed": passed, "gap": gap, "allowed": allowed}
    return _verification(run, device, is_whole=True, **outcome)


def _here(run: Run, root: str, weights: Sequence[Path]) -> tuple[Config, torch.device]:
    """Return a record's configuration for this machine's data and weights, and the device to train on.

    Raises:
        OtherCode: the user's own code has changed since the run began, and neither version was chosen.
        UserError: its result lacks the first iterations or other facts that are compared, the data differ, or no
            `weights` are those from which it started.
    """
    result, frozen = run.result, run.folder.config
    if not result.keys() >= VERIFIABLE:
        raise UserError("its result has no first iterations to compare with" if result else "it has not ended")
    if result["precision"] not in PRECISIONS:
        raise UserError(f"its result names an unknown precision, {brief(result['precision'])}")
    code_to_execute(run.folder, frozen)
    config = replace(frozen, dataset=frozen.dataset | {"root": root}, device="auto")
    config = with_weights_from(config, weights)
    device = find_device(config.device)
    if others := differing(result["data"], data_of(config, device)):
        raise UserError(f"it was trained on other data than those in {root}: {others}")
    return config, device


def _bits(run: Run) -> list[Any]:
    """Return everything that must be equal bit by bit when a run is trained again."""
    epochs = [{name: value for name, value in row.items() if name not in TIME_COLUMNS} for row in run.history]
    return [epochs, run.error, *(run.result.get(name) for name in ("beginning", "test_right"))]


def _say(run: Run, passed: bool, text: str, changes: str) -> None:
    print(printable(f"{run.folder}: {'verified' if passed else 'DIFFERS'}: {text}" + f" ({changes})" * bool(changes)))


def _verification(run: Run, device: torch.device, **outcome: Any) -> Verification:
    return Verification(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=git_commit(),
        versions={"torch": version("torch"), "numpy": version("numpy")},
        device=describe(device),
        result=checksum(run),
        **outcome,
    )


def _changes(result: dict[str, Any], launcher: dict[str, Any], device: torch.device) -> list[str]:
    """Say what has changed since the record was trained; any change excuses unequal bits."""
    then = {"torch": result["versions"].get("torch"), "device": result["device"]}
    now = {"torch": version("torch"), "device": describe(device)}
    if "processor" in result and device.type == "cpu":
        then["processor"], now["processor"] = result["processor"], processor_model()
    changes = [f"{name} {then[name]} then, {now[name]} now" for name in then if then[name] != now[name]]
    changes += ["trained by several processes"] * (result["processes"] != {"0": 1})
    return changes + ["trained in a stack"] * (launcher.get("stacked", 1) > 1)


def _same(result: dict[str, Any]) -> str:
    """Say what has not changed, where `_changes` finds nothing; older records do not tell a processor's generation."""
    return SAME_PROCESSOR if "processor" in result else SAME_NAMES


def _fresh(config: Config, device: torch.device, precision: torch.dtype) -> Training:
    """Build the training as it is before the first iteration."""
    training = prepare(config, device, precision)
    start_from_weights(training.model, config, dataset_of(config).classes)
    return training


def _begun(training: Training, count: int) -> dict[str, Any]:
    """Train the first `count` iterations, and return the entry `beginning` of a result.json."""
    evidence = Evidence()
    for state in fit(training):
        evidence.note(state)
        if training.iteration == count:
            break
    return evidence.facts()["beginning"]


def _moved_images(
    training: Training,
    batches: Callable[[int, int], Iterator[tuple[Tensor, Tensor]]],
    seed: int,
    epoch: int,
    start: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches, each pixel multiplied at random by 1 + eps or 1 - eps.

    1 + eps is the number next to 1 in the training's precision. Moving the weights by a rounding of float32 would
    change nothing in bfloat16. Changing the threads or the order of the images would do more than round in nets whose
    dropout or normalisation over parts of a batch depends on them.
    """
    draws = torch.Generator(training.device).manual_seed(seed)
    eps = torch.finfo(training.precision).eps
    for x, y in batches(epoch, start):
        yield x * (1 + eps * (2 * torch.empty_like(x).bernoulli_(0.5, generator=draws) - 1)), y


def _moved(record: np.ndarray, here: np.ndarray, fresh: Callable[[], Training]) -> tuple[np.ndarray, str]:
    """Train `MOVED` times with moved images; return the losses (MOVED, L), and a text on why there are only L.

    Losses are compared while they are finite in all trainings, up to the first one that rounding moves by `SEPARATED`.

    Raises:
        UserError: not even the first loss is finite in all trainings.
    """
    ends, runs = "", []
    if (count := int(np.append(np.isfinite(record + here), False).argmin())) < len(record):
        ends = ", as later ones are not finite"
    for seed in range(MOVED):
        training, losses = fresh(), []
        images = partial(_moved_images, training, training.batches.epoch, seed)
        training.batches.epoch = images  # type: ignore[assignment, method-assign]
        for _ in fit(training) if count else ():
            assert training.loss is not None
            losses.append(float(training.loss))
            unmoved = here[len(losses) - 1]
            if not math.isfinite(losses[-1]):
                losses.pop()
                count, ends = len(losses), ", as later ones are not finite"
            elif len(losses) < count and abs(losses[-1] - unmoved) > SEPARATED * abs(unmoved):
                count, ends = len(losses), f", as rounding alone moves loss {len(losses)} by more than {SEPARATED:.0%}"
            if len(losses) == count:
                break
        runs.append(losses)
    if not count:
        raise UserError("not even its first loss is finite, here or in the record")
    return np.array([losses[:count] for losses in runs]), ends
