"""plan=true: the grid, its cost and its state, before anything runs."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from PIL import Image

import tests.command
from deepnets.config.compose import register, typed
from deepnets.config.project import CONF
from deepnets.config.schema import Config
from deepnets.data.dataset import Dataset
from deepnets.launch import cost
from deepnets.launch.cost import Pace, Paces, _estimated, makespan
from deepnets.launch.grid import launch
from deepnets.launch.plan import show_plan
from deepnets.training.assembly import prepare
from deepnets.training.checks import check_settings
from deepnets.training.fit import fit
from deepnets.training.hardware import find_device
from deepnets.training.size import NetworkSize, _remembered, optimizer_key, passed, size_of
from tests.command import row, train

SMALL = ["model.depth=8", "model.widths=[4,8,16]", "epochs=2"]
GRID = ["-m", *SMALL, "seed=0,1,2"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where networks and paces are remembered, empty at first."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setitem(tests.command.ENVIRONMENT, "XDG_CACHE_HOME", str(folder))
    return folder / "deepnets"


def pace_of(config: Config, dataset: Dataset, size: NetworkSize) -> Pace:
    pace, is_measured = Paces(measure=True).of(config, dataset, size)
    assert is_measured
    return pace


def config(*overrides: str) -> Config:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("train", list(overrides)))


@pytest.mark.parametrize(
    ("overrides", "parameters", "millions"),
    [
        (["model=resnet20"], 269_722, 40.55),
        (["model=resnet56"], 853_018, 125.49),
        (["model=resnet110"], 1_727_962, 252.89),
        (["model=resnet110", "dataset=cifar100"], 1_733_812, 252.89),
        (["model=preact164"], 1_703_258, 244.5),
        pytest.param(["model=preact1001"], 10_327_706, 1487.8, marks=pytest.mark.slow),
    ],
)
def test_networks_cost_what_their_papers_architectures_cost(
    overrides: list[str], parameters: int, millions: float
) -> None:
    row = config("dataset=cifar10", "dataset.root=/nowhere", *overrides)
    dataset, _ = check_settings(row)
    size = size_of(row, dataset)
    assert size.parameters == parameters
    digits = len(str(millions).partition(".")[2])
    assert round(size.macs / 1e6, digits) == millions


def test_equal_architectures_are_timed_once_and_others_anew(cache: Path) -> None:
    paces, other_command = Paces(measure=True), Paces(measure=True)
    for shortcut in ("exclusive_gating_b0", "exclusive_gating_b6", "identity"):
        row = config(*SMALL, f"model/shortcut={shortcut}")
        dataset, _ = check_settings(row)
        pace, is_measured = paces.of(row, dataset, size_of(row, dataset))
        assert is_measured
        assert 0 < pace.evaluation < pace.training
    assert len(paces.stored) == 2
    assert Paces(measure=False).stored == paces.stored
    row = config(*SMALL, "model.depth=14")
    dataset, _ = check_settings(row)
    other_command.of(row, dataset, size_of(row, dataset))
    assert Paces(measure=False).stored.keys() > paces.stored.keys()
    (cache / "paces.json").write_text('{"a": 1}')
    assert Paces(measure=False).stored == {}


def test_what_was_never_measured_is_estimated_by_its_multiply_adds() -> None:
    paces = Paces(measure=False)
    costs = []
    for depth in (8, 14, 8):
        row = config(*SMALL, f"model.depth={depth}")
        dataset, _ = check_settings(row)
        size = size_of(row, dataset)
        costs.append((paces.of(row, dataset, size), size.macs))
    assert [is_measured for (_, is_measured), _ in costs] == [True, False, True]
    assert costs[0] == costs[2]
    (first, _), macs = costs[0]
    (second, _), more = costs[1]
    assert second.training == pytest.approx(first.training * more / macs)


def test_an_estimate_lies_between_the_paces_of_networks_of_finer_and_of_coarser_grain() -> None:
    timed, of_mac = Paces(measure=True), {}
    for widths in ("[4,8,16]", "[6,12,24]", "[5,10,20]"):
        row = config("model.depth=8", f"model.widths={widths}")
        dataset, _ = check_settings(row)
        is_between = widths == "[5,10,20]"
        pace, is_measured = (Paces(measure=False) if is_between else timed).of(row, dataset, size_of(row, dataset))
        assert is_measured != is_between
        of_mac[pace.grain] = pace.training / pace.macs
    fine, between, coarse = (of_mac[grain] for grain in sorted(of_mac))
    assert min(fine, coarse) * 0.999 <= between <= max(fine, coarse) * 1.001


def test_every_timed_training_step_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    made, modes = [], []
    prepared, timed = cost.prepare, cost._seconds
    monkeypatch.setattr(cost, "prepare", lambda *given: made.append(prepared(*given)) or made[-1])
    monkeypatch.setattr(cost, "_seconds", lambda act, device: timed(lambda: act() or modes.append(training()), device))

    def training() -> bool:
        return made[-1].model.training

    row = config(*SMALL)
    dataset, _ = check_settings(row)
    pace_of(row, dataset, size_of(row, dataset))
    assert modes == sorted(modes, reverse=True)  # first all training steps, then all evaluations
    assert sum(modes) >= 3
    assert not all(modes)


def test_the_time_of_a_multiply_add_is_estimated_so_that_it_never_rises_with_the_grain() -> None:
    measured = [(10, 4.0), (10, 1.0), (20, 3.0), (40, 1.0)]  # under several loads
    paces = [Pace(10 * seconds, seconds, 0, macs=10, grain=grain) for grain, seconds in measured]
    fitted = {grain: _estimated(paces, 1, grain).training for grain in (5, 10, 14, 20, 28, 40, 80)}
    assert list(fitted.values()) == sorted(fitted.values(), reverse=True)
    assert _estimated(paces[::-1], 1, 14) == _estimated(paces, 1, 14)
    assert fitted[10] == pytest.approx((2.0 * 3.0) ** 0.5)
    assert fitted[80] == pytest.approx(1.0)
    assert _estimated(paces, 7, 80).evaluation == pytest.approx(7 * 0.1)


@pytest.mark.parametrize("changes", [["model.widths=[16,16,16]"], ["model.depth=26", "model.widths=[2,4,8]"]])
def test_a_network_of_thinner_or_wider_layers_is_measured_itself(changes: list[str]) -> None:
    paces = Paces(measure=False)
    measured = []
    for words in ([], ["model.depth=20"], changes):
        row = config(*SMALL, *words)
        dataset, _ = check_settings(row)
        measured.append(paces.of(row, dataset, size_of(row, dataset))[1])
    assert measured == [True, False, True]


def test_a_network_is_counted_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _remembered.cache_clear()
    row = config(*SMALL)
    dataset, _ = check_settings(row)
    (remembered,) = json.loads((cache / "networks.json").read_text()).values()
    assert remembered["parameters"] == size_of(row, dataset).parameters
    monkeypatch.setattr("deepnets.training.size.meta_network", None)
    _remembered.cache_clear()
    assert size_of(row, dataset).macs == remembered["macs"]
    _remembered.cache_clear()


def test_an_optimiser_is_built_once_and_with_other_settings_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed.cache_clear()
    check_settings(config(*SMALL))
    (key,) = json.loads((cache / "passed.json").read_text())
    assert key == optimizer_key(config(*SMALL))
    monkeypatch.setattr("torch.optim.SGD", None)
    passed.cache_clear()
    check_settings(config(*SMALL))
    with pytest.raises(TypeError):
        check_settings(config(*SMALL, "optimizer.lr=0.2"))
    passed.cache_clear()


@pytest.mark.slow
def test_a_plan_writes_nothing_and_reports_the_whole_grid(tmp_path: Path) -> None:
    done = train("sweep=digits_shortcuts", "plan=true", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    row = r"^(\S+) +2 +([\d,]+) +(\S+M) +(\d+ MB)? +new +(~ )?\d+(?:\.\d)? (?:s|min)(?: ± \d+%)?$"
    rows = re.findall(row, done.stdout, re.MULTILINE)
    assert [name for name, *_ in rows] == ["identity", "none", "scaled_0.5_0.5", "exclusive_gating_b6"]
    assert [estimated for *_, estimated in rows] == ["", "~ ", "~ ", "~ "]
    timed = train("sweep=digits_shortcuts", "plan=timed", f"output_root={tmp_path}")
    assert [estimated for *_, estimated in re.findall(row, timed.stdout, re.MULTILINE)] == [""] * 4
    refused = train("sweep=digits_shortcuts", "plan=soon", f"output_root={tmp_path}")
    assert "plan: got 'soon'; must be True, False or 'timed'" in refused.stderr
    assert "runs       8: 8 new" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_finished_resumable_and_new_rows_are_named(tmp_path: Path) -> None:
    assert train("-m", *SMALL, "seed=0,1", f"output_root={tmp_path}").returncode == 0
    (folder,) = tmp_path.glob("runs/*/seed1")
    (folder / "result.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    planned = train(*GRID, "plan=true", f"output_root={tmp_path}")
    assert planned.returncode == 0, planned.stderr
    assert "runs       3: 1 finished, 1 resumable, 1 new" in planned.stdout
    assert re.search(r"1 finished, 1 .*~ \d", planned.stdout), planned.stdout  # as long as the finished seed took
    # One of three runs is left, as the resumable one has trained all of its budget.
    total, left = map(float, re.search(r"compute +(\S+) PFLOP in all, (\S+) left", planned.stdout).groups())
    assert left == pytest.approx(total / 3, rel=0.01)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    protocol = (folder / "log.txt").read_text().splitlines()[0].removeprefix("protocol: ")
    assert planned.stdout.count("protocol   ") == planned.stdout.count(f"\nprotocol   {protocol}\n") == 1
    anew = train(*GRID, "plan=true", "overwrite=true", f"output_root={tmp_path}")
    assert "runs       3: 3 new" in anew.stdout
    (name,) = [folder.name for folder in (tmp_path / "runs").iterdir() if folder.name[0] != "."]
    assert f"overwrite=true first deletes 2 of these runs: 1 finished, 1 unfinished, of {name}\n" in anew.stdout


def test_each_protocol_of_a_plan_is_printed_once_beside_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = [(rate, depth) for rate in (0.1, 0.2, 0.3, 0.4, 0.5) for depth in (8, 14)]
    rows = [row(tmp_path, *SMALL, f"model.depth={depth}", f"optimizer.lr={rate}") for rate, depth in grid]
    assert show_plan(rows) == 0
    first, *others, more = re.findall("^protocol   (.*)$", capsys.readouterr().out, re.MULTILINE)
    name = "digits_resnet,digits,epochs=2,"
    assert first.startswith(
        f"of '{name}model.widths=4,8,16', '{name}model.depth=14,model.widths=4,8,16': sgd (lr 0.1, "
    )
    settings = "momentum 0.9, nesterov True, weight_decay 0.0001, decayed all"
    assert [line.partition(": ")[2] for line in others] == [
        f"the same, but sgd (lr {rate}, {settings})" for rate in (0.2, 0.3)
    ]
    assert more == "and 2 more, of other rows"


@pytest.mark.slow
def test_compute_is_six_times_the_macs_of_all_training_images(tmp_path: Path) -> None:
    overrides = ["model=resnet20", "dataset=synthetic", "epochs=null", "iterations=40", "batch_size=300"]
    done = train(*overrides, "plan=true", f"output_root={tmp_path}")
    images = 5 * 2000 + 5 * 300  # 7 batches an epoch, of which the last holds 200
    flops = 6 * 40_551_040 * images
    assert f"compute    {flops / 1e15:.3g} PFLOP in all" in done.stdout, done.stderr


@pytest.mark.slow
def test_an_illegal_row_is_given_with_its_reason_beside_the_legal_ones(tmp_path: Path) -> None:
    done = train("-m", "model.depth=8,9,14", "plan=true", f"output_root={tmp_path}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "runs       3: 2 new, 1 cannot start" in done.stdout
    assert "1 of 3 runs cannot start" in done.stdout
    assert "depth=9/seed0: model: depth is 9" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_with_other_settings_cannot_start_as_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(tmp_path, *SMALL, "epochs=1")]
    assert launch(rows) == 0
    (frozen,) = tmp_path.rglob("config.yaml")
    frozen.write_text(frozen.read_text().replace("epochs: 1\n", "epochs: 3\n"))
    capsys.readouterr()
    assert show_plan(rows) == 1
    said = capsys.readouterr().out
    assert "1 cannot start" in said
    assert "other settings: epochs 3 there, 1 here" in said
    assert "\nTo continue what is there, add epochs=3; to train beside it, name=NAME; to delete it" in said


def test_rows_of_several_folders_are_told_apart_and_the_seeds_of_each_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = ["sweep=digits_shortcuts", "model/shortcut=identity"]
    changes = [(f"model.depth={depth}", f"seed={seed}") for seed in (0, 1) for depth in (8, 14)]
    assert show_plan([row(tmp_path, "plan=true", *table, *change) for change in changes]) == 0
    rows = re.findall(r"^(\S+/identity) +(\d+) ", capsys.readouterr().out, re.MULTILINE)
    assert rows == [("digits_shortcuts/identity", "2"), ("digits_shortcuts+model.depth=14/identity", "2")]


def test_a_plan_says_how_many_runs_a_pool_trains_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = ["launcher=pool", "launcher.runs_per_device=3", "device=cpu"]
    assert show_plan([row(tmp_path, *SMALL, "plan=true", *pool)]) == 0
    assert "\npool       up to 3 runs of one device at once\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_plan_refuses_what_the_launch_refuses(tmp_path: Path) -> None:
    changes = ["launcher=pool", "launcher.runs_per_device=0", "plan=true", f"output_root={tmp_path}"]
    done = train("-m", *SMALL, "seed=0,1", *changes)
    assert done.returncode == 1
    assert "runs_per_device: got 0; must be at least 1" in done.stderr


def test_rows_for_a_device_that_is_elsewhere_are_planned_without_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in ("sbatch", "squeue"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert show_plan([row(tmp_path, *SMALL, "plan=true", "launcher=slurm", "device=cuda:9", "step=graphed")]) == 0
    told = capsys.readouterr().out
    assert "1 new" in told
    assert "time left  not measured: device=cuda:9 is not on this machine" in told
    assert "\nlauncher   SLURM's squeue fails" in told


@pytest.mark.slow
def test_a_row_whose_data_are_missing_is_planned_but_not_downloaded(tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = train("model=resnet20", "dataset=mnist", f"dataset.root={root}", "plan=true", f"output_root={tmp_path}")
    assert done.returncode == 1
    assert f"no mnist in {root}: training would first download https://" in done.stdout
    assert "269,434" in done.stdout
    assert not root.exists()


@pytest.mark.slow
def test_a_table_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tests.command.ENVIRONMENT, "COLUMNS", "80")
    done = train(*GRID, "optimizer.weight_decay=0.0002", "batch_size=64", "plan=true", f"output_root={tmp_path}")
    table = done.stdout.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert "".join(line[:34].strip() for line in table[1:]).startswith("digits_resnet,digits,")


def test_the_next_free_device_takes_the_next_run() -> None:
    runs = [(3.0, 1), (1.0, 1), (1.0, 1), (4.0, 2), (1.0, 1)]
    assert makespan(runs, 2) == 3 + 4 / 2 + 1  # the run on two devices waits for both
    assert makespan(runs, 8) == 3
    assert makespan([], 1) == 0
    with pytest.raises(ValueError, match="needs 2 devices of 1"):
        makespan(runs, 1)


@pytest.mark.slow
def test_memory_is_the_weights_and_what_a_step_makes() -> None:
    row = config("model=resnet20", "dataset=synthetic", "precision=fp32", "batch_size=16")
    dataset, _ = check_settings(row)
    training = prepare(row, find_device("cpu"), torch.float32)
    steps = fit(training)
    next(steps)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        kept: list[torch.Tensor] = []
        next(steps)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    weights = {p.untyped_storage().data_ptr() for p in training.model.parameters()}
    saved = sum(size for pointer, size in storages.items() if pointer not in weights)
    held = 2 * 4 * 269_722  # weights and momentum; gradients are made in the step
    pace = pace_of(row, dataset, size_of(row, dataset))
    assert held + saved < pace.memory < 1.3 * (held + saved)
    less = config("model=resnet20", "dataset=synthetic", "precision=fp32", "batch_size=16", "memory=recompute_segments")
    assert pace_of(less, dataset, size_of(less, dataset)).memory < 0.6 * pace.memory


@pytest.mark.slow
def test_a_run_divided_among_devices_needs_less_on_each(tmp_path: Path) -> None:
    done = train("devices=2", "plan=true", "threads=2", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert " on 8 x " in done.stdout
    assert " on 1" not in done.stdout
    assert "assumes that devices=N is N times as fast" in done.stdout
    one, two = (config("model=resnet20", "dataset=synthetic", f"devices={count}") for count in (1, 2))
    dataset, _ = check_settings(one)
    size = size_of(one, dataset)
    whole, half = (pace_of(row, dataset, size).memory for row in (one, two))
    assert whole / 2 < half < 0.6 * whole


def test_images_that_are_not_square_are_timed_in_their_shape(tmp_path: Path) -> None:
    for split, label in product(("train", "test"), ("cat", "dog")):
        (tmp_path / split / label).mkdir(parents=True)
        Image.new("L", (12, 8)).save(tmp_path / split / label / "0.png")
    wide = ["dataset=image_folder", f"dataset.root={tmp_path}", "batch_size=2", "precision=fp32"]
    one = config("model=vit_digits", "model.patch=4", "model.depth=2", *wide)
    dataset, _ = check_settings(one)
    assert dataset.shape == (1, 8, 12)
    assert pace_of(one, dataset, size_of(one, dataset)).training > 0


@pytest.mark.attack
@pytest.mark.parametrize("widths", ["[]", "''"])
def test_a_network_without_stages_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], widths: str) -> None:
    assert show_plan([row(tmp_path, f"model.widths={widths}")]) == 1
    assert "1 of 1 runs cannot start" in capsys.readouterr().out
