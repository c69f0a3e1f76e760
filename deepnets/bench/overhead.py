"""`bench.py startup`, `rows`, `grid`, `logging`, `checkpoint` and `sweep` measure what commands take besides training.

`sweep` measures processor time of the commands around a large sweep, without training; the others measure seconds.
`waiting` measures what threads lose that wait for each other.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepnets.bench.comparison import (
    Comparison,
    Measurement,
    add_overrides,
    add_run_options,
    compose_run,
    in_turns,
    overrides_of,
    trust_words,
)
from deepnets.command import count
from deepnets.config.identity import identity_hash
from deepnets.config.schema import Config
from deepnets.errors import UserError
from deepnets.launch.local import Local
from deepnets.launch.slurm_queue import slurm_answer
from deepnets.runs import checkpoint
from deepnets.runs.contents import Result, packed
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.log import Log
from deepnets.system.printing import with_progress
from deepnets.training.fit import Training, fit

TRAIN = ("-m", "deepnets", "train")
COMPOSE = "from deepnets.config.command_line import rows_of_command; rows_of_command()"
COMPOSED = {
    "one run": [],
    "80 rows of he2016_table1": ["sweep=he2016_table1", "dataset.root=/data"],
    "1,000 seeds": ["-m", "seed=range(1000)"],
    "10,000 runs": ["-m", "seed=range(100)", "optimizer.lr=range(0.01,1.01,0.01)"],
}
# The environment that says how long threads spin before they sleep; libgomp takes 300,000 if nothing is set.
WAITS: dict[str, dict[str, str]] = {
    "as deepnets": {},
    "as libgomp by itself": {"GOMP_SPINCOUNT": "300000"},
    "without spinning": {"OMP_WAIT_POLICY": "passive"},
}
SAVED = "resnet20,resnet110,preact1001"
SEEDS = 5  # of each row of the sweep
TINY = ["model.depth=8", "model.widths=[2,2,2]", "epochs=30", "device=cpu", "threads=1"]
STEPS = ("compose", "freeze", "submit", "status", "report", "again")


def add_startup_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py startup`."""
    add_run_options(parser, "resnet20")


def measure_startup(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds until a command's first optimiser step is on disk.

    --help, an import of torch and a Python that does nothing are timed beside it.
    """
    overrides = [*trust_words(), *overrides_of(arguments)]
    candidates = {
        "first optimiser step": lambda: _until_first_step(overrides),
        "--help": lambda: _seconds(*TRAIN, "--help"),
        "import torch": lambda: _seconds("-c", "import torch"),
        "empty Python": lambda: _seconds("-c", "pass"),
    }
    return [Comparison("start", "seconds", in_turns(candidates, arguments.repeats))]


def add_waiting_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py waiting`."""
    parser.add_argument("--iterations", type=count, default=24, help="iterations of each run (default: 24)")
    add_run_options(parser, "digits_resnet", "digits")


def measure_waiting(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds of a run whose threads spin more or less long before they sleep.

    It is measured alone on the machine, and beside another session's training, which has one thread.
    """
    words = [*trust_words(), *overrides_of(arguments), "device=cpu"]
    overrides = [*words, "epochs=null", f"iterations={arguments.iterations}"]
    candidates = {name: lambda how=how: _training_seconds(overrides, how) for name, how in WAITS.items()}
    alone = Comparison("alone", "seconds", in_turns(candidates, arguments.repeats))
    with tempfile.TemporaryDirectory() as outputs:
        longer = [*words, "threads=1", "epochs=1000000", f"output_root={outputs}"]
        command = [sys.executable, *TRAIN, *longer]
        null = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=null, stderr=null, start_new_session=True) as other:
            try:
                while not list(Path(outputs).glob("runs/*/*/metrics.csv")):
                    if other.poll() is not None:
                        raise RuntimeError(f"{' '.join(command)} ended with {other.returncode}")
                    time.sleep(0.1)
                beside = Comparison("beside a training", "seconds", in_turns(candidates, arguments.repeats))
            finally:
                other.kill()
    return [alone, beside]


def add_rows_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing: `bench.py rows` has no options of its own."""


def measure_rows(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds from typing a command to its composed runs, including the start of Python."""
    candidates = {name: lambda typed=typed: _seconds("-c", COMPOSE, *typed) for name, typed in COMPOSED.items()}
    return [Comparison("from words to rows", "seconds", in_turns(candidates, arguments.repeats))]


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py grid`."""
    parser.add_argument("--rows", type=count, default=200, help="runs of the sweep (default: 200)")
    parser.add_argument("--iterations", type=count, default=40, help="iterations that each run trains (default: 40)")


def measure_grid(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds that a tiny run in a sweep on digits takes beyond its training: start and composition."""
    values: Measurement = {"beyond training": [], "training": []}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as outputs:
            size = ["model.depth=8", "model.widths=[2,2,2]", "epochs=null", f"iterations={arguments.iterations}"]
            seconds = _seconds(*TRAIN, "-m", *size, f"seed=range({arguments.rows})", f"output_root={outputs}")
            results = [RunFolder(path.parent).result for path in Path(outputs).glob("runs/*/*/result.json")]
            training = sum(result.seconds or 0 for result in results if result is not None)
        values["beyond training"].append((seconds - training) / arguments.rows)
        values["training"].append(training / arguments.rows)
    return [Comparison(f"a row of {arguments.rows}", "seconds", values)]


def add_logging_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py logging`."""
    parser.add_argument("--iterations", type=count, default=40, help="iterations an epoch (default: 40)")


def measure_logging(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds that the log adds to an epoch of a gated ResNet-20, whose units it observes every epoch.

    This is the worst case, because the epoch is short: an epoch of CIFAR-10 has 391 iterations. Images are noise.
    """
    size = [
        f"dataset.source.train={128 * arguments.iterations}",
        f"dataset.source.test={25 * arguments.iterations}",
        f"epochs={arguments.repeats + 1}",
    ]
    run = compose_run(["model=resnet20", "model/shortcut=exclusive_gating_b6", "dataset=synthetic", *size])
    training = run.training()
    values: Measurement = {"logging": [], "training": []}
    logged = 0.0
    with tempfile.TemporaryDirectory() as outputs, Log(RunFolder(outputs), training, run.config, [], [], 0) as log:
        begun = time.perf_counter()
        for state in fit(training):
            started = time.perf_counter()
            log.iteration(state)
            if state.completed:
                log.epoch(state)
            now = time.perf_counter()
            logged += now - started
            if state.completed:
                values["logging"].append(logged)
                values["training"].append(now - begun - logged)
                logged, begun = 0.0, now
    # The first epoch is a warm-up.
    return [Comparison("an epoch", "seconds", {name: seconds[1:] for name, seconds in values.items()})]


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py checkpoint`."""
    parser.add_argument("--models", default=SAVED, help=f"networks as in conf/model, with commas (default: {SAVED})")
    parser.add_argument("--folder", type=Path, help="folder on the disk to measure (default: the temporary folder)")
    add_overrides(parser)


def measure_checkpoint(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds of a checkpoint, against the seconds between two checkpoints (checkpoint_seconds)."""
    return [_checkpoints_of(model, arguments) for model in arguments.models.split(",")]


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

    `compose` makes rows from the overrides; `freeze` also checks them and writes their folders; `submit` does both for
    SLURM's queue, then its jobs are cancelled; `status` and `report` read the folders when all runs have finished;
    `again` is the sweep's command when nothing is left to train. Each command has its own process with one
    thread, imports included. All results are copies of one result, with other errors.
    """
    no_slurm, rows = _no_slurm(), max(1, arguments.runs // SEEDS)
    steps = [name for name in STEPS if not (name == "submit" and no_slurm)]
    values: Measurement = {name: [] for name in steps}
    decays = ",".join(f"{row + 1}e-6" for row in range(rows))  # an axis that changes no size and no learning rate
    grid = ["-m", f"seed=range({SEEDS})", f"optimizer.weight_decay={decays}"]
    with tempfile.TemporaryDirectory() as one:
        _processor_seconds(*TRAIN, *TINY, f"output_root={one}")
        (trained,) = run_folders(Path(one))
        turns = [(name, repeat) for repeat in range(arguments.repeats) for name in steps]
        for name, outputs in with_progress(turns, "steps"):
            place = Path(one, f"outputs{outputs}")
            train = [*TINY, *grid, f"output_root={place}"]
            command = {
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
            values[name].append(_processor_seconds(*command))
            if name == "submit":
                jobs = {folder.job.job.partition("_")[0] for folder in run_folders(place) if folder.job}
                slurm_answer("scancel", *jobs)
    return [Comparison(f"{rows * SEEDS:,} runs", "processor seconds", values, {"submit": no_slurm} if no_slurm else {})]


def _checkpoints_of(model: str, arguments: argparse.Namespace) -> Comparison:
    """Write checkpoints of the network, each over the last one, and time them."""
    # A checkpoint does not depend on the batch size. One step on two images creates the momentum in it.
    overrides = [f"model={model}", "dataset=synthetic", "batch_size=2", "dataset.source.train=4", *arguments.overrides]
    run = compose_run(overrides)
    training = run.training()
    next(fit(training))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        values = in_turns({"checkpoint": lambda: _seconds_to_save(training, Path(folder))}, arguments.repeats)
        size = (Path(folder) / checkpoint.LAST).stat().st_size
    values["training between two"] = [run.config.checkpoint_seconds] * arguments.repeats
    return Comparison(f"checkpoint of {model}", "seconds", values, notes=[f"{size:,} bytes"])


def _seconds_to_save(training: Training, folder: Path) -> float:
    """Copy the state from the device and write it to the disk, as a run does; return the seconds."""
    started = time.perf_counter()
    checkpoint.save(folder, {"training": training.state_dict(), "history": [], "observed": [], "seconds": 0.0})
    return time.perf_counter() - started


def _until_first_step(overrides: Sequence[str]) -> float:
    """Start a training command, kill it when its first checkpoint exists, and return the seconds until then."""
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, *TRAIN, *overrides, f"output_root={outputs}", "checkpoint_seconds=0"]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(Path(outputs).glob("runs/*/*/checkpoint.pt")):
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} before its first step")
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        process.kill()
        process.wait()
        return seconds


def _training_seconds(overrides: Sequence[str], variables: Mapping[str, str]) -> float:
    """Train a run in an environment with these variables; return the seconds that its result notes."""
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, *TRAIN, *overrides, f"output_root={outputs}"]
        subprocess.run(command, check=True, env={**environment, **variables}, stdout=subprocess.DEVNULL)
        (folder,) = run_folders(Path(outputs))
        assert folder.result
        assert folder.result.seconds
        return folder.result.seconds


def _seconds(*arguments: str) -> float:
    """Run Python with these arguments; return the seconds."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


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


def _processor_seconds(*arguments: str) -> float:
    """Run Python with these arguments and one thread; return its processor seconds and those of its child processes."""
    before = os.times()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
