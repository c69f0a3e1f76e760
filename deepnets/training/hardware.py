"""The devices and the arithmetic that this machine offers."""

import ctypes
import os
import re
from dataclasses import replace
from pathlib import Path

import torch

from deepnets.config.schema import Config, Precision
from deepnets.errors import UserError
from deepnets.system import usable_cores

DEVICE_FILES = Path("/dev")  # where NVIDIA's driver puts a file for each GPU
# Two parameters of glibc's mallopt (malloc.h), and the largest values that they may have.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_TRIM, LARGEST_MMAP = 2**31 - 1, 32 * 2**20
CORES_PER_GPU = 2  # for the loop, and for the threads of autograd, NCCL and the heartbeat


def find_device(name: str) -> torch.device:
    """Return the device called `name` ("cpu", "cuda", "cuda:1"); for "auto" the first GPU if there is one.

    Raises:
        UserError: `name` names no device, this machine has no such device, or `name` is "auto" and torch cannot use
            the GPU: the run would train on the CPU, and nobody would know why it is slow.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ", ".join(["cpu", *(f"cuda:{index}" for index in range(gpus))])
    if name == "auto":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # by the user
        if not gpus and not hidden and torch.version.cuda and (files := sorted(DEVICE_FILES.glob("nvidia[0-9]*"))):
            raise UserError(
                f"device=auto: {files[0]} is a GPU, but CUDA {torch.version.cuda} of this torch does not start "
                f"({_why_cuda_fails()}); install a driver and a torch that fit, or train on the CPU by device=cpu"
            )
        return torch.device("cuda", 0) if gpus else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name}: not the name of a device; this machine has: {devices}") from None
    if device.type == "cuda" and (device.index or 0) < gpus:
        return torch.device("cuda", device.index or 0)
    if device.type == "cpu":
        return torch.device("cpu")
    raise UserError(f"device={name}: not on this machine, which has: {devices}")


def device_of_process(name: str, local_rank: int) -> torch.device:
    """Return the device called `name` for one of several processes of this machine; each process has its own GPU.

    If a scheduler shows each process only its own GPU, this is `cuda:0` in all processes.
    """
    device = find_device(name)
    return find_device(f"cuda:{local_rank}") if device.type == "cuda" and torch.cuda.device_count() > 1 else device


def scarce_cores(device: torch.device) -> str | None:
    """Return a warning if the processes of a run have too few cores to feed their GPUs, else None."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # they share the cores
    cores = usable_cores()
    if device.type != "cuda" or cores >= CORES_PER_GPU * processes:
        return None
    return f"{cores} CPU cores feed {processes} GPUs, which may wait for them: launcher.cpus=4 asks SLURM for more"


def set_arithmetic(*, deterministic: bool = False) -> None:
    """Let GPUs compute float32 products and convolutions in float32, even if the environment asks for TF32.

    With `deterministic`, an operation raises an error if it cannot add in the same order every time.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it, and reads it when it starts
    if deterministic != torch.are_deterministic_algorithms_enabled():  # it imports torch's compiler
        torch.use_deterministic_algorithms(deterministic)


def with_counted_devices(config: Config) -> Config:
    """Return `config` with a number of devices: `devices=auto` becomes the number of GPUs.

    It becomes 1 on the CPU, and if `device` names one GPU, as cuda:1 does.

    Raises:
        UserError: `devices` is neither a number >= 1 nor auto, or `find_device` raises it.
    """
    if config.devices == "auto":
        is_all = find_device(config.device).type == "cuda" and ":" not in config.device
        return replace(config, devices=torch.cuda.device_count() if is_all else 1)
    if type(config.devices) is not int or config.devices < 1:
        raise UserError(f"devices={config.devices}: must be at least 1, or auto")
    return config


def _why_cuda_fails() -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # torch raises several kinds of error
        return " ".join(str(error).split())
    return "it shows no device"


def choose_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the dtype of the forward pass; "auto" is bfloat16 if the device computes it without emulation."""
    if precision is Precision.auto:
        native = _gpu_computes_bfloat16(device) if device.type == "cuda" else _cpu_computes_bfloat16()
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if precision is Precision.bf16 else torch.float32


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, instead of returning it to the system.

    Training on a CPU allocates the same large tensors at each step. Does nothing if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP)
        mallopt(M_TRIM_THRESHOLD, LARGEST_TRIM)


def describe(device: torch.device) -> str:
    """Return the device's product name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return torch.cpu.get_capabilities().get("cpu_name", "cpu")


def processor_model() -> str:
    """Return maker, family and model of the first processor, which tell its generation, as `describe` may not.

    On Linux on x86, e.g. "AuthenticAMD family 25 model 17"; empty elsewhere.
    """
    facts = _processor_facts()
    names = ("vendor_id", "cpu family", "model")
    return "{} family {} model {}".format(*(facts[name] for name in names)) if facts.keys() >= {*names} else ""


def describe_processor() -> str:
    """Return `processor_model` and the clock, e.g. "AuthenticAMD family 25 model 17, 2600 MHz"; empty if unknown.

    If the clock varies, this is its present value.
    """
    model, clock = processor_model(), _processor_facts().get("cpu MHz")
    return f"{model}, {float(clock):.0f} MHz" if model and clock else ""


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _processor_facts() -> dict[str, str]:
    try:
        first, *_ = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return {}
    return dict(re.findall(r"^(.+?)\s*: (.*)$", first, re.MULTILINE))


def _gpu_computes_bfloat16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def _cpu_computes_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
