"""Trains a sweep of short runs on digits: some rows end; others diverge, fail, are killed, wait or do not exist."""

import json
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from deepnets.config.schema import Row
from deepnets.config.trust import trusting
from deepnets.launch.grid import launch
from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from deepnets.runs.naming import folder_of
from deepnets.runs.status import WAITING, state_of
from tests.command import ENVIRONMENT, ROOT, row

PACED = "tests.paced.Paced"
SEEDS = {"identity": 4, "none": 3, "scaled_0.5_0.5": 2, "projection": 3}
DIVERGING = "projection"
NAME = "shortcuts_on_digits"  # a user's own sweep; its file lies beside its runs


@dataclass(frozen=True)
class Trained:
    """The table's folder, and what its report said about the row exclusive_gating_b6 while its run trained."""

    path: Path
    in_flight: str

    def results(self, row: str) -> list[dict[str, Any]]:
        """Return result.json of the row's runs; the code under test does not read it."""
        return [json.loads(file.read_text()) for file in sorted((self.path / row).glob("seed*/result.json"))]

    def errors(self, row: str) -> list[float]:
        return [result["test_error"] for result in self.results(row) if result["status"] == "finished"]


def pretend(folder: Path, before: str, after: str) -> None:
    """Edit config.yaml as if the run had been trained so; delete the entries of its result that contradict that."""
    file, result = folder / "config.yaml", json.loads((folder / "result.json").read_text())
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    kept = {name: value for name, value in result.items() if name not in ("identity", "data", "test_right")}
    (folder / "result.json").write_text(json.dumps(kept))


def train_table(root: Path) -> Trained:
    """Train all rows, and kill the run of one."""
    (killed,) = _rows(root, "exclusive_gating_b6", schedule={"_target_": PACED, "name": "slow"})
    (waiting,) = _rows(root, "scaled_0.5_1")
    for frozen in (killed, waiting):
        folder_of(frozen).freeze(frozen.config, Origin())
    (root / "slow").touch()
    (root / "broken_dropout").touch()
    path = folder_of(killed).path.parents[1]
    with pytest.MonkeyPatch.context() as environment, trusting(PACED):
        environment.setenv("PACE", str(root))
        command = [sys.executable, "-m", "deepnets.run", str(folder_of(killed).path), f"--trust={PACED}"]
        process = subprocess.Popen(command, env={**ENVIRONMENT, "PACE": str(root)}, cwd=ROOT)
        rows = [each for name, seeds in SEEDS.items() for each in _rows(root, name, seeds)]
        rows += _rows(root, "dropout", schedule={"_target_": PACED, "name": "dropout"})
        try:
            _wait_for_training(folder_of(killed), process)
            (table,) = tables_of(read_runs([path]))
            in_flight = table.cells["exclusive_gating_b6", 0].remarks
        finally:
            process.kill()
            process.wait()
        assert launch(rows) == 1
    _age(folder_of(killed))
    assert state_of(folder_of(waiting)).name == WAITING
    path = path.rename(root / NAME)
    _publish(path)
    return Trained(path, in_flight)


def _rows(root: Path, shortcut: str, seeds: int = 1, schedule: dict[str, Any] | None = None) -> list[Row]:
    """Compose rows with settings as if from a sweep's file: typed ones would be part of the folder's name."""
    composed = row(root, "sweep=digits_shortcuts", f"model/shortcut={shortcut}", "device=cpu")
    composed.config.model |= {"depth": 8, "widths": [4, 4, 4]}
    composed.config.epochs = 2
    composed.config.schedule = schedule or composed.config.schedule
    if shortcut == DIVERGING:
        composed.config.optimizer["lr"] = 1e30
    rows = [deepcopy(composed) for _ in range(seeds)]
    for seed, each in enumerate(rows):
        each.config.seed = seed
    return rows


def _wait_for_training(folder: RunFolder, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while state_of(folder).progress is None:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _age(folder: RunFolder) -> None:
    """Make the last heartbeat two minutes old."""
    earlier = datetime.now(UTC) - timedelta(minutes=2)
    folder.status.model_copy(update={"heartbeat": earlier}).write(folder.path)


def _publish(path: Path) -> None:
    """Write a sweep's file whose paper prints, for the rows, numbers that lead to each verdict."""
    errors = {name: [run.error for run in read_runs([path / name])] for name in ("identity", "none")}
    reported = {
        "statistic": "median of 5",
        "test_error": {
            "identity": median(errors["identity"]),
            "none": min(errors["none"]) / 50,
            "projection": "fail",
            "scaled_0.5_0.5": 10.0,
            "exclusive_gating_b6": 8.70,
            "shortcut_only_gating_b6": 6.91,
            "dropout": None,
        },
        "mean": {"identity": 50.25},
        "std": {"identity": 0.16},
        "best": {"identity": 40.125},
    }
    sweep = {"axes": ["model/shortcut"], "reported": reported}
    (path / f"{path.name}.yaml").write_text(yaml.safe_dump({"sweep": sweep}, sort_keys=False))
