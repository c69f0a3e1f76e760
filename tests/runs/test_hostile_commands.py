"""Every command on folders in which somebody has damaged or planted files: a line that names the file, or its work."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepnets.errors import UserError, system_message
from deepnets.extra.trackers import Entry
from deepnets.results.export import load_results
from deepnets.results.read import read_runs
from deepnets.runs.contents import Job, Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import WEIGHTS, RunFolder
from deepnets.runs.weights import read_weights, write_weights
from tests.command import row
from tests.runs.test_planted import RUN, call, replaced

pytestmark = pytest.mark.attack

FILES = [
    "config.yaml",
    "origin.json",
    "metrics.csv",
    "result.json",
    "status.json",
    "job.json",
    "checkpoint.pt",
    WEIGHTS,
]
COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "report": lambda sweep, out: ["report", str(sweep), "--output", str(out), "--csv", str(out / "a.csv")],
    "status": lambda sweep, out: ["report", str(sweep), "--status"],
    "keep": lambda sweep, out: ["report", str(sweep), "--keep", str(out)],
    "records": lambda sweep, out: ["report", str(sweep.parent), "--records"],
    "verify": lambda sweep, out: ["report", str(sweep), "--verify", str(out)],
    "compare": lambda sweep, out: ["report", "--compare", *(str(sweep / name) for name in ("good", "bad"))],
    "evaluate": lambda sweep, out: ["analyze", "evaluate", str(sweep / "bad" / "seed0")],
    "variability": lambda sweep, out: ["analyze", "variability", str(sweep)],
    "weights": lambda sweep, out: [
        "analyze", "evaluate", *RUN[:4], "--output", str(out), "--weights", str(sweep / "bad" / "seed0" / WEIGHTS)
    ],
    "export": lambda sweep, out: ["export", str(sweep / "bad" / "seed0"), "--to", str(out)],
    "predict": lambda sweep, out: ["predict", str(sweep / "bad" / "seed0"), str(out), "--to", str(out / "a.csv")],
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two seeds of a row each, which know their claims."""
    root = tmp_path_factory.mktemp("finished")
    for number, name in enumerate(("good", "bad")):
        folder = RunFolder(root / "records" / "table" / name / "seed0")
        config = row(root, *RUN, f"seed={number}").config
        folder.freeze(config, Origin(command="x", overrides=RUN, choices={"model": "digits_resnet"}, claims=[]))
        run(folder)
        Job.model_validate({"job": "7_0", "submitted": "2026-01-01T00:00:00+00:00"}).write(folder.path)
        write_weights(read_weights(folder.path), folder.path)
    return root / "records"


def tracked(sweep: Path, out: Path) -> None:
    """What `report --export` reads of each ended run, for any tracker."""
    for entry in (Entry(ended) for ended in read_runs([sweep]) if ended.error is not None):
        assert all(isinstance(value, float) for value in entry.results.values())
        assert all(isinstance(epoch, int) for epoch in entry.curves)
        assert entry.key not in (*entry.tags, *entry.parameters)
        assert len(entry.figures(out)) <= 1


def said_by(words: list[str]) -> str | None:
    """What the command says where it cannot do its work."""
    try:
        call(words)
    except UserError as error:
        return str(error)
    except OSError as error:
        if line := system_message(error):  # as `run_command` prints it
            return line
        raise
    return None


def attack(finished: Path, place: Path, attempts: int, seed: int) -> None:
    draw, victim = random.Random(seed), place / "victim"
    victim.write_text("theirs")
    for number in range(attempts):
        records, out = place / str(number) / "records", place / str(number) / "out"
        shutil.copytree(finished, records)
        out.mkdir()
        bad = records / "table" / "bad" / "seed0"
        name, file = draw.choice(list(COMMANDS)), bad / draw.choice(FILES)
        way = replaced(file, draw, victim)
        if file.name == WEIGHTS:  # read where there is no checkpoint
            (bad / "checkpoint.pt").unlink()
        said = said_by(COMMANDS[name](records / "table", out))
        assert said is None or ("\n" not in said.strip() and len(said) < 1000) or "damaged" in said, (name, file, said)
        assert victim.read_text() == "theirs", (name, file, way)
        assert len(load_results(records)) == 2
        tracked(records / "table", out)
        shutil.rmtree(place / str(number))


@pytest.mark.slow
def test_every_command_names_what_is_damaged(finished: Path, tmp_path: Path) -> None:
    attack(finished, tmp_path, attempts=25, seed=1)


@pytest.mark.nightly
def test_many_commands_name_what_is_damaged(finished: Path, tmp_path: Path) -> None:
    attack(finished, tmp_path, attempts=600, seed=2)
