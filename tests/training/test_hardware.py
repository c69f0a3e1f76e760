"""Devices and arithmetic."""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepnets.config.schema import Precision
from deepnets.errors import UserError
from deepnets.training import hardware
from deepnets.training.hardware import (
    choose_precision,
    describe,
    device_of_process,
    find_device,
    scarce_cores,
    with_counted_devices,
)
from tests.command import ENVIRONMENT, ROOT, row

CPU = torch.device("cpu")


def test_automatic_choice_takes_the_first_gpu_or_the_cpu() -> None:
    assert find_device("auto") == find_device("cpu") == CPU


def test_automatic_number_of_devices_is_that_of_the_gpus_or_one(tmp_path: Path) -> None:
    config = row(tmp_path, "devices=auto").config
    assert with_counted_devices(config).devices == 1
    assert with_counted_devices(replace(config, device="cpu")).devices == 1
    assert with_counted_devices(row(tmp_path, "devices=3").config).devices == 3
    for wrong in ("all", "0", "1.5", "true", "null"):
        with pytest.raises(UserError, match="must be at least 1, or auto"):
            with_counted_devices(row(tmp_path, f"devices={wrong}").config)


def test_no_test_without_the_mark_sees_a_gpu() -> None:
    assert not torch.cuda.is_available()
    assert (
        subprocess.run([sys.executable, "-c", "import os; assert not os.environ['CUDA_VISIBLE_DEVICES']"]).returncode
        == 0
    )


def test_where_a_process_sees_one_gpu_that_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of_process("cpu", 3) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for there, expected in ((1, 0), (8, 3)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda there=there: there)
        assert device_of_process("auto", 3) == torch.device("cuda", expected)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="cuda:3: not on this machine"):
        device_of_process("cuda", 3)


def test_processes_that_share_too_few_cores_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: range(4))
    gpu = torch.device("cuda", 0)
    for processes, is_scarce in ((1, False), (2, False), (3, True)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert bool(scarce_cores(gpu)) is is_scarce
        assert scarce_cores(CPU) is None
    assert scarce_cores(gpu).startswith("4 CPU cores feed 3 GPUs")


@pytest.mark.slow
def test_float32_is_no_tf32_whatever_the_environment_asks_for() -> None:
    code = """
import torch
from deepnets.training.hardware import set_arithmetic
flags = lambda: [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
assert flags() == [True, True]
set_arithmetic(deterministic=True)
assert flags() == [False, False]
assert torch.are_deterministic_algorithms_enabled()
set_arithmetic()
assert not torch.are_deterministic_algorithms_enabled()
"""
    environment = {**ENVIRONMENT, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT)


@pytest.mark.skipif(
    not torch.version.cuda or any(hardware.DEVICE_FILES.glob("nvidia[0-9]*")), reason="needs CUDA in torch and no GPU"
)
def test_a_gpu_that_cuda_cannot_use_is_an_error_and_not_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(hardware, "DEVICE_FILES", tmp_path)
    assert find_device("auto") == CPU
    (tmp_path / "nvidia0").touch()
    with pytest.raises(UserError, match=r"nvidia0 is a GPU, but CUDA .* does not start \(.+\); .*device=cpu"):
        find_device("auto")
    assert find_device("cpu") == CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_device("auto") == CPU


@pytest.mark.parametrize("name", ["cuda:99", "abacus", "meta", "mps"])
def test_a_device_that_is_not_there_is_told_with_those_that_are(name: str) -> None:
    with pytest.raises(UserError, match=r"this machine.* has: cpu"):
        find_device(name)


def test_precision_is_as_asked_or_as_the_hardware_computes() -> None:
    assert choose_precision(Precision.fp32, CPU) is torch.float32
    assert choose_precision(Precision.bf16, CPU) is torch.bfloat16


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="reads the CPU's flags from Linux")
def test_automatic_precision_is_bfloat16_where_the_cpu_computes_in_it() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    native = "avx512_bf16" in flags or "amx_bf16" in flags
    assert choose_precision(Precision.auto, CPU) is (torch.bfloat16 if native else torch.float32)


def test_a_device_has_a_name() -> None:
    assert describe(CPU)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc only")
def test_memory_that_was_freed_is_used_again_without_new_pages() -> None:
    code = """
import resource, sys, torch
from deepnets.training.hardware import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**22) for _ in range(8)]
    del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if "keep" in sys.argv:
    keep_freed_memory()
print([faults() for _ in range(8)][-1])
"""

    def last_time(*arguments: str) -> int:
        command = [sys.executable, "-c", code, *arguments]
        # A fixed threshold returns each tensor; malloc's own may keep some too, as the heap happens to lie.
        environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}
        return int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)

    # Not at once: where something small took a freed chunk's end, a tensor no longer fits and moves to new pages.
    assert last_time("keep") < last_time() // 8
