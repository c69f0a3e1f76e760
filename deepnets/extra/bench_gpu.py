"""`bench.py gpu` measures everything that needs a GPU, part by part, and writes it into one file.

`parts_of` lists the parts in their order, and the functions below it measure them. Most of them run a command in a
process of its own: pytest, another bench, a training, or this file's `main`, which times iterations.
"""

import argparse
import csv
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepnets.bench.comparison import (
    DEEPNETS,
    BenchRun,
    Candidates,
    Comparison,
    Part,
    PartResult,
    Unfinished,
    compose_run,
    finished,
    follow,
    in_turns,
    last_line,
    results_of,
    seconds_of,
    stored,
)
from deepnets.bench.training import endless, floor_steps
from deepnets.command import run_command
from deepnets.config.schema import StepKind
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.system import usable_cores
from deepnets.system.settings import Memory
from deepnets.training.fit import Training, fit

MODELS = {"resnet20": 40, "resnet110": 20, "resnet164": 20, "resnet1001": 4}  # iterations to time
SHARING = (1, 2, 5)  # numbers of runs at once
PUBLISHED = "he2016_table3_cifar10"  # the sweep whose rows of ResNet-110 are trained
COMPILED = (StepKind.compiled, StepKind.compiled_graphed)
LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}
COMPILING_SECONDS = 180.0  # a longer part is stopped: else the deepest networks could use up all the minutes
TESTS_SECONDS = 300.0
SAVING_SECONDS = 60.0  # for a stopped training to save its state


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py gpu`."""
    parser.add_argument("--root", metavar="DIR", help="folder with cifar10, as dataset.root of scripts/train.py")
    parser.add_argument("--minutes", type=float, default=10, help="minutes after which this command ends (default: 10)")
    parser.set_defaults(json=Path("gpu.json"))


def measure(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure what `parts_of` lists and the file lacks, until the minutes are over; the user repeats it for the rest.

    When a part ends, its result, or the reason why it has none, is written to the file. The working directory must be
    the clone with the tests.

    Raises:
        UserError: there is no GPU, or the user named no data.
    """
    if not torch.cuda.is_available():
        raise UserError("bench.py gpu: no GPU here that CUDA can use; every other bench measures a CPU too")
    if not arguments.root:
        raise UserError("bench.py gpu: needs --root DIR, the folder with cifar10")
    where = ["dataset=cifar10", f"dataset.root={Path(arguments.root).resolve()}"]
    follow(parts_of(where, arguments.json.resolve(), arguments.repeats, "cuda"), arguments.json, arguments.minutes)
    return []


def parts_of(where: Sequence[str], file: Path, repeats: int, device: str) -> list[Part]:
    """List all parts in their order, on the data that `where` names; long trainings go to `file` with suffix .runs."""
    on, deepest = f"device={device}", [*MODELS][-1]
    overrides = [*where, on]
    parts = [Part("environment", lambda _: environment())]
    for name, which in {"tests": "not compiled", "tests of compiled code": "compiled"}.items():
        parts.append(Part(name, partial(gpu_tests, which), TESTS_SECONDS))
    parts.append(Part("the default, trained and analysed", partial(analysed, [on], device)))
    parts += _throughputs(overrides, repeats)
    for step in StepKind:
        settings = [on, f"step={step}", "dataset=synthetic", "dataset.source.train=1300", "model=resnet20"]
        parts.append(Part(f"waits {step}", partial(_steps, "waits", *settings), COMPILING_SECONDS))
    for mode in Memory:
        options = ["--model", deepest, "--modes", mode, "--iterations", "1", "--repeats", "1", on]
        parts.append(Part(f"memory {deepest} {mode}", partial(_bench, "memory", *options)))
    short = [*overrides, "model=resnet20", "epochs=3"]
    for count in SHARING:
        parts.append(Part(f"{count} at once", partial(at_once, short, count, stacked=False)))
    parts.append(Part(f"{SHARING[-1]} stacked", partial(at_once, short, SHARING[-1], stacked=True)))
    parts += _checks(overrides, file, repeats, on)
    runs = file.with_suffix(".runs")
    for ordering in ("original", "full_preactivation"):
        row = [f"sweep={PUBLISHED}", "model=resnet110", f"model/ordering={ordering}", "seed=0", f"output_root={runs}"]
        row += [override for override in overrides if not override.startswith("dataset=")]
        folder = RunFolder(runs / PUBLISHED / f"resnet110,{ordering}" / "seed0")

        def train(seconds: float, row: list[str] = row, folder: RunFolder = folder) -> PartResult:
            return trained([*row, f"step={fastest(file)}"], folder, seconds)

        parts.append(Part(f"full protocol resnet110 {ordering}", train))
    return parts


def environment() -> PartResult:
    """Return the versions, the GPUs, and the environment variables that hide GPUs or change their arithmetic."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "bfloat16": bool(gpus) and torch.cuda.is_bf16_supported(including_emulation=False),
        "cores": usable_cores(),
        **{name: os.environ.get(name) for name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_VISIBLE_DEVICES")},
    }


def gpu_tests(which: str, seconds: float) -> PartResult:
    """Run the tests marked `gpu` that pytest's -k chooses; skip other files, which may import absent packages."""
    files = [str(file) for file in sorted(Path("tests").rglob("test_*.py")) if "pytest.mark.gpu" in file.read_text()]
    if not files:
        return {"absent": "no tests in the working directory; type the command in a clone"}
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n0", "-k", which, "--durations=10", *files]
    done = finished(command, seconds)
    return {"exit_code": done.returncode, "end": (done.stdout or done.stderr).splitlines()[-40:]}


def fastest(file: Path) -> str:
    """Return the `step` with the most images/s for ResNet-110 in bfloat16, by the results in the file."""
    rates = {"eager": 0.0}
    for name, result in stored(file).items():
        if name.startswith("training resnet110 bf16"):
            for way, each in result.get("images/s", {}).items():
                if way.endswith(" channels_last"):
                    rates[way.split()[0]] = statistics.median(each)
    return max(rates, key=rates.__getitem__)


def at_once(overrides: Sequence[str], count: int, seconds: float, *, stacked: bool) -> PartResult:
    """Measure images/s of each of `count` short runs, which share the device or, if `stacked`, a batched network."""
    launcher = [f"launcher.stacked={count}"] if stacked else ["launcher=pool", f"launcher.runs_per_device={count}"]
    seeds = f"seed={','.join(map(str, range(count)))}"
    return results_of(["-m", *overrides, *launcher, seeds], ["images_per_second"], seconds)


def analysed(overrides: Sequence[str], device: str, seconds: float) -> PartResult:
    """Return the result of a short run, and the lines that `analyze.py lesion` prints about it."""
    with tempfile.TemporaryDirectory() as place:
        done = finished([*DEEPNETS, "train", *overrides, f"output_root={place}"], seconds)
        if done.returncode:
            return {"absent": last_line(done)}
        (folder,) = run_folders(Path(place))
        lesion = [*DEEPNETS, "analyze", "lesion", str(folder), "--device", device, "--draws", "1", "--most", "2"]
        done = finished(lesion, seconds)
        printed = done.stdout.splitlines() if done.returncode == 0 else last_line(done)
        result = folder.completed
        keys = ("test_error", "seconds", "device", "precision")
        return {key: getattr(result, key, None) for key in keys} | {"lesion": printed}


def stopped_and_resumed(overrides: Sequence[str], seconds: float) -> PartResult:
    """Compare the epochs' losses of a run with those of the same run, stopped after its first epoch and resumed."""
    deadline, losses = time.monotonic() + seconds, []
    with tempfile.TemporaryDirectory() as place:
        for name in ("whole", "stopped"):
            command = [*DEEPNETS, "train", *overrides, f"output_root={Path(place, name)}"]
            if name == "stopped":
                with _running(command) as process:
                    while process.poll() is None and not [*Path(place, name).glob("runs/*/seed0/metrics.csv")]:
                        time.sleep(0.1)
                        if time.monotonic() > deadline:
                            raise subprocess.TimeoutExpired(command, seconds)
                    process.send_signal(signal.SIGINT)
                    process.wait(SAVING_SECONDS)
            done = finished(command, deadline - time.monotonic())
            if done.returncode:
                return {"absent": last_line(done)}
            (folder,) = run_folders(Path(place, name))
            with (folder.path / "metrics.csv").open() as file:
                losses.append([float(epoch["train_loss"]) for epoch in csv.DictReader(file)])
        resumed = re.search(r"resuming at iteration (\d+)", (folder.path / "log.txt").read_text())
        return {"resumed at": resumed and int(resumed[1]), "equal": losses[0] == losses[1], "losses": losses}


def trained(overrides: Sequence[str], folder: RunFolder, seconds: float) -> PartResult:
    """Train the run that these overrides make and return its result; stop it, with a checkpoint, when time is over.

    Raises:
        Unfinished: the run was stopped.
    """
    process = subprocess.Popen([*DEEPNETS, "train", *overrides])
    try:
        process.wait(max(seconds - SAVING_SECONDS, 1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(SAVING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its last checkpoint remains
        raise Unfinished from None
    if result := folder.completed:
        return result.model_dump(mode="json", exclude_unset=True)
    return {"absent": f"{shlex.join(overrides)} ended with exit code {process.returncode}"}


def throughput(ways: Sequence[str], repeats: int, iterations: int, overrides: Sequence[str]) -> PartResult:
    """Measure images/s of training in each way; a way is a `step` and a memory layout, e.g. "graphed NCHW".

    The ways take turns with `floor_steps`, which trains on one batch without data pipeline, sums, schedule or log. If
    a way fails, `absent` in the result holds the reason.
    """
    run, candidates, absent = compose_run(overrides), Candidates(), {}

    def pace(steps: Iterator) -> float:
        return iterations * run.config.batch_size / seconds_of(steps, iterations, run.device)

    for way in ways:
        step, layout = way.split()
        try:
            changed = replace(run, config=replace(run.config, step=StepKind(step)))
            steps = endless(_laid_out(changed, layout))
            next(steps)  # compiles, or captures
        except Exception as error:  # CUDA, a compiler and a graph may raise any kind of error
            absent[way] = str(error).partition("\n")[0]
        else:
            candidates[way] = partial(pace, steps)
    candidates["floor"] = partial(pace, floor_steps(run.training()))
    return {"images/s": in_turns(candidates, repeats), "absent": absent}


def waits(overrides: Sequence[str]) -> PartResult:
    """Raise an error if an iteration or an evaluated batch waits for the device; only the end of an epoch may wait."""
    run = compose_run(overrides)
    training = run.training()
    states = fit(training)
    while not next(states).completed:  # the first epoch compiles code and captures graphs
        pass
    yields = len(training.batches) + sum(map(len, training.evaluated.values()))
    if run.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    for _ in range(yields):
        next(states)
    if run.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    return {"waits": 0, "yields": yields}


def main() -> int:
    """Print the result of `throughput` or `waits`, as the command line says."""
    what, *arguments = sys.argv[1:]
    if what == "throughput":
        ways, repeats, iterations, *overrides = arguments
        result = throughput(ways.split(","), int(repeats), int(iterations), overrides)
    else:
        result = waits(arguments)
    print(json.dumps(result))
    return 0


def _throughputs(overrides: Sequence[str], repeats: int) -> list[Part]:
    """List the parts for images/s by `step` and layout; compiled code has its own parts, as it may never end."""
    parts = []
    for model, iterations in MODELS.items():
        for precision in ("bf16", "fp32"):
            ways = [f"{step} {layout}" for step in (StepKind.eager, StepKind.graphed) for layout in LAYOUTS]
            arguments = [",".join(ways), repeats, iterations, *overrides, f"model={model}", f"precision={precision}"]
            parts.append(Part(f"training {model} {precision}", partial(_steps, "throughput", *arguments)))
    for step in COMPILED:  # such code chooses layouts itself
        for model, iterations in MODELS.items():
            ways = ["eager channels_last", f"{step} channels_last"]
            arguments = [",".join(ways), repeats, iterations, *overrides, f"model={model}", "precision=bf16"]
            part = partial(_steps, "throughput", *arguments)
            parts.append(Part(f"training {model} bf16 {step}", part, COMPILING_SECONDS))
    return parts


def _checks(overrides: Sequence[str], file: Path, repeats: int, on: str) -> list[Part]:
    """List the parts that may behave differently on a GPU: stochastic depth, resuming, precisions, data, processes."""
    stop = [*overrides, "model=resnet20", "epochs=3", "deterministic=true"]
    values = ["images_per_second", "test_error"]
    parts = [
        Part("stochastic depth", partial(results_of, [*overrides, "model=stochastic_depth110", "epochs=1"], values)),
        Part("stopped and resumed", partial(stopped_and_resumed, stop)),
    ]
    for precision in ("fp32", "bf16"):
        runs = ["-m", *overrides, "model=preact110", "epochs=3", "seed=0,1,2", f"precision={precision}"]

        def train(seconds: float, runs: list[str] = runs) -> PartResult:
            return results_of([*runs, f"step={fastest(file)}"], ["train_error", "test_error"], seconds)

        parts.append(Part(f"preact110 {precision}", train))
    options = ["--repeats", str(repeats), *overrides]
    parts.append(Part("data", partial(_bench, "data", *options)))
    parts.append(Part("training beside peers", partial(_bench, "training", "--peers", "plain", *options)))
    for name, images in {"the whole batch": "null", "each process": "64"}.items():
        options = ["--model", "resnet110", on, f"model.batchnorm_images={images}", "batch_size=128"]
        parts.append(Part(f"two processes, statistics of {name}", partial(_two_processes, options)))
    return parts


def _two_processes(options: Sequence[str], seconds: float) -> PartResult:
    if "device=cuda" in options and torch.cuda.device_count() < 2:
        return {"absent": "two processes need two GPUs"}
    return _bench("ddp", *options, seconds)


def _bench(what: str, *arguments: Any) -> PartResult:
    """Return the tables that another bench writes; the last argument is the seconds that it may take."""
    *options, seconds = arguments
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "figures.json")
        done = finished([*DEEPNETS, "bench", what, *options, "--json", str(file)], seconds)
        return json.loads(file.read_text())["tables"] if file.is_file() else {"absent": last_line(done)}


def _steps(what: str, *arguments: Any) -> PartResult:
    """Run `throughput` or `waits` in a process of its own; the last argument is the seconds that it may take."""
    *options, seconds = arguments
    done = finished([sys.executable, "-m", __name__, what, *map(str, options)], seconds)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"absent": last_line(done)}


def _laid_out(run: BenchRun, layout: str) -> Training:
    """Return the training of a run, with its weights and images in this memory layout."""
    training = run.training()
    training.model.to(memory_format=LAYOUTS[layout])
    forward = training.forward
    training.forward = lambda images: forward(images.contiguous(memory_format=LAYOUTS[layout]))
    return training


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command, and kill it when the context ends."""
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    run_command(main)
