"""All that only a GPU can answer, part by part, into one file: the same command goes on where the last one ended.

In this order: the GPU's tests; images/s by `step` and memory layout beside the floor; waits for the device within an
epoch; memory of the deepest network; several runs on the GPU; then ResNet-110 in both forms by the full protocol. Each
part is a process of its own, and is written down once it is measured, or with the reason why it cannot be. The tests
are those of the clone that is the working directory.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepnets.bench import floor
from deepnets.bench.figures import Figures
from deepnets.bench.subject import subject_of
from deepnets.bench.training import endless
from deepnets.bench.turns import Candidates, in_turns, seconds_of
from deepnets.command import run_command
from deepnets.config.schema import StepKind
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder, run_folders, write_atomically
from deepnets.system.printing import print_line
from deepnets.training.fit import fit

MODELS = ("resnet20", "resnet110", "resnet164", "resnet1001")
LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}
SHARING = (1, 2, 5)  # runs at once
PUBLISHED = "he2016_table3_cifar10"  # whose rows of ResNet-110 are trained
SAVING_SECONDS = 60.0  # for a training that is stopped
DEEPNETS = [sys.executable, "-m", "deepnets"]
Found = dict[str, Any]


class Unfinished(Exception):
    """A part goes on with the next command."""


@dataclass(frozen=True)
class Part:
    """What is measured in so many seconds at most; raises `Unfinished`, or TimeoutExpired when it must start anew."""

    name: str
    measure: Callable[[float], Found]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--root", metavar="DIR", help="folder with cifar10, as dataset.root of scripts/train.py")
    parser.add_argument("--minutes", type=float, default=10, help="after which this command ends (default: 10)")
    parser.set_defaults(json=Path("gpu.json"))


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Measure what the file lacks, as far as the minutes go.

    Raises:
        UserError: there is no GPU, or no data are named.
    """
    if not torch.cuda.is_available():
        raise UserError("bench.py gpu: no GPU here that CUDA can use; every other bench measures a CPU too")
    if not arguments.root:
        raise UserError("bench.py gpu: needs --root DIR, the folder with cifar10")
    where = ["dataset=cifar10", f"dataset.root={Path(arguments.root).resolve()}"]
    runs = arguments.json.resolve().with_suffix(".runs")
    follow(parts_of(where, runs, arguments.repeats, "cuda"), arguments.json, arguments.minutes)
    return []


def parts_of(where: Sequence[str], runs: Path, repeats: int, device: str) -> list[Part]:
    """All parts, on the data that the options `where` name; trainings lie in the folder `runs`."""
    there = [*where, f"device={device}"]
    parts = [Part("environment", lambda _: environment()), Part("tests", gpu_tests)]
    for model in MODELS:
        for precision in ("bf16", "fp32"):
            for step in StepKind if precision == "bf16" else [StepKind.eager]:
                for layout in LAYOUTS:
                    words = [*there, f"model={model}", f"precision={precision}", f"step={step}"]
                    name = f"training {model} {precision} {step} {layout}"
                    parts.append(Part(name, partial(_child, "throughput", layout, str(repeats), *words)))
    for step in StepKind:
        words = [f"device={device}", f"step={step}", "dataset=synthetic", "dataset.source.train=1300"]
        parts.append(Part(f"waits {step}", partial(_child, "waits", *words, "model=resnet20")))
    for mode in ("full", "recompute_activations", "recompute_units", "recompute_segments"):
        words = ["--model", "resnet1001", "--modes", mode, "--iterations", "1", "--repeats", "1", f"device={device}"]
        parts.append(Part(f"memory resnet1001 {mode}", partial(_bench, "memory", *words)))
    for count in SHARING:
        parts.append(Part(f"{count} runs at once", partial(several, there, runs, count, stacked=False)))
    parts.append(Part(f"{SHARING[-1]} runs stacked", partial(several, there, runs, SHARING[-1], stacked=True)))
    for ordering in ("original", "full_preactivation"):
        row = [f"sweep={PUBLISHED}", "model=resnet110", f"model/ordering={ordering}", "seed=0"]
        folder = RunFolder(runs / PUBLISHED / f"resnet110,{ordering}" / "seed0")
        words = [*row, *(word for word in there if not word.startswith("dataset=")), f"output_root={runs}"]
        parts.append(Part(f"full protocol resnet110 {ordering}", partial(trained, words, folder)))
    return parts


def follow(parts: Sequence[Part], file: Path, minutes: float) -> bool:
    """Measure in their order the parts that `file` does not hold, until the minutes are over; whether it holds all.

    What takes longer than all the minutes is noted as absent, and so is what fails, with the reason.
    """
    known: dict[str, Found] = json.loads(file.read_text()) if file.is_file() else {}
    begun = time.monotonic()
    for part in parts:
        if part.name in known:
            continue
        left = 60 * minutes - (time.monotonic() - begun)
        if left <= 0:
            break
        is_first = left > 0.95 * 60 * minutes
        try:
            found = part.measure(left)
        except Unfinished:
            break
        except subprocess.TimeoutExpired:
            if not is_first:
                break
            found = {"absent": f"takes more than {minutes:g} minutes"}
        known[part.name] = found
        write_atomically(file, json.dumps(known, indent=1) + "\n")
        print_line(f"{part.name}: {_in_a_line(found)}")
    done = sum(part.name in known for part in parts)
    print_line(f"{done} of {len(parts)} parts are in {file}" + ("; the same command goes on" * (done < len(parts))))
    return done == len(parts)


def environment() -> Found:
    """Versions, the GPUs, and what the environment asks of their arithmetic."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "bfloat16": bool(gpus) and torch.cuda.is_bf16_supported(including_emulation=False),
        "cores": len(os.sched_getaffinity(0)),
        **{name: os.environ.get(name) for name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_VISIBLE_DEVICES")},
    }


def gpu_tests(seconds: float) -> Found:
    """The tests marked `gpu`, to their end."""
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-n0", "--durations=10", "tests"]
    if not Path("tests", "conftest.py").is_file():
        return {"absent": "no tests in the working directory; type the command in a clone"}
    done = _ended(words, seconds)
    return {"exit_code": done.returncode, "end": done.stdout.splitlines()[-40:]}


def throughput(layout: str, repeats: int, words: Sequence[str], iterations: int = 20) -> Found:
    """Images/s of training in a memory layout, and in channels_last of its arithmetic alone, in turns."""
    subject = subject_of(words)
    training = subject.training()
    training.model.to(memory_format=LAYOUTS[layout])
    passed = training.forward
    training.forward = lambda images: passed(images.contiguous(memory_format=LAYOUTS[layout]))
    images = iterations * subject.config.batch_size

    def rate(steps: Iterator) -> float:
        return images / seconds_of(steps, iterations, subject.device)

    candidates: Candidates = {"training": partial(rate, endless(training))}
    if layout == "channels_last":
        candidates["floor"] = partial(rate, floor.arithmetic(subject.training()))
    return {"images/s": in_turns(candidates, repeats)}


def waits(words: Sequence[str]) -> Found:
    """An error where an iteration or an evaluated batch waits for the device; only an epoch's end may."""
    subject = subject_of(words)
    training = subject.training()
    states = fit(training)
    while not next(states).completed:  # code is compiled and graphs are captured
        pass
    yields = len(training.batches) + sum(map(len, training.evaluated.values()))
    if subject.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    for _ in range(yields):
        next(states)
    if subject.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    return {"waits": 0, "yields": yields}


def several(where: Sequence[str], runs: Path, count: int, seconds: float, *, stacked: bool) -> Found:
    """Images/s of each of so many short runs that share the device, or train as one batched network."""
    launcher = [f"launcher.stacked={count}"] if stacked else ["launcher=pool", f"launcher.runs_per_device={count}"]
    with tempfile.TemporaryDirectory(dir=runs if runs.is_dir() else None) as place:
        seeds = f"seed={','.join(map(str, range(count)))}"
        words = ["-m", "model=resnet20", "epochs=3", *where, *launcher, seeds, f"output_root={place}"]
        done = _ended([*DEEPNETS, "train", *words], seconds)
        results = [folder.result or {} for folder in run_folders(Path(place))]
        if done.returncode or not results:
            return {"absent": _last_line(done)}
        return {"images/s of each": [result["images_per_second"] for result in results]}


def trained(words: Sequence[str], folder: RunFolder, seconds: float) -> Found:
    """The result of the run that these options of scripts/train.py make, stopped and saved when the seconds are over.

    Raises:
        Unfinished: it was stopped.
    """
    process = subprocess.Popen([*DEEPNETS, "train", *words])
    try:
        process.wait(max(seconds - SAVING_SECONDS, 1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait(SAVING_SECONDS)
        raise Unfinished from None
    return folder.completed or {"absent": f"{shlex.join(words)} ended with exit code {process.returncode}"}


def _bench(what: str, *words: Any) -> Found:
    """The tables of another bench; its seconds are the last of the words."""
    *options, seconds = words
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "figures.json")
        done = _ended([*DEEPNETS, "bench", what, *options, "--json", str(file)], seconds)
        return json.loads(file.read_text())["tables"] if file.is_file() else {"absent": _last_line(done)}


def _child(what: str, *words: Any) -> Found:
    """What a function of this file returns in a process of its own; its seconds are the last of the words."""
    *given, seconds = words
    done = _ended([sys.executable, "-m", __name__, what, *given], seconds)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"absent": _last_line(done)}


def _ended(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def _in_a_line(found: Found) -> str:
    text = json.dumps(found)
    return text if len(text) < 150 else text[:147] + "..."


def main() -> int:
    """What a process of a part does."""
    what, *words = sys.argv[1:]
    if what == "throughput":
        layout, repeats, *overrides = words
        found = throughput(layout, int(repeats), overrides)
    else:
        found = waits(words)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    run_command(main)
