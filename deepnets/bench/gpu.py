"""Everything that needs a GPU, part by part, into one file: the same command resumes where the last one ended.

In this order: the GPU's tests; the default run; images/s by `step` and memory layout beside the floor; waits for the
device within an epoch; memory of the deepest network; several runs on the GPU; stochastic depth, stopping, both
arithmetics, data and peers, several GPUs; then ResNet-110 in both forms by the full protocol. Each part is a process of
its own, and is written down once it is measured, or with the reason why it cannot be. The tests are those of the clone
that is the working directory.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepnets.bench.figures import Figures
from deepnets.bench.parts import Found, Part, follow, stored
from deepnets.bench.steps import LAYOUTS
from deepnets.bench.trainings import DEEPNETS, analysed, ended, last_line, results_of, several, stopped, trained
from deepnets.config.schema import StepKind
from deepnets.errors import UserError
from deepnets.models.settings import Memory
from deepnets.runs.folder import RunFolder

MODELS = {"resnet20": 40, "resnet110": 20, "resnet164": 20, "resnet1001": 4}  # with the iterations of a measurement
SHARING = (1, 2, 5)  # runs at once
PUBLISHED = "he2016_table3_cifar10"  # whose rows of ResNet-110 are trained
COMPILED = (StepKind.compiled, StepKind.compiled_graphed)
COMPILING_SECONDS = 180.0  # what takes longer is absent, or the deepest networks could use up all the minutes
TESTS_SECONDS = 300.0


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
    follow(parts_of(where, arguments.json.resolve(), arguments.repeats, "cuda"), arguments.json, arguments.minutes)
    return []


def parts_of(where: Sequence[str], file: Path, repeats: int, device: str) -> list[Part]:
    """All parts, on the data that the options `where` name; long trainings lie beside `file`, in its `.runs`."""
    on, deepest = f"device={device}", [*MODELS][-1]
    there = [*where, on]
    parts = [Part("environment", lambda _: environment())]
    for name, which in {"tests": "not compiled", "tests of compiled code": "compiled"}.items():
        parts.append(Part(name, partial(gpu_tests, which), TESTS_SECONDS))
    parts.append(Part("the default, trained and analysed", partial(analysed, [on], device)))
    parts += _throughputs(there, repeats)
    for step in StepKind:
        words = [on, f"step={step}", "dataset=synthetic", "dataset.source.train=1300", "model=resnet20"]
        parts.append(Part(f"waits {step}", partial(_steps, "waits", *words), COMPILING_SECONDS))
    for mode in Memory:
        words = ["--model", deepest, "--modes", mode, "--iterations", "1", "--repeats", "1", on]
        parts.append(Part(f"memory {deepest} {mode}", partial(_bench, "memory", *words)))
    short = [*there, "model=resnet20", "epochs=3"]
    for count in SHARING:
        parts.append(Part(f"{count} at once", partial(several, short, count, stacked=False)))
    parts.append(Part(f"{SHARING[-1]} stacked", partial(several, short, SHARING[-1], stacked=True)))
    parts += _checks(there, file, repeats, on)
    runs = file.with_suffix(".runs")
    for ordering in ("original", "full_preactivation"):
        row = [f"sweep={PUBLISHED}", "model=resnet110", f"model/ordering={ordering}", "seed=0", f"output_root={runs}"]
        row += [word for word in there if not word.startswith("dataset=")]
        folder = RunFolder(runs / PUBLISHED / f"resnet110,{ordering}" / "seed0")

        def train(seconds: float, row: list[str] = row, folder: RunFolder = folder) -> Found:
            return trained([*row, f"step={fastest(file)}"], folder, seconds)

        parts.append(Part(f"full protocol resnet110 {ordering}", train))
    return parts


def _throughputs(there: Sequence[str], repeats: int) -> list[Part]:
    """Compiled code chooses memory layouts itself, and is a part of its own: it may take long, or for ever."""
    parts = []
    for model, iterations in MODELS.items():
        for precision in ("bf16", "fp32"):
            ways = [f"{step} {layout}" for step in (StepKind.eager, StepKind.graphed) for layout in LAYOUTS]
            numbers = [",".join(ways), repeats, iterations, *there, f"model={model}", f"precision={precision}"]
            parts.append(Part(f"training {model} {precision}", partial(_steps, "throughput", *numbers)))
    for step in COMPILED:
        for model, iterations in MODELS.items():
            ways = ["eager channels_last", f"{step} channels_last"]
            numbers = [",".join(ways), repeats, iterations, *there, f"model={model}", "precision=bf16"]
            part = partial(_steps, "throughput", *numbers)
            parts.append(Part(f"training {model} bf16 {step}", part, COMPILING_SECONDS))
    return parts


def _checks(there: Sequence[str], file: Path, repeats: int, on: str) -> list[Part]:
    """What has no figure of its own in the order above, and may behave otherwise on a GPU."""
    stop = [*there, "model=resnet20", "epochs=3", "deterministic=true"]
    values = ["images_per_second", "test_error"]
    parts = [
        Part("stochastic depth", partial(results_of, [*there, "model=stochastic_depth110", "epochs=1"], values)),
        Part("stopped and resumed", partial(stopped, stop)),
    ]
    for precision in ("fp32", "bf16"):
        words = ["-m", *there, "model=preact110", "epochs=3", "seed=0,1,2", f"precision={precision}"]

        def train(seconds: float, words: list[str] = words) -> Found:
            return results_of([*words, f"step={fastest(file)}"], ["train_error", "test_error"], seconds)

        parts.append(Part(f"preact110 {precision}", train))
    options = ["--repeats", str(repeats), *there]
    parts.append(Part("data", partial(_bench, "data", *options)))
    parts.append(Part("training beside peers", partial(_bench, "training", "--peers", "plain", *options)))
    for name, images in {"the whole batch": "null", "each process": "64"}.items():
        words = ["--model", "resnet110", on, f"model.batchnorm_images={images}", "batch_size=128"]
        parts.append(Part(f"two processes, statistics of {name}", partial(_two, words)))
    return parts


def environment() -> Found:
    """Versions, the GPUs, and what the environment asks of their arithmetic."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "bfloat16": bool(gpus) and torch.cuda.is_bf16_supported(including_emulation=False),
        "cores": len(os.sched_getaffinity(0)),
        **{name: os.environ.get(name) for name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_VISIBLE_DEVICES")},
    }


def gpu_tests(which: str, seconds: float) -> Found:
    """The tests marked `gpu` whose names are meant by pytest's -k; other files may need what is not installed."""
    files = [str(file) for file in sorted(Path("tests").rglob("test_*.py")) if "pytest.mark.gpu" in file.read_text()]
    if not files:
        return {"absent": "no tests in the working directory; type the command in a clone"}
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n0", "-k", which, "--durations=10", *files]
    done = ended(command, seconds)
    return {"exit_code": done.returncode, "end": (done.stdout or done.stderr).splitlines()[-40:]}


def fastest(file: Path) -> str:
    """The step that trained the most images/s of ResNet-110 in bfloat16, as far as that is known."""
    rates = {"eager": 0.0}
    for name, found in stored(file).items():
        if name.startswith("training resnet110 bf16"):
            for way, each in found.get("images/s", {}).items():
                if way.endswith(" channels_last"):
                    rates[way.split()[0]] = statistics.median(each)
    return max(rates, key=rates.__getitem__)


def _two(words: Sequence[str], seconds: float) -> Found:
    if "device=cuda" in words and torch.cuda.device_count() < 2:
        return {"absent": "two processes need two GPUs"}
    return _bench("ddp", *words, seconds)


def _bench(what: str, *words: Any) -> Found:
    """The tables of another bench; its seconds are the last of the words."""
    *options, seconds = words
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "figures.json")
        done = ended([*DEEPNETS, "bench", what, *options, "--json", str(file)], seconds)
        return json.loads(file.read_text())["tables"] if file.is_file() else {"absent": last_line(done)}


def _steps(what: str, *words: Any) -> Found:
    """What a function of `steps` returns in a process of its own; its seconds are the last of the words."""
    *given, seconds = words
    done = ended([sys.executable, "-m", "deepnets.bench.steps", what, *map(str, given)], seconds)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"absent": last_line(done)}
