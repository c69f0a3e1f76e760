"""Reads run folders from disk, finished or not; a run whose files contradict each other gives no numbers."""

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from deepnets.config.build import TARGETS, build, check_types
from deepnets.config.identity import flat, identity, identity_hash, is_execution, upgrade
from deepnets.config.safe_yaml import LONGEST, plain_yaml
from deepnets.config.schema import Config, Scale, Selection
from deepnets.errors import UserError
from deepnets.runs.contents import DIVERGED, FAILED, FINISHED, Origin, Result, unpacked
from deepnets.runs.folder import RunFolder, folders_in
from deepnets.runs.log import TIME_COLUMNS
from deepnets.runs.record import errors_of
from deepnets.runs.status import UNREADABLE, State, in_a_line, read_states
from deepnets.schedule import end_epoch
from deepnets.system.files import LONGEST_METRICS, read_text
from deepnets.training.assembly import iterations_of

COLUMNS = ("epoch", "iteration", "learning_rate", "train_loss", "train_error", "test_loss", "test_error")
FACTS = {  # each fact that is checked, and the reason why it may be impossible to check
    "test error by image": "result.json has no test_right",
    "errors by epoch": "no readable metrics.csv",
    "number of epochs": "no readable metrics.csv, or no data.train in result.json",
    "learning rates": "no readable metrics.csv, no data.train, or the user's own schedule or optimizer",
    "identity": "result.json has none",
}
CONFIG = TypeAdapter(Config)
NOTED = ("beginning", "test_right")  # older results have neither
# Runs that differ only in these may still be equal bit by bit: the budget may be in epochs or in iterations.
ALIKE = {"epochs", "iterations", "scale.name", "scale.budget", "precision", "selection", "setting"}
# Equal too if no gradient is clipped, no image is missing, or two files hold the same weights.
ALIKE |= {"clip_gradient_norm", "dataset.incomplete", "weights_hash"}


@dataclass(frozen=True)
class Run:
    """One run: its settings, its origin, its result (empty until it ends), and what it is doing now.

    If a file cannot be read, its part is empty, and `unread` gives the file and the error. If files contradict each
    other, the run has neither result nor history, and `contradiction` says why.
    """

    folder: RunFolder
    config: dict[str, Any]
    origin: dict[str, Any]
    result: dict[str, Any]
    state: State
    unread: tuple[str, ...] = ()
    contradiction: str = ""

    @property
    def row(self) -> str:
        """The name of the row, which is the name of its folder."""
        return self.folder.path.parent.name

    @property
    def grid(self) -> Path:
        """The folder that holds all rows of the table."""
        return self.folder.path.parent.parent

    @property
    def table(self) -> str:
        """The sweep's name: the folder's name begins with it, unless the command named the folder (`name=`)."""
        noted = self.noted_sweep if self.config.get("name") else ""
        return noted or self.grid.name.split("+")[0]

    @property
    def noted_sweep(self) -> str:
        """The sweep's name in the run's origin; empty for a single run, and for a record whose folder tells it."""
        noted = str(self.options.get("sweep")) if self.sweep else ""
        return noted if re.fullmatch(r"\w[\w.-]*", noted) else ""

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def sweep(self) -> dict[str, Any]:
        """The configuration's node `sweep`, which has the `axes`; empty for single runs."""
        return self.config.get("sweep") or {}

    @property
    def error(self) -> float | None:
        """Final test error in percent; infinite if the run diverged, None if the run has no final error."""
        if self.state.name == DIVERGED:
            return math.inf
        return self.result.get("test_error") if self.state.name == FINISHED else None

    @property
    def has_ended(self) -> bool:
        """Whether the run finished or diverged, and its files do not contradict each other."""
        return self.state.name in (FINISHED, DIVERGED)

    @property
    def code(self) -> str:
        """The hashes of all versions of the user's code that trained the run, joined by commas, or an empty text."""
        return ", ".join(each["hash"] for each in (self.result.get("code") or {}).values())

    @property
    def options(self) -> dict[str, Any]:
        """The option chosen in each configuration group; empty if the run did not note its options."""
        chosen = self.origin.get("choices") or {}
        return {group: option for group, option in chosen.items() if not group.startswith("hydra/")}

    @cached_property
    def test_wrong(self) -> np.ndarray | None:
        """Which test images the run got wrong, (images,) bool.

        A run notes this after its last completed epoch, for one view. It is None if the run did not note it, or if
        `error` is of another epoch or view.
        """
        if "test_right" not in self.result or self.error is None:
            return None
        wrong = ~unpacked(self.result["test_right"], self.result["data"]["test"])
        return wrong if math.isclose(100 * wrong.mean(), self.error, abs_tol=1e-3) else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that can change the result, by dotted key, without the seed."""
        return {key: value for key, value in flat(self.config).items() if key != "seed" and not is_execution(key)}

    @property
    def experiment(self) -> str:
        """A hash of the identity without the seed, or the row's folder if config.yaml lacks keys."""
        return str(self.folder.path.parent) if _lacking(self) else identity_hash(replace(self.typed_config, seed=0))

    @cached_property
    def typed_config(self) -> Config:
        """The configuration as a typed object, without the sweep, which is no part of a run."""
        return CONFIG.validate_python(self.config | {"sweep": None})

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """The epochs in metrics.csv, without those that cannot be read; empty before the first epoch ends."""
        return [] if self.contradiction else self._metrics[0]

    @property
    def has_whole_history(self) -> bool:
        """Whether metrics.csv exists and each of its epochs can be read."""
        return (self.folder.path / "metrics.csv").exists() and not self._metrics[1]

    @property
    def broken(self) -> list[str]:
        """The files that cannot be read, or only in part, each with the reason."""
        return [f"{self.folder}/{what}" for what in (*self.unread, *self._metrics[1])]

    @cached_property
    def _metrics(self) -> tuple[list[dict[str, float]], list[str]]:
        epochs, wrong = [], []
        file = self.folder.path / "metrics.csv"
        try:
            lines = read_text(file, LONGEST_METRICS).splitlines()
            for number, epoch in enumerate(csv.DictReader(lines), 1):
                try:
                    epochs.append({name: float(value) for name, value in epoch.items() if value})
                except (ValueError, TypeError) as error:  # a word, or more values than columns
                    wrong.append(f"metrics.csv, epoch {number}: {in_a_line(error)}")
        except FileNotFoundError:
            return [], []
        except UNREADABLE as error:
            wrong.append(f"metrics.csv: {in_a_line(error)}")
        more = [f"metrics.csv: {len(wrong) - 1} more epochs"] * (len(wrong) > 1)
        return epochs, wrong[:1] + more


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs that `folders_in` finds; a run that contradicts itself or repeats another one loses its numbers.

    Raises:
        UserError: `folders_in` raises it.
    """
    runs = [_read(folder) for folder in folders_in(paths)]
    wrong = {run.folder: reason for run in runs if run.has_ended and (reason := next(_contradictions(run), ""))}
    wrong |= _repetitions([run for run in runs if run.has_ended and run.folder not in wrong])
    return [_without_numbers(run, wrong[run.folder]) if run.folder in wrong else run for run in runs]


def example(runs: Sequence[Run], key: Callable[[Run], float] | None = None) -> Run:
    """Choose the run that stands for the seeds of a row: the run with the median error, or with the median `key`.

    Of two runs in the middle it takes the worse. If no run has ended, it takes the run with the most epochs.
    """
    errors = [(run.error, run) for run in runs if run.error is not None]
    ended = [run for _, run in sorted(errors, key=lambda pair: key(pair[1]) if key else pair[0])]
    return ended[len(ended) // 2] if ended else max(runs, key=lambda run: len(run.history))


def unchecked(runs: Sequence[Run]) -> list[str]:
    """Say in how many ended runs each of `FACTS` cannot be checked, a line for each fact."""
    ended = [run for run in runs if run.has_ended]
    counts = Counter(fact for run in ended for fact in _unconfirmed(run))
    return [f"{fact}: {counts[fact]} of {len(ended)} runs ({FACTS[fact]})" for fact in FACTS if counts[fact]]


def _without_numbers(run: Run, contradiction: str) -> Run:
    return replace(run, result={}, state=State(FAILED, reason="contradicts itself"), contradiction=contradiction)


def _read(folder: RunFolder) -> Run:
    """Read a run; a broken file hides neither the other files nor the other rows."""
    unread: dict[str, str] = {}

    def tried(name: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return read()
        except UNREADABLE as error:
            unread[name] = f"{name}: {in_a_line(error)}"
            return {}

    config = tried("config.yaml", lambda: _parsed(read_text(folder.path / "config.yaml", LONGEST)))
    origin = tried(Origin.FILE, lambda: folder.origin.model_dump(exclude_unset=True))
    result = tried(Result.FILE, lambda: folder.result.model_dump(exclude_unset=True) if folder.result else {})
    if broken := [unread[name] for name in ("config.yaml", "result.json") if name in unread]:
        state = State(FAILED, reason=f"cannot be read: {'; '.join(broken)}")
    elif result.get("status") in (FINISHED, DIVERGED):  # the result alone tells the state
        state = State(result["status"])
    else:
        state = read_states([folder])[folder]  # SLURM is asked once for all queued runs
    return Run(folder, config, origin, result, state, tuple(unread.values()))


def _parsed(text: str) -> dict[str, Any]:
    """Parse a configuration part by part: rows share most parts, which are parsed only once."""
    config: dict[str, Any] = {}
    for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
        config |= _part(part)
    if not config:
        raise ValueError("config.yaml is empty")
    config = upgrade(config)
    check_types(config)
    return config


@cache
def _part(text: str) -> dict[str, Any]:
    part = plain_yaml(text) or {}
    if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
        raise ValueError("it does not map names to settings")
    return part


def _unconfirmed(run: Run) -> list[str]:
    if _lacking(run):
        return list(FACTS)
    lacking = (
        run.result["status"] == FINISHED and "test_right" not in run.result,
        not run.has_whole_history,
        not run.has_whole_history or _epoch_iterations(run) is None,
        not run.has_whole_history or None in (_epoch_iterations(run), _base_rate(run)),
        "identity" not in run.result,
    )
    return [fact for fact, is_lacking in zip(FACTS, lacking, strict=True) if is_lacking]


def _repetitions(runs: Sequence[Run]) -> dict[RunFolder, str]:
    """Find pairs of runs whose epochs are equal bit by bit although seed or settings differ; give both runs the reason.

    Nobody knows which of the two is the copy. If both note first iterations and test images, these must be equal too.
    """
    alike: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        if run.has_whole_history and run.history and not _lacking(run):
            values = [value for row in run.history for name, value in row.items() if name not in TIME_COLUMNS]
            alike[tuple(values)].append(run)
    repeated: dict[RunFolder, str] = {}
    for first, second in (pair for same in alike.values() for pair in combinations(same, 2)):
        noted = [entry for entry in NOTED if entry in first.result and entry in second.result]
        key = _difference(first, second)
        if key and all(first.result[entry] == second.result[entry] for entry in noted):
            for one, other in ((first, second), (second, first)):
                values = [flat(identity(run.typed_config)).get(key, "absent") for run in (one, other)]
                differing = f"{key} is {values[0]} here, {values[1]} there"
                repeated.setdefault(one.folder, f"all epochs equal those of {other.folder}, bit by bit; {differing}")
    return repeated


def _difference(first: Run, second: Run) -> str | None:
    """Return a setting that differs and must change the training (the seed, if it differs); None if there is none."""
    one, other = flat(identity(first.typed_config)), flat(identity(second.typed_config))
    targets = {(key, value) for each in (one, other) for key, value in each.items() if key.endswith("_target_")}
    own = {key.partition(".")[0] for key, value in targets if value not in TARGETS}  # these may ignore their settings
    keys = {key for key in {*one, *other} - ALIKE if key.partition(".")[0] not in own}
    return min((k for k in keys if one.get(k) != other.get(k)), key=lambda k: (k != "seed", k), default=None)


def _contradictions(run: Run) -> Iterator[str]:
    """Yield each contradiction between the files of an ended run, with both values."""
    name = run.folder.path.name
    if _lacking(run):
        if "identity" in run.result:
            yield f"identity is {run.result['identity']} in result.json, and config.yaml has no {_lacking(run)[0]}"
        return
    if re.fullmatch(r"seed\d+", name) and name != f"seed{run.typed_config.seed}":
        yield f"the folder is named {name}, config.yaml has seed {run.typed_config.seed}"
    try:
        yield from _wrong_images(run)
        yield from _wrong_errors(run)
        yield from _wrong_epochs(run)
    except UserError as error:  # no run can have trained with this configuration
        yield f"result.json is of a run that ended, and config.yaml cannot be trained: {error}"
    by_config = identity_hash(run.typed_config)
    if run.result.get("identity", by_config) != by_config:
        yield f"identity is {run.result['identity']} in result.json, {by_config} by config.yaml"


def _wrong_errors(run: Run) -> Iterator[str]:
    """Compare the errors in result.json with metrics.csv."""
    config, result = run.typed_config, run.result
    if not run.has_whole_history:
        return
    needed = (*COLUMNS, *["validation_error"] * (config.selection == Selection.best_validation))
    for number, row in enumerate(run.history, 1):
        if lacking := [column for column in needed if column not in row]:
            yield f"result.json is of a run that ended, and epoch {number} in metrics.csv has no {lacking[0]}"
            return
    for entry, value in errors_of(config, run.history, result["status"]).items():
        if result.get(entry, value) != value:
            source = "config.yaml" if entry == "selection" else "metrics.csv"
            yield f"{entry} is {result[entry]} in result.json, {value} by {source}"


def _wrong_images(run: Run) -> Iterator[str]:
    """Compare the errors in result.json with `test_right`, the images that were right after the last epoch."""
    result = run.result
    if result["status"] != FINISHED or "test_right" not in result or not (images := result["data"]["test"]):
        return
    right = int(unpacked(result["test_right"], images).sum())
    by_image = 100 * (images - right) / images
    errors = {"last_test_error": result.get("last_test_error"), "test_error": None}
    if run.typed_config.selection == Selection.final and "view" not in result:
        errors["test_error"] = result.get("test_error")
    for entry, error in errors.items():
        if error is not None and not math.isclose(error, by_image, abs_tol=1e-9):
            yield f"{entry} is {error}, but test_right has {right} of {images} images right, an error of {by_image:g}"


def _wrong_epochs(run: Run) -> Iterator[str]:
    """Compare epochs, iterations and learning rates with the budget and the schedule in config.yaml."""
    result, history, per_epoch = run.result, run.history, _epoch_iterations(run)
    if not run.has_whole_history or per_epoch is None:
        return
    total = iterations_of(run.typed_config, per_epoch)
    epochs, is_finished = math.ceil(total / per_epoch), result["status"] == FINISHED
    if len(history) != epochs if is_finished else len(history) >= epochs:
        yield f"{result['status']} with {len(history)} epochs in metrics.csv, {epochs} by config.yaml"
        return
    for number, row in enumerate(history, 1):
        place = (number, min(number * per_epoch, total))
        if (row["epoch"], row["iteration"]) != place:
            ending = f"epoch {row['epoch']:g} in metrics.csv ends at iteration {row['iteration']:g}"
            yield f"{ending}, epoch {place[0]} by config.yaml at {place[1]}"
            return
    # A run diverges within an epoch, or at its end before the epoch is written down.
    last, done = len(history), result.get("iterations", total)
    if result.get("epochs", last) != last if is_finished else result.get("epochs", last) not in (last, last + 1):
        yield f"epochs is {result['epochs']} in result.json, {last} in metrics.csv"
    if done != total if is_finished else not last * per_epoch < done <= min((last + 1) * per_epoch, total):
        yield f"iterations is {done} in result.json, {total} by config.yaml, after {last} epochs in metrics.csv"
    if (rate := _base_rate(run)) is None:
        return
    schedule = build("schedule", run.typed_config.schedule, total=total)
    for row in history:
        iteration, read = int(row["iteration"]), row["learning_rate"]
        by_schedule = rate * schedule(iteration - 1)
        if not math.isclose(read, by_schedule, rel_tol=1e-9, abs_tol=1e-12 * rate):
            yield f"learning_rate of epoch {row['epoch']:g} is {read} in metrics.csv, {by_schedule} by config.yaml"
            return
        errors = {split: row[f"{split}_error"] for split in ("train", "validation", "test") if f"{split}_error" in row}
        end_epoch(schedule, iteration, row["train_loss"], errors)


def _lacking(run: Run) -> list[str]:
    """Return the configuration keys that config.yaml lacks."""
    keys = [field.name for field in fields(Config) if field.name not in run.config]
    return keys + [f"scale.{field.name}" for field in fields(Scale) if field.name not in run.config.get("scale", {})]


def _epoch_iterations(run: Run) -> int | None:
    """Return the number of iterations in an epoch; None if the result does not note the number of training images."""
    images = run.result.get("data", {}).get("train")
    return math.ceil(images / run.typed_config.batch_size) if isinstance(images, int) and images > 0 else None


def _base_rate(run: Run) -> float | None:
    """Return the learning rate that the schedule scales; None if the user wrote the schedule or the optimizer."""
    optimizer, schedule = run.typed_config.optimizer, run.typed_config.schedule
    is_own = not {str(optimizer.get("_target_")), str(schedule.get("_target_"))} <= TARGETS
    return None if is_own or not isinstance(rate := optimizer.get("lr"), int | float) else rate
