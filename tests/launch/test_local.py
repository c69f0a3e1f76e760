"""Folders of a grid that are trained at once: what they leave behind, and what stops or fails among them."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from deepnets.config.schema import Config
from deepnets.config.trust import trust
from deepnets.launch.cost import seconds_of_seeds
from deepnets.launch.grid import launch
from deepnets.launch.local import groups_of, run_together
from deepnets.models.fully_connected import FullyConnected
from deepnets.models.shortcuts import Gated
from deepnets.monitor.dashboard import Dashboard
from deepnets.results.cell import hours_of
from deepnets.runs import checkpoint
from deepnets.runs.contents import Origin, Result, unpacked
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.record import state_checksum
from tests.command import metrics, row, start, train

NET = ["model=highway_fc10", "model.depth=4", "model.width=10", "optimizer=sgd", "device=cpu", "threads=1"]
SHORT = [*NET, "epochs=2", "precision=fp32"]
RATES = ("0.1", "0.05", "1e30", "0.2")
DIVERGING = 2


def frozen(path: Path, *overrides: str) -> RunFolder:
    folder = RunFolder(path)
    folder.freeze(row(path, *SHORT, *overrides).config, Origin())
    return folder


def search(root: Path, *overrides: str) -> list[RunFolder]:
    return [frozen(root / str(n), f"optimizer.lr={rate}", f"seed={n}", *overrides) for n, rate in enumerate(RATES)]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder.path)[0]["training"]["model"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    folders = search(tmp_path_factory.mktemp("alone"), "batch_size=20")
    for folder in folders:
        run(folder)
    return folders


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    folders = search(tmp_path_factory.mktemp("together"), "batch_size=20")
    endings = run_together(folders)
    assert endings == {folder: folder.result for folder in folders}
    return folders


@pytest.mark.slow
def test_each_folder_holds_what_its_run_alone_does(alone: list[RunFolder], together: list[RunFolder]) -> None:
    times = {"seconds", "own_seconds", "images_per_second", "identity", "beginning", "test_right", "weights_sha256"}
    for ours, theirs in zip(together, alone, strict=True):
        assert {file.name for file in ours.path.iterdir() if "tfevents" not in file.name} == {
            file.name for file in theirs.path.iterdir() if "tfevents" not in file.name
        }
        for mine, other in zip(metrics(ours.path), metrics(theirs.path), strict=True):
            assert {name: float(value) for name, value in mine.items()} == pytest.approx(
                {name: float(value) for name, value in other.items()}, rel=1e-3, abs=0.3
            )
            assert float(mine["train_loss"]) == pytest.approx(float(other["train_loss"]), rel=1e-4)
        errors = {name for name in Result.model_fields if "error" in name}
        first, second = (folder.result.model_dump(exclude=times | errors) for folder in (ours, theirs))
        assert first == second
        if ours.result.status == "finished":
            assert ours.result.weights_sha256 == state_checksum(weights(ours))
            losses = [folder.result.beginning.losses for folder in (ours, theirs)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-4)
            right = [unpacked(folder.result.test_right, 360) for folder in (ours, theirs)]
            assert np.mean(right[0] == right[1]) > 0.97
        assert "epoch 2/2" in (ours.path / "log.txt").read_text() or ours.result.status == "diverged"
        assert ours.status.state == "ended"


def test_a_row_diverges_where_it_does_alone(alone: list[RunFolder], together: list[RunFolder]) -> None:
    statuses = [folder.result.status for folder in together]
    assert statuses == ["finished", "finished", "diverged", "finished"]
    assert together[DIVERGING].result.iterations == alone[DIVERGING].result.iterations == 50


def test_a_row_that_leaves_disturbs_no_other_by_a_bit(together: list[RunFolder], tmp_path: Path) -> None:
    broken = search(tmp_path, "batch_size=20")
    (broken[1].path / "metrics.csv").mkdir()  # what is to be written there at an epoch's end cannot be
    endings = run_together(broken)
    assert isinstance(endings[broken[1]], Exception)
    assert broken[1].result.status == "failed"
    for place in (0, 3):
        assert metrics(broken[place].path) == metrics(together[place].path)
        for name, weight in weights(together[place]).items():
            assert torch.equal(weights(broken[place])[name], weight), name


def test_a_row_whose_events_cannot_be_written_disturbs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = search(tmp_path)[:3]

    def breaking(act: Callable[[Dashboard], None]) -> Callable[[Dashboard], None]:
        def act_or_fail(dashboard: Dashboard) -> None:
            if str(folders[1].path) in dashboard.writer.log_dir:
                raise OSError("no space left")
            act(dashboard)

        return act_or_fail

    for name in ("flush", "close"):  # TensorBoard's writer raises its first error again and again
        monkeypatch.setattr(Dashboard, name, breaking(getattr(Dashboard, name)))
    endings = run_together(folders)
    assert [isinstance(endings[folder], Result) for folder in folders] == [True, False, True]
    assert "no space left" in folders[1].result.reason


def test_a_locked_folder_is_left_to_who_has_it(tmp_path: Path) -> None:
    folders = search(tmp_path)[:3]
    with folders[1].hold():
        endings = run_together(folders)
    assert [isinstance(endings[folder], Result) for folder in folders] == [True, False, True]
    assert not (folders[1].path / "result.json").exists()


def test_a_row_elsewhere_in_its_training_is_left_out(tmp_path: Path) -> None:
    folders = search(tmp_path, "optimizer.lr=0.1")[:3]
    state = half_done(folders[1])
    assert state["training"]["iteration"] > 0
    endings = run_together(folders)
    assert set(endings) == {folders[0], folders[2]}
    assert checkpoint.load(folders[1].path)[0]["training"]["iteration"] == state["training"]["iteration"]


def half_done(folder: RunFolder) -> dict:
    """The state of a run stopped in its second epoch, as its folder then holds it."""
    run(folder)
    previous = checkpoint.load(folder.path)[0]
    previous["training"] |= {"iteration": 12, "epoch": 1, "batch": 0}
    previous["training"]["schedule"]["last_epoch"] = 12
    previous["history"] = previous["history"][:1]
    (folder.path / "result.json").unlink()
    checkpoint.save(folder.path, previous)
    return previous


def config_of(*overrides: str) -> Config:
    return row(Path("/nowhere"), *SHORT, *overrides).config


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["seed=3", "optimizer.lr=0.3", "optimizer.momentum=0.1", "model.shortcut.bias=-7"], None),
        (["schedule=cosine"], None),
        (["model.layer=[linear,tanh]"], "no other row"),
        (["model.depth=5"], "no other row"),
        (["batch_size=64"], "no other row"),
        (["epochs=3"], "no other row"),
        (["dataset.validation=10"], "no other row"),
        (["optimizer=adam"], "only SGD"),
        (["loss.smoothing=0.1"], "only runs of cross-entropy"),
        (["devices=2"], "only runs of one process"),
        (["model/shortcut=dropout"], "dropout drops different"),
    ],
)
def test_rows_are_grouped_by_what_they_compute(tmp_path: Path, overrides: list[str], reason: str | None) -> None:
    folders = [frozen(tmp_path / "a"), frozen(tmp_path / "b", *overrides), frozen(tmp_path / "c")]
    groups, alone = groups_of(folders, most=3)
    if reason is None:
        assert groups == [folders]
        assert not alone
    else:
        assert groups == [[folders[0], folders[2]], [folders[1]]]
        assert reason in alone[folders[1]]


class OwnNet(FullyConnected):
    """As a user may write one."""


class NoisyNet(FullyConnected):
    """Draws as it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x))


def test_networks_of_your_own_are_stacked_unless_they_draw(tmp_path: Path) -> None:
    targets = [f"{__name__}.{own.__name__}" for own in (OwnNet, NoisyNet)]
    folders = [frozen(tmp_path / str(n), f"model._target_={targets[n // 2]}", f"seed={n}") for n in range(4)]
    trust(targets)
    groups, alone = groups_of(folders, 2)
    assert groups == [folders[:2], [folders[2]], [folders[3]]]
    assert alone[folders[3]].startswith("NoisyNet: ")
    assert "random" in alone[folders[3]]


class OwnGate(Gated):
    """Adds its bias to the sum, so that runs with different biases compute different functions."""

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return super().forward(x, r) + self.bias


def test_the_bias_of_a_gate_of_your_own_may_be_part_of_what_it_computes(tmp_path: Path) -> None:
    own = f"model.shortcut._target_={__name__}.{OwnGate.__name__}"
    folders = [frozen(tmp_path / str(bias), own, f"model.shortcut.bias={bias}") for bias in (-1, -2)]
    trust([f"{__name__}.{OwnGate.__name__}"])
    groups, alone = groups_of(folders, 2)
    assert groups == [[folder] for folder in folders]
    assert alone[folders[0]].startswith("no other row")


def test_groups_have_at_most_so_many_rows_and_equal_iterations(tmp_path: Path) -> None:
    folders = [frozen(tmp_path / str(number), f"seed={number}") for number in range(5)]
    assert groups_of(folders, most=2)[0] == [folders[:2], folders[2:4], folders[4:]]
    assert groups_of(folders, most=1)[0] == [[folder] for folder in folders]
    half_done(folders[0])
    half_done(folders[3])
    checkpoint.save(folders[1].path, {"of": "another program"})  # as without one
    groups, alone = groups_of(folders, most=4)
    assert groups == [[folders[0], folders[3]], [folders[1], folders[2], folders[4]]]
    assert not alone


GRID = [
    "-m",
    *SHORT,
    "optimizer.lr=0.1,0.02",
    "seed=0,1",
    "batch_size=40",
    "launcher.stacked=10",
    "checkpoint_seconds=0",
]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("grid")
    done = train(*GRID, f"output_root={root}")
    assert done.returncode == 0, done.stderr
    assert "4 runs at once" in done.stdout
    return root


def folders_in(root: Path) -> list[Path]:
    return sorted(root.glob("runs/*/seed*"))


def assert_equal_grids(root: Path, reference: Path, exactly: bool) -> None:
    assert len(folders_in(root)) == 4
    for ours, theirs in zip(folders_in(root), folders_in(reference), strict=True):
        assert json.loads((ours / "result.json").read_text())["status"] == "finished"
        if exactly:
            assert metrics(ours) == metrics(theirs)
        tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-3, "atol": 2e-5}
        for name, weight in weights(RunFolder(theirs)).items():
            torch.testing.assert_close(weights(RunFolder(ours))[name], weight, **tolerance, msg=name)


@pytest.mark.slow
def test_the_same_command_finds_everything_finished(grid: Path) -> None:
    done = train(*GRID, f"output_root={grid}")
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs already finished" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_a_stopped_group_goes_on_to_the_same_bits(grid: Path, tmp_path: Path, by: signal.Signals) -> None:
    process = start(*GRID, f"output_root={tmp_path}")
    for line in process.stdout:
        if "epoch 1/2" in line:
            break
    process.send_signal(by)
    told, _ = process.communicate(timeout=60)
    assert not list(tmp_path.glob("runs/*/*/result.json"))
    if by == signal.SIGINT:
        assert process.returncode == 130
        assert "4 runs trained at once are saved" in told
        states = {json.loads((folder / "status.json").read_text())["state"] for folder in folders_in(tmp_path)}
        assert states == {"stopped"}
    done = train(*GRID, f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "resuming at iteration" in done.stdout
    # A kill may hit between the checkpoints of two rows, which then go on in other groups.
    assert by == signal.SIGKILL or "4 runs at once" in done.stdout
    assert_equal_grids(tmp_path, grid, exactly="4 runs at once" in done.stdout)


@pytest.mark.slow
def test_what_cannot_be_stacked_is_trained_alone_and_told(tmp_path: Path) -> None:
    few = [
        "-m",
        "model.depth=8",
        "model.widths=[2,2,2]",
        "model/shortcut=dropout",
        "epochs=null",
        "iterations=2",
        "seed=0,1",
        "launcher.stacked=4",
    ]
    done = train(*few, f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "stacked=4: every run is trained alone" in done.stdout
    assert "dropout drops different values in each network" in done.stdout
    assert done.stdout.count("finished") >= 2


def test_other_launchers_do_not_stack(tmp_path: Path) -> None:
    done = train(*SHORT, "launcher=pool", "launcher.stacked=2", f"output_root={tmp_path}")
    assert done.returncode == 1
    assert "launcher.stacked" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_grid_goes_on_behind_a_group_with_a_failure(tmp_path: Path) -> None:
    rows = [row(tmp_path, *SHORT, f"seed={seed}", "launcher.stacked=2") for seed in range(3)]
    first = tmp_path / "runs"
    launch(rows[:1])
    (folder,) = first.glob("*/seed0")
    assert RunFolder(folder).result.status == "finished"
    (folder.parent / "seed1").mkdir()
    (folder.parent / "seed1" / "metrics.csv").mkdir()
    assert launch(rows) == 1
    assert [RunFolder(folder.parent / f"seed{n}").result.status for n in range(3)] == [
        "finished",
        "failed",
        "finished",
    ]


def test_runs_of_a_stack_share_its_time(tmp_path: Path) -> None:
    rows = [row(tmp_path, *SHORT, f"seed={seed}", "launcher.stacked=2") for seed in range(3)]
    launch(rows)
    first, second, alone = (RunFolder(path) for path in folders_in(tmp_path))
    assert alone.result.own_seconds is None
    for folder in (first, second):
        assert folder.result.own_seconds == pytest.approx(folder.result.seconds / 2, abs=0.01)
    hours = [hours_of(json.loads((folder.path / "result.json").read_text())) for folder in (first, alone)]
    assert hours == pytest.approx([first.result.own_seconds / 3600, alone.result.seconds / 3600])
    # Only the run that trained alone tells how long another one would train.
    expected = alone.result.seconds / alone.result.iterations
    assert seconds_of_seeds(alone, rows[2].config) == pytest.approx(expected)


def test_shares_of_a_stack_in_which_a_run_diverges_add_up_to_its_time(tmp_path: Path) -> None:
    rows = [row(tmp_path, *SHORT, f"optimizer.lr={rate}", "launcher.stacked=2") for rate in ("0.01", "1e30")]
    launch(rows)
    diverged, finished = sorted((RunFolder(path).result for path in folders_in(tmp_path)), key=lambda run: run.status)
    assert (diverged.status, finished.status) == ("diverged", "finished")
    assert diverged.own_seconds + finished.own_seconds == pytest.approx(finished.seconds, abs=0.1)
    assert finished.own_seconds > finished.seconds / 2 + 0.01
