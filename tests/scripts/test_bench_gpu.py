"""`scripts/bench.py gpu`, as far as a CPU goes: its parts one by one, and how they are followed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.bench import gpu
from deepnets.bench.gpu import Found, Part, Unfinished, follow, parts_of, several, throughput, trained, waits
from deepnets.commands.bench import main
from deepnets.config.compose import compose
from deepnets.config.overruled import check_options
from deepnets.errors import UserError
from deepnets.runs.naming import folder_of
from tests.command import ROOT, row

TINY = ["dataset=synthetic", "dataset.source.train=64", "dataset.source.test=40", "batch_size=16", "device=cpu"]
NET = [*TINY, "model=resnet20", "model.depth=8", "model.widths=[4,4,4]"]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no GPU here"):
        main(["gpu", "--root", str(tmp_path), "--json", str(tmp_path / "gpu.json")])
    assert not (tmp_path / "gpu.json").exists()


def test_a_part_is_measured_once_and_stored_at_once(tmp_path: Path) -> None:
    file, asked = tmp_path / "gpu.json", []

    def part(name: str, ends: list[Found | Exception]) -> Part:
        def measure(seconds: float) -> Found:
            asked.append(name)
            stored = json.loads(file.read_text()) if file.is_file() else {}
            assert name not in stored
            end = ends.pop(0)
            if isinstance(end, Exception):
                raise end
            return end

        return Part(name, measure)

    too_long = subprocess.TimeoutExpired("x", 1)
    parts = [part("a", [{"n": 1}]), part("b", [Unfinished(), {"n": 2}]), part("c", [too_long]), part("d", [{"n": 4}])]
    assert not follow(parts, file, minutes=1)
    assert (asked, json.loads(file.read_text())) == (["a", "b"], {"a": {"n": 1}})
    assert follow(parts, file, minutes=1)
    assert asked == ["a", "b", "b", "c", "d"]
    assert json.loads(file.read_text())["c"] == {"absent": "takes more than 1 minutes"}
    assert follow(parts, file, minutes=1)
    assert len(asked) == 5
    file.unlink()
    assert not follow([part("e", [{}])], file, minutes=0)


def test_what_does_not_fit_into_the_rest_of_the_time_waits_for_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])

    def slow(seconds: float) -> Found:
        now[0] += seconds
        raise subprocess.TimeoutExpired("x", seconds)

    def quick(seconds: float) -> Found:
        now[0] += 30
        return {}

    parts = [Part("quick", quick), Part("slow", slow), Part("last", quick)]
    assert not follow(parts, tmp_path / "gpu.json", minutes=1)
    assert json.loads((tmp_path / "gpu.json").read_text()) == {"quick": {}}
    assert not follow(parts, tmp_path / "gpu.json", minutes=1)
    assert json.loads((tmp_path / "gpu.json").read_text()) == {
        "quick": {},
        "slow": {"absent": "takes more than 1 minutes"},
    }


@pytest.mark.parametrize("layout", gpu.LAYOUTS)
def test_training_is_timed_in_each_layout(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    convolve = torch.nn.Conv2d.forward

    def forward(conv: torch.nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.is_contiguous(memory_format=gpu.LAYOUTS[layout]))
        return convolve(conv, x)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", forward)
    found = throughput(layout, 2, NET, iterations=1)["images/s"]
    assert found.keys() == ({"training", "floor"} if layout == "channels_last" else {"training"})
    assert all(rate > 0 for rates in found.values() for rate in rates)
    assert all(seen)


def test_an_epoch_is_watched_for_waits() -> None:
    assert waits(NET) == {"waits": 0, "yields": 4 + 1}


def test_the_parts_stand_in_their_order(tmp_path: Path) -> None:
    parts = parts_of(["dataset=cifar10", f"dataset.root={tmp_path}"], tmp_path, 1, "cuda")
    names = [part.name for part in parts]
    assert len(names) == len(set(names)) == 56
    assert names[:3] == ["environment", "tests", "training resnet20 bf16 eager channels_last"]
    assert names[-1] == "full protocol resnet110 full_preactivation"
    for part in parts[-2:]:
        words, folder = part.measure.args
        run = compose(words)
        check_options(run)
        assert folder_of(run).path == folder.path
    assert gpu.environment()["torch"] == str(torch.__version__)


@pytest.mark.slow
def test_parts_in_processes_of_their_own(tmp_path: Path) -> None:
    assert gpu._child("waits", *NET, 120.0) == {"waits": 0, "yields": 5}
    assert "training" in gpu._child("throughput", "NCHW", "1", *NET, 120.0)["images/s"]
    assert "depth is 9" in gpu._child("waits", *NET, "model.depth=9", 120.0)["absent"]
    words = ["memory", "--model", "resnet20", "--modes", "full", "--iterations", "1", "--repeats", "1", "device=cpu"]
    assert len(gpu._bench(*words, 120.0)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_several_runs_at_once(tmp_path: Path, stacked: bool) -> None:
    found: dict[str, Any] = several(NET, tmp_path, 2, 120.0, stacked=stacked)
    assert len(found["images/s of each"]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_training_is_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    paced = ["schedule=cosine", "schedule._target_=tests.paced.Paced", "+schedule.name=a", "epochs=20"]
    config = row(tmp_path, *NET, *paced, "trusted_targets=[tests.paced.Paced]")
    words = [*config.overrides]
    (tmp_path / "slow").touch()
    with pytest.raises(Unfinished):
        trained(words, folder_of(config), gpu.SAVING_SECONDS + 30)
    (tmp_path / "slow").unlink()
    assert trained(words, folder_of(config), 200)["status"] == "finished"
    assert "resuming at iteration" in (folder_of(config).path / "log.txt").read_text()
