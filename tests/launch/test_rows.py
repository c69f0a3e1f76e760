"""Every row of the sweeps of depth after 2016 trains: two iterations each, on noise in CIFAR's shape."""

from pathlib import Path

import pytest

from deepnets.results.published import published_of
from deepnets.results.read import read_runs
from tests.command import train

SWEEPS = (
    *("bachlechner2020_resnet56", "de2020_skipinit", "depth_transfer", "huang2017_cifar10", "identity_start"),
    *("oh2025_resnetv2", "ordering_warmup_resnet", "ordering_warmup_transformer", "zagoruyko2016_cifar10"),
    "zhang2019_resnet110",
)
TWO_ITERATIONS = ("epochs=null", "iterations=2", "batch_size=4", "seed=0", "device=cpu", "threads=1", "fail_fast=true")
NOISE = ("dataset=synthetic", "dataset.source.train=8", "dataset.source.test=4")

SHORTER = {  # than two iterations
    "identity_start": ("schedule.warmup_iterations=1",),
    "ordering_warmup_resnet": ("schedule.warmup_iterations=0,1",),
    "ordering_warmup_transformer": ("schedule.warmup=0,30",),  # of 60: one iteration
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SWEEPS)
def test_every_row_trains(name: str, tmp_path: Path) -> None:
    done = train(f"sweep={name}", *NOISE, *TWO_ITERATIONS, *SHORTER.get(name, ()), f"output_root={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = read_runs([tmp_path])
    assert {run.state.name for run in runs} <= {"finished", "diverged"}
    axes, printed = runs[0].sweep["axes"], published_of(name).rows
    trained = {row for row in printed if not printed[row].is_literature}
    assert {"dataset", "schedule.warmup_iterations"} & {*axes} or {run.row for run in runs} >= trained, name
