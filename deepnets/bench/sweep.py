"""`bench.py sweep` measures the processor time of the commands around a large sweep, without training."""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepnets.bench.comparison import Comparison, Measurement
from deepnets.bench.overhead import COMPOSE, TRAIN
from deepnets.command import count
from deepnets.config.identity import identity_hash
from deepnets.config.schema import Config
from deepnets.errors import UserError
from deepnets.launch.local import Local
from deepnets.launch.slurm_queue import slurm_answer
from deepnets.runs.contents import Result, packed
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.system.printing import with_progress

SEEDS = 5  # of each row
TINY = ["model.depth=8", "model.widths=[2,2,2]", "epochs=30", "device=cpu", "threads=1"]
STEPS = ("compose", "freeze", "submit", "status", "report", "again")


@dataclass(frozen=True)
class Frozen(Local):
    """A launcher that executes nothing, so that a command ends where the first run would start."""

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Execute nothing; returns 0."""
        return 0


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py sweep`."""
    parser.add_argument("--runs", type=count, default=1000, help="runs of the sweep, five seeds a row (default: 1000)")


def measure_sweep(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the processor seconds of each command around a sweep of 1,000 runs, with its child processes.

    `compose` makes rows from the words; `freeze` also checks them and writes their folders; `submit` does both for
    SLURM's queue, then its jobs are cancelled; `status` and `report` read the folders when all runs have finished;
    `again` repeats the first command, which has nothing left to train. Each command has its own process with one
    thread, imports included. All results are copies of one training's, with other errors.
    """
    no_slurm, rows = _no_slurm(), max(1, arguments.runs // SEEDS)
    steps = [name for name in STEPS if not (name == "submit" and no_slurm)]
    values: Measurement = {name: [] for name in steps}
    decays = ",".join(f"{row + 1}e-6" for row in range(rows))  # an axis that changes no size and no learning rate
    grid = ["-m", f"seed=range({SEEDS})", f"optimizer.weight_decay={decays}"]
    with tempfile.TemporaryDirectory() as one:
        _seconds(*TRAIN, *TINY, f"output_root={one}")
        (trained,) = run_folders(Path(one))
        turns = [(name, repeat) for repeat in range(arguments.repeats) for name in steps]
        for name, outputs in with_progress(turns, "steps"):
            place = Path(one, f"outputs{outputs}")
            train = [*TINY, *grid, f"output_root={place}"]
            words = {
                "compose": ["-c", COMPOSE, *train],
                "freeze": [*TRAIN, *train, f"launcher._target_={__name__}.Frozen", f"--trust={__name__}.Frozen"],
                "submit": [*TRAIN, *train, "launcher=slurm", "launcher.options={hold:true}"],
                "status": ["-m", "deepnets", "report", str(place), "--status"],
                "report": ["-m", "deepnets", "report", str(place)],
                "again": [*TRAIN, *train],
            }[name]
            if name == "status":
                for number, folder in enumerate(run_folders(place)):
                    _finish(folder, trained, number)
            values[name].append(_seconds(*words))
            if name == "submit":
                jobs = {folder.job.job.partition("_")[0] for folder in run_folders(place) if folder.job}
                slurm_answer("scancel", *jobs)
    return [Comparison(f"{rows * SEEDS:,} runs", "processor seconds", values, {"submit": no_slurm} if no_slurm else {})]


def _no_slurm() -> str | None:
    """Return why this machine cannot submit to SLURM; None if it can."""
    if not shutil.which("sbatch"):
        return "no sbatch on this machine"
    try:
        slurm_answer("squeue", "--noheader")
    except UserError as error:
        return str(error)
    return None


def _finish(folder: RunFolder, trained: RunFolder, number: int) -> None:
    """Give a frozen run the files of the trained one, as if it had ended with other losses and errors."""
    result = Result.read(trained.path)
    assert result
    rows = list(csv.DictReader((trained.path / "metrics.csv").read_text().splitlines()))
    images, wrong = result.data["test"], number * 7 % 40
    error = 100 * wrong / images
    rows[-1] |= {"test_error": error, "train_loss": float(rows[-1]["train_loss"]) + number * 1e-9}
    with (folder.path / "metrics.csv").open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    best = min(float(row["test_error"]) for row in rows)
    changes = {"test_error": error, "last_test_error": error, "best_test_error": best}
    changes |= {"identity": identity_hash(folder.config), "test_right": packed(np.arange(images) >= wrong)}
    result.model_copy(update=changes).write(folder.path)


def _seconds(*words: str) -> float:
    """Run Python with these arguments and one thread; returns processor seconds, those of its child processes too."""
    before = os.times()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
