"""Runs of two processes, on the CPU by gloo: their numbers against one process, and how they end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.config.schema import Config
from deepnets.distributed.world import ALONE, World, joined, world_from_env
from deepnets.runs import checkpoint
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from tests.command import ENVIRONMENT, ROOT, TRAIN, metrics, row
from tests.processes import in_processes

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TINY = ["model.depth=8", "model.widths=[4,4,4]", "precision=fp32", "device=cpu", "devices=2", "threads=2"]
TINY += ["log_iterations=2"]
RUN = [*TINY, "model/shortcut=dropout_inverted", "model/survival=linear_decay", "epochs=12", "checkpoint_seconds=1000"]
# 1437 images: eleven batches of 128 and one of 29, which are divided into 15 and 14.
NETS = {
    "without batch normalisation": ["model/ordering=conv_relu"],
    "over the whole batch": [],
    "over groups within a process": ["model.batchnorm_images=32"],
    "over groups across processes": ["model.batchnorm_images=48"],
}


def trained(config: Config, world: World) -> dict[str, Any]:
    """What one process sees of 14 iterations, which end in the second epoch."""
    training = prepare(config, CPU, torch.float32, world)
    seen: dict[str, Any] = {"yields": 0, "completed": [], "losses": []}
    for state in fit(training):
        seen["yields"] += 1
        assert state.loss is not None  # of the first iterations, whether they are logged or not
        if state.iteration % 2 == 0:
            seen["losses"].append(state.loss.item())
        if state.iteration == 1:
            seen["gradients"] = [parameter.grad.numpy().copy() for parameter in state.model.parameters()]
        if state.completed:
            seen["completed"].append([{"loss": mean.loss, "error": mean.error} for mean in state.completed.values()])
    seen["weights"] = {name: value.numpy() for name, value in training.model.state_dict().items()}
    return seen


def part(configs: list[Config]) -> list[dict[str, Any]]:
    """What each of two processes does in the tests of numbers: one start serves them all."""
    world = world_from_env()
    with joined(world, CPU):
        return [trained(config, world) for config in configs]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> list[Config]:
    root = tmp_path_factory.getbasetemp()
    return [row(root, *TINY, "epochs=null", "iterations=14", *overrides).config for overrides in NETS.values()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("undisturbed"))
    folder.freeze(row(folder.path, *RUN).config, Origin())
    run(folder)
    return folder


@pytest.fixture(scope="module")
def together(configs: list[Config]) -> list[list[dict[str, Any]]]:
    """By rank, and by net."""
    return in_processes(2, part, configs)


@pytest.mark.parametrize(("number", "rounding"), [(0, 1e-5), (1, 2e-3), (2, 2e-3), (3, 2e-3)])  # of normalisation more
def test_two_processes_train_as_one_does_with_the_whole_batch(
    together: list[list[dict[str, Any]]], configs: list[Config], number: int, rounding: float
) -> None:
    alone = trained(configs[number], ALONE)
    for rank in (0, 1):
        seen = together[rank][number]
        torch.testing.assert_close(seen["gradients"], alone["gradients"], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(seen["weights"], alone["weights"], rtol=0, atol=rounding)
        torch.testing.assert_close(seen["completed"], alone["completed"], rtol=0, atol=rounding)
        torch.testing.assert_close(seen["losses"], alone["losses"], rtol=0, atol=rounding)


def test_all_processes_see_the_same_yields_losses_and_errors(together: list[list[dict[str, Any]]]) -> None:
    for first, second in zip(*together, strict=True):
        assert {key: first[key] for key in ("yields", "completed", "losses")} == {
            key: second[key] for key in ("yields", "completed", "losses")
        }
        assert first["yields"] == 14 + 2 * 1 + 2  # 360 test images: 180 each
        for _, test in first["completed"]:
            assert round(test["error"] * 3.6, 6) == round(test["error"] * 3.6)  # percent of 360 images


def command(folder: RunFolder, *words: str, **environment: str) -> subprocess.Popen[str]:
    """`python -m deepnets.run FOLDER`, or another command in `words`, in a session of its own."""
    return subprocess.Popen(
        words or [sys.executable, "-m", "deepnets.run", str(folder.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        start_new_session=True,
    )


def processes(session: int) -> dict[int, str]:
    """The command lines of the session's living processes."""
    there = {}
    for process in Path("/proc").iterdir():
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            line = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if process.name.isdigit() and int(fields[3]) == session and fields[0] != "Z":
            there[int(process.name)] = line
    return there


def ranks(session: int) -> list[int]:
    """The processes that train."""
    return sorted(pid for pid, line in processes(session).items() if "--quiet" in line and "-c" not in line.split())


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


def assert_ended(session: int) -> None:
    """No process is left, but that one which is killed takes a moment to end."""
    wait_until(lambda: processes(session) == {}, 60)


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    told = ""
    for line in process.stdout:
        told += line
        if re.match(pattern, line):
            return told
    raise AssertionError(f"ended before {pattern}: {told}")


def frozen(folder: Path, *overrides: str) -> RunFolder:
    run_folder = RunFolder(folder)
    run_folder.freeze(row(folder, *RUN, *overrides).config, Origin())
    return run_folder


@pytest.mark.nightly
def test_a_stopped_run_continues_to_the_same_bits_under_torchrun_too(undisturbed: RunFolder, tmp_path: Path) -> None:
    folder = frozen(tmp_path)
    process = command(folder)
    wait_until(lambda: len(ranks(process.pid)) == 2, 300)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does; the two still import torch
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 130, told
    assert told.count("SIGINT") == 1
    assert "Traceback" not in told
    assert_ended(process.pid)
    assert checkpoint.load(folder.path)[0]["training"]["iteration"] < 12

    process = command(folder)
    read_until(process, "epoch 3/")
    process.send_signal(signal.SIGUSR1)  # to the parent alone, as a batch script does
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 138, told
    assert told.count("SIGUSR1") == 1
    assert_ended(process.pid)
    assert not (tmp_path / "result.json").exists()
    assert folder.status.state == "stopped"

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m"]
    process = command(folder, *torchrun, "deepnets.run", str(tmp_path))
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert told.count("resuming at iteration") == 1
    assert metrics(folder.path) == metrics(undisturbed.path)
    assert len(metrics(folder.path)) == 12
    ours, theirs = (checkpoint.load(path)[0]["training"] for path in (folder.path, undisturbed.path))
    for name, weight in theirs["model"].items():
        assert torch.equal(ours["model"][name], weight), name
    assert torch.equal(ours["random"], theirs["random"])
    assert torch.equal(ours["survival"], theirs["survival"])


@pytest.mark.nightly
def test_a_killed_process_ends_the_row_and_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    folder = frozen(tmp_path, "epochs=2000")
    process = command(folder)
    read_until(process, "epoch 2/")
    killed_at = time.monotonic()
    os.kill(ranks(process.pid)[1], signal.SIGKILL)
    told, _ = process.communicate(timeout=300)
    assert time.monotonic() - killed_at < 60
    assert process.returncode == 1
    assert_ended(process.pid)
    assert "process 1 of 2: killed by SIGKILL" in told
    assert re.match(r"process 1 of 2: killed by SIGKILL", folder.result.reason)
    assert folder.result.reason in (tmp_path / "log.txt").read_text()

    process = command(folder)
    read_until(process, "epoch 2/")
    assert folder.result is None
    os.kill(ranks(process.pid)[1], signal.SIGSTOP)  # the other one hangs, waiting for it
    time.sleep(0.5)
    process.kill()
    assert_ended(process.pid)
    process.communicate()


def listening(pids: Iterable[int]) -> list[str]:
    """The addresses, in hexadecimal, at which the processes accept connections from a network."""
    links = [os.readlink(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return [words[1].partition(":")[0] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in links]


@pytest.mark.attack
def test_a_run_listens_on_loopback_only_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    folder = frozen(tmp_path / "seed0", "epochs=2000")
    process = command(folder, TMPDIR=str(tmp_path / "tmp"))
    told = read_until(process, "epoch 2/")
    addresses = listening(processes(process.pid))
    process.kill()
    process.communicate()
    assert "Warning" not in told
    assert len(addresses) >= 2  # one of each process that trains
    assert set(addresses) <= {"0100007F", "0" * 24 + "01000000"}
    assert_ended(process.pid)
    assert not list((tmp_path / "tmp").iterdir())


def sent(values: list[Any]) -> list[Any]:
    """What a process has after the first one has broadcast each value."""
    world = world_from_env()
    with joined(world, CPU):
        return [world.broadcast_value(value if world.is_first else None) for value in values]


@pytest.mark.attack
def test_values_are_broadcast_bit_by_bit_and_no_object_is(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tensors = [images, images[:, :2], torch.tensor(True), torch.empty(0, 3), torch.ones(3, dtype=torch.bfloat16)]
    values = [None, 0.1 + 0.2, float("inf"), {0: ("a", [1, None]), "tensors": tensors}, []]
    for seen in in_processes(2, sent, values):
        torch.testing.assert_close(seen[3].pop("tensors"), tensors, rtol=0, atol=0, check_stride=False)
        assert [*seen[:3], *seen[4:]] == [None, 0.1 + 0.2, float("inf"), []]
        assert seen[3] == {0: ("a", [1, None])}
    with pytest.raises(AssertionError):  # the process has ended with a TypeError
        in_processes(2, sent, [object()])


def test_a_process_that_raises_ends_the_row_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef cliff(total):\n    def factor(iteration):\n"
        "        if iteration == 20 and os.environ.get('RANK') == '1':\n"
        "            raise ArithmeticError('over the edge')\n        return 1.0\n    return factor\n"
    )
    words = [*TRAIN, *RUN, "schedule=cosine", "schedule._target_=mine.cliff", "--trust=mine.cliff"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [*words, f"output_root={tmp_path / 'out'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert_ended(process.pid)
    (path,) = (tmp_path / "out").glob("runs/*/seed0")
    assert RunFolder(path).result.reason == "ArithmeticError: over the edge (process 1 of 2)"
    for text in (told, (path / "log.txt").read_text()):
        assert "in factor" in text
        assert "ArithmeticError: over the edge" in text
        assert "peer" not in text


@pytest.mark.gpu(devices=2)
@pytest.mark.parametrize("images", ["null", "64"])
def test_two_gpus_train_by_nccl_and_continue(tmp_path: Path, images: str) -> None:
    folder = frozen(tmp_path, "device=cuda", f"model.batchnorm_images={images}")
    process = command(folder)
    read_until(process, "epoch 3/")
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 143, told
    process = command(folder)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "resuming at iteration" in told
    assert len(metrics(folder.path)) == 12
