"""Whether a run's files agree: its result, its epochs, its configuration, and those of the runs read with it."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations
from typing import Any

from pydantic import TypeAdapter

from deepnets.config.build import TARGETS, build
from deepnets.config.identity import flat, identity, identity_hash
from deepnets.config.schema import Config, Scale, Selection
from deepnets.errors import UserError
from deepnets.runs.contents import FINISHED, unpacked
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import TIME_COLUMNS
from deepnets.runs.record import errors_of
from deepnets.schedule import end_epoch
from deepnets.training.assembly import iterations_of

History = list[dict[str, float]]
COLUMNS = ("epoch", "iteration", "learning_rate", "train_loss", "train_error", "test_loss", "test_error")
FACTS = {  # that can be checked, and what is needed for it
    "test error by image": "result.json has no test_right",
    "errors by epoch": "no readable metrics.csv",
    "number of epochs": "no readable metrics.csv, or no data.train in result.json",
    "learning rates": "as the number of epochs, or a schedule or optimizer of a user's own",
    "identity": "result.json has none",
}
CONFIG = TypeAdapter(Config)
EVIDENCE = ("beginning", "test_right")  # older results have neither
# Two runs that differ in these alone may be trained alike, bit by bit: a budget in epochs or in iterations, ...
ALIKE = {"epochs", "iterations", "scale.name", "scale.budget", "precision", "selection", "setting"}
ALIKE |= {"clip_gradient_norm", "dataset.incomplete"}  # ... a norm that no gradient exceeds, a set that is whole


@dataclass(frozen=True)
class Files:
    """The files of a run that has ended, as they were read; `history` is None without a readable metrics.csv."""

    folder: RunFolder
    config: dict[str, Any]
    result: dict[str, Any]
    history: History | None

    @property
    def lacking(self) -> list[str]:
        """The keys of a configuration that config.yaml does not have."""
        keys = [field.name for field in fields(Config) if field.name not in self.config]
        return keys + [
            f"scale.{field.name}" for field in fields(Scale) if field.name not in self.config.get("scale", {})
        ]

    @cached_property
    def settings(self) -> Config:
        """The configuration, if it is not `lacking`, without the sweep, which is no part of a run."""
        return CONFIG.validate_python(self.config | {"sweep": None})

    @property
    def epoch_iterations(self) -> int | None:
        """Iterations of an epoch; None if the result does not note the number of training images."""
        images = self.result.get("data", {}).get("train")
        return math.ceil(images / self.settings.batch_size) if isinstance(images, int) and images > 0 else None

    @property
    def base_rate(self) -> float | None:
        """The learning rate without a schedule; None if schedule or optimiser are a user's own."""
        optimizer, schedule = self.settings.optimizer, self.settings.schedule
        is_own = not {str(optimizer.get("_target_")), str(schedule.get("_target_"))} <= TARGETS
        return None if is_own or not isinstance(rate := optimizer.get("lr"), int | float) else rate


def contradiction(files: Files) -> str:
    """The first contradiction among the files, with both values; empty if they agree or have nothing to compare."""
    return next(_contradictions(files), "")


def unchecked(runs: Sequence[Files]) -> list[str]:
    """A line for each of `FACTS` that cannot be checked in some runs, with their number."""
    counts = Counter(fact for files in runs for fact in _unconfirmed(files))
    return [f"{fact}: {counts[fact]} of {len(runs)} runs ({FACTS[fact]})" for fact in FACTS if counts[fact]]


def _unconfirmed(files: Files) -> list[str]:
    if files.lacking:
        return list(FACTS)
    lacking = (
        files.result["status"] == FINISHED and "test_right" not in files.result,
        files.history is None,
        files.history is None or files.epoch_iterations is None,
        None in (files.history, files.epoch_iterations, files.base_rate),
        "identity" not in files.result,
    )
    return [fact for fact, is_lacking in zip(FACTS, lacking, strict=True) if is_lacking]


def repetitions(runs: Sequence[Files]) -> dict[RunFolder, str]:
    """Name both folders of each pair that has equal epochs, bit by bit, under another seed or other settings.

    Nobody knows which one is the copy. First iterations and test images must be equal too, if both results note them.
    """
    alike: dict[Any, list[Files]] = defaultdict(list)
    for files in runs:
        if files.history and not files.lacking:
            values = [value for row in files.history for name, value in row.items() if name not in TIME_COLUMNS]
            alike[tuple(values)].append(files)
    repeated: dict[RunFolder, str] = {}
    for first, second in (pair for same in alike.values() for pair in combinations(same, 2)):
        noted = [entry for entry in EVIDENCE if entry in first.result and entry in second.result]
        key = _difference(first, second)
        if key and all(first.result[entry] == second.result[entry] for entry in noted):
            for one, other in ((first, second), (second, first)):
                there, here = (flat(identity(files.settings)).get(key, "absent") for files in (other, one))
                words = f"all epochs equal those of {other.folder}, bit by bit; {key} is {here} here, {there} there"
                repeated.setdefault(one.folder, words)
    return repeated


def _difference(first: Files, second: Files) -> str | None:
    """The first key, seed before all, whose values lead to different trainings; None if there is none."""
    one, other = flat(identity(first.settings)), flat(identity(second.settings))
    different = [key for key in {*one, *other} - ALIKE if one.get(key) != other.get(key)]
    return min(different, key=lambda key: (key != "seed", key), default=None)


def _contradictions(files: Files) -> Iterator[str]:
    name = files.folder.path.name
    if files.lacking:
        if "identity" in files.result:
            yield f"identity is {files.result['identity']} in result.json, and config.yaml has no {files.lacking[0]}"
        return
    if re.fullmatch(r"seed\d+", name) and name != f"seed{files.settings.seed}":
        yield f"the folder is named {name}, config.yaml has seed {files.settings.seed}"
    try:
        yield from _wrong_images(files)
        yield from _wrong_errors(files)
        yield from _wrong_epochs(files)
    except UserError as error:  # of a configuration that no run can have had
        yield f"result.json is of a run that ended, and config.yaml cannot be trained: {error}"
    here = identity_hash(files.settings)
    if files.result.get("identity", here) != here:
        yield f"identity is {files.result['identity']} in result.json, {here} by config.yaml"


def _wrong_errors(files: Files) -> Iterator[str]:
    """Compare the errors in result.json with metrics.csv."""
    config, result, history = files.settings, files.result, files.history or []
    needed = (*COLUMNS, *["validation_error"] * (config.selection == Selection.best_validation))
    for number, row in enumerate(history, 1):
        if lacking := [column for column in needed if column not in row]:
            yield f"result.json is of a run that ended, and epoch {number} in metrics.csv has no {lacking[0]}"
            return
    if files.history is not None:
        for entry, value in errors_of(config, history, result["status"]).items():
            if result.get(entry, value) != value:
                source = "config.yaml" if entry == "selection" else "metrics.csv"
                yield f"{entry} is {result[entry]} in result.json, {value} by {source}"


def _wrong_images(files: Files) -> Iterator[str]:
    """Compare the errors in result.json with the images that `test_right` says were right after the last epoch."""
    result = files.result
    if result["status"] != FINISHED or "test_right" not in result or not (images := result["data"]["test"]):
        return
    right = int(unpacked(result["test_right"], images).sum())
    by_image = 100 * (images - right) / images
    errors = {"last_test_error": result.get("last_test_error"), "test_error": None}
    if files.settings.selection == Selection.final and "view" not in result:
        errors["test_error"] = result.get("test_error")
    for entry, error in errors.items():
        if error is not None and not math.isclose(error, by_image, abs_tol=1e-9):
            yield f"{entry} is {error}, but test_right has {right} of {images} images right, an error of {by_image:g}"


def _wrong_epochs(files: Files) -> Iterator[str]:
    """Compare epochs, iterations and learning rates with the budget and the schedule in config.yaml."""
    result, history, each = files.result, files.history, files.epoch_iterations
    if history is None or each is None:
        return
    total = iterations_of(files.settings, each)
    epochs, is_finished = math.ceil(total / each), result["status"] == FINISHED
    if len(history) != epochs if is_finished else len(history) >= epochs:
        yield f"{result['status']} with {len(history)} epochs in metrics.csv, {epochs} by config.yaml"
        return
    for number, row in enumerate(history, 1):
        place = (number, min(number * each, total))
        if (row["epoch"], row["iteration"]) != place:
            there = f"epoch {row['epoch']:g} in metrics.csv ends at iteration {row['iteration']:g}"
            yield f"{there}, epoch {place[0]} by config.yaml at {place[1]}"
            return
    # A run diverges within an epoch, or at its end before the epoch is written down.
    last, done = len(history), result.get("iterations", total)
    if result.get("epochs", last) != last if is_finished else result.get("epochs", last) not in (last, last + 1):
        yield f"epochs is {result['epochs']} in result.json, {last} in metrics.csv"
    if done != total if is_finished else not last * each < done <= min((last + 1) * each, total):
        yield f"iterations is {done} in result.json, {total} by config.yaml, after {last} epochs in metrics.csv"
    if (rate := files.base_rate) is None:
        return
    schedule = build("schedule", files.settings.schedule, total=total)
    for row in history:
        iteration, here = int(row["iteration"]), row["learning_rate"]
        by_schedule = rate * schedule(iteration - 1)
        if not math.isclose(here, by_schedule, rel_tol=1e-9, abs_tol=1e-12 * rate):
            yield f"learning_rate of epoch {row['epoch']:g} is {here} in metrics.csv, {by_schedule} by config.yaml"
            return
        errors = {split: row[f"{split}_error"] for split in ("train", "validation", "test") if f"{split}_error" in row}
        end_epoch(schedule, iteration, row["train_loss"], errors)
