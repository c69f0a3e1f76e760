"""`scripts/bench.py gpu`, as far as a CPU goes: its parts one by one, and how they are followed."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from deepnets.bench import comparison
from deepnets.bench.comparison import Part, PartResult, Unfinished, follow
from deepnets.commands.bench import main
from deepnets.config.command_line import check_options
from deepnets.config.compose import compose
from deepnets.errors import UserError
from deepnets.extra import bench_gpu
from deepnets.extra.bench_gpu import (
    SAVING_SECONDS,
    analysed,
    at_once,
    parts_of,
    stopped_and_resumed,
    throughput,
    trained,
    waits,
)
from deepnets.runs.naming import folder_of
from tests.command import ROOT, row
from tests.paced import TRUST

TINY = ["dataset=synthetic", "dataset.source.train=64", "dataset.source.test=40", "batch_size=16", "device=cpu"]
NET = [*TINY, "model=resnet20", "model.depth=8", "model.widths=[4,4,4]"]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no GPU here"):
        main(["gpu", "--root", str(tmp_path), "--json", str(tmp_path / "gpu.json")])
    assert not (tmp_path / "gpu.json").exists()


def test_a_part_is_measured_once_and_stored_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison.time, "monotonic", lambda: 0.0)
    file, asked = tmp_path / "gpu.json", []

    def part(name: str, ends: list[PartResult | Exception]) -> Part:
        def measure(seconds: float) -> PartResult:
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
    monkeypatch.setattr(comparison.time, "monotonic", lambda: now[0])

    def slow(seconds: float) -> PartResult:
        now[0] += seconds
        raise subprocess.TimeoutExpired("x", seconds)

    def quick(seconds: float) -> PartResult:
        now[0] += 30
        return {}

    parts = [Part("quick", quick), Part("slow", slow), Part("last", quick)]
    short = Part("short", slow, limit=20)
    assert follow([Part("quick", quick), short], tmp_path / "limited.json", minutes=1)
    assert json.loads((tmp_path / "limited.json").read_text())["short"] == {"absent": "takes more than 0.333 minutes"}

    assert not follow(parts, tmp_path / "gpu.json", minutes=1)
    assert json.loads((tmp_path / "gpu.json").read_text()) == {"quick": {}}
    assert not follow(parts, tmp_path / "gpu.json", minutes=1)
    assert json.loads((tmp_path / "gpu.json").read_text()) == {
        "quick": {},
        "slow": {"absent": "takes more than 1 minutes"},
    }


@pytest.mark.slow
def test_training_is_timed_in_each_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, list[bool]] = {}
    convolve = torch.nn.Conv2d.forward

    def forward(conv: torch.nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        layout = torch.channels_last if conv.weight.is_contiguous(memory_format=torch.channels_last) else None
        seen.setdefault(id(conv), []).append(x.is_contiguous(memory_format=layout or torch.contiguous_format))
        return convolve(conv, x)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", forward)
    found = throughput(["eager channels_last", "graphed NCHW", "eager NCHW"], 1, 1, NET)
    assert found["images/s"].keys() == {"eager channels_last", "eager NCHW", "floor"}
    assert all(rate > 0 for rates in found["images/s"].values() for rate in rates)
    assert found["absent"] == {
        "graphed NCHW": "step=graphed: CUDA graphs need a GPU, the device is cpu; use step=eager or compiled"
    }
    assert len(seen) == 3 * 7
    assert all(all(calls) for calls in seen.values())


def test_an_epoch_is_watched_for_waits() -> None:
    assert waits(NET) == {"waits": 0, "yields": 4 + 1}


def test_the_parts_stand_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpu.json"
    parts = parts_of(["dataset=cifar10", f"dataset.root={tmp_path}"], file, 1, "cuda")
    names = [part.name for part in parts]
    assert len(names) == len(set(names)) == 42
    assert names[:5] == [
        *(
            "environment",
            "tests",
            "tests of compiled code",
            "the default, trained and analysed",
            "training resnet20 bf16",
        )
    ]
    assert names[-1] == "full protocol resnet110 full_preactivation"
    asked = []
    monkeypatch.setattr(bench_gpu, "trained", lambda words, folder, seconds: asked.append((words, folder, seconds)))
    rates = {
        "eager channels_last": [9.0, 1.0, 2.0],
        "graphed NCHW": [8.0],
        "graphed channels_last": [3.0],
        "floor": [7.0],
    }
    file.write_text(json.dumps({"training resnet110 bf16": {"images/s": rates}, "training resnet110 fp32": {}}))
    parts[-1].measure(60.0)
    ((words, folder, _),) = asked
    assert "step=graphed" in words
    run = compose([word for word in words if "device=" not in word and "step=" not in word])
    check_options(run)
    assert folder_of(run).path == folder.path
    assert bench_gpu.environment()["torch"] == str(torch.__version__)


@pytest.mark.nightly
def test_parts_in_processes_of_their_own() -> None:
    assert bench_gpu._steps("waits", *NET, 120.0) == {"waits": 0, "yields": 5}
    assert "eager NCHW" in bench_gpu._steps("throughput", "eager NCHW", 1, 1, *NET, 120.0)["images/s"]
    assert "depth is 9" in bench_gpu._steps("waits", *NET, "model.depth=9", 120.0)["absent"]
    words = ["memory", "--model", "resnet20", "--modes", "full", "--iterations", "1", "--repeats", "1", "device=cpu"]
    assert len(bench_gpu._bench(*words, 120.0)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_several_runs_at_once(stacked: bool) -> None:
    assert len(at_once([*NET, "epochs=3"], 2, 120.0, stacked=stacked)["images_per_second"]) == 2


@pytest.mark.nightly
def test_a_run_is_stopped_within_a_part_and_analysed() -> None:
    found = stopped_and_resumed([*NET, "epochs=40", "deterministic=true", "precision=fp32"], 120.0)
    assert found["equal"]
    assert 0 < found["resumed at"] < 160
    found = analysed([*NET, "epochs=1"], "cpu", 120.0)
    assert found.keys() == {"test_error", "seconds", "device", "precision", "lesion"}
    assert any("deleted" in line for line in found["lesion"])


@pytest.mark.nightly
def test_the_whole_command_but_its_long_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, with one small network in place of four: no part but what needs a GPU is absent.

    `bench.py ddp` of ResNet-110 takes too long on a CPU; tests/bench has it with a small network.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(bench_gpu, "MODELS", {"resnet20": 1})
    monkeypatch.setattr(bench_gpu, "COMPILING_SECONDS", 900.0)  # a CPU compiles for minutes
    file = tmp_path / "gpu.json"
    parts = [part for part in parts_of(TINY[:-1], file, 1, "cpu") if not part.name.startswith(("full", "two proc"))]
    assert follow(parts, file, 60)
    found = json.loads(file.read_text())
    absent = {name: part["absent"] for name, part in found.items() if part.get("absent")}
    graphs = [absent.pop(name) for name in list(absent) if "graph" in name or "training" in name]
    assert all("graph" in str(reason) for reason in graphs), graphs
    assert absent == {}


@pytest.mark.nightly
def test_a_training_is_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    paced = ["schedule=cosine", "schedule._target_=tests.paced.Paced", "+schedule.name=a", "epochs=20"]
    config = row(tmp_path, *NET, *paced)
    words = [TRUST, *config.overrides]
    (tmp_path / "slow").touch()
    with pytest.raises(Unfinished):
        trained(words, folder_of(config), SAVING_SECONDS + 30)
    (tmp_path / "slow").unlink()
    assert trained(words, folder_of(config), 200)["status"] == "finished"
    assert "resuming at iteration" in (folder_of(config).path / "log.txt").read_text()
