"""The least that an iteration of training can take: its arithmetic alone, and what the device could do at best."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from deepnets.bench.figures import Candidates
from deepnets.bench.subject import Subject
from deepnets.launch.cost import size_of
from deepnets.models.settings import Memory
from deepnets.training.assembly import dataset_of
from deepnets.training.fit import Training
from deepnets.training.hardware import wait

# Of the square matrices and of the tensor that are multiplied and copied: far larger than any cache.
MATRIX = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}


def arithmetic(training: Training) -> Iterator[None]:
    """Endless optimiser steps on one batch that stays on the device: no data pipeline, no sums, no schedule, no log."""
    images, labels = next(iter(training.batches.epoch(0)))
    training.model.train()
    while True:
        logits = forward(training, images)
        loss = cross_entropy(logits.float(), labels)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        yield


def forward(training: Training, images: Tensor) -> Tensor:
    """Logits by the run's arithmetic."""
    enabled = training.precision == torch.bfloat16
    with torch.autocast(training.device.type, torch.bfloat16, enabled=enabled):
        return training.model(images)


def flops_of(subject: Subject) -> int:
    """Of training on one image: 2 a multiply-add, forward, backward to the inputs, backward to the weights."""
    return 2 * 3 * size_of(subject.config, dataset_of(subject.config)).macs


def bytes_of(subject: Subject) -> int:
    """That one iteration must move: 2 S + 24 P.

    S is what autograd keeps of a batch with memory=full, written by the forward and read by the backward pass. P are
    the parameters: gradients are written and read, weights and momentum read and written, 4 bytes each. Gradients of
    activations and second reads of them are left out, which a perfect fusion of layers could avoid.
    """
    training = replace(subject, config=replace(subject.config, memory=Memory.full)).training()
    images, _ = next(iter(training.batches.epoch(0)))
    group = min(len(images) // 2, subject.config.model.get("batchnorm_images") or 2)
    one, two = (kept_bytes(training, images[: n * group]) for n in (1, 2))
    each = (two - one) / group  # what does not grow with the batch (bfloat16 copies of weights) drops out
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    return round(2 * each * subject.config.batch_size + 24 * parameters)


def kept_bytes(training: Training, images: Tensor) -> int:
    """What autograd keeps of a forward pass for the backward pass, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in training.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training.model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = forward(training, images)  # alive until all is counted, or memory would be given out twice
    del logits
    return sum(kept.values())


def at_best(subject: Subject) -> tuple[Candidates, list[str]]:
    """Images/s if only multiply-adds counted, and if only bytes did, at the rates that this device reaches just now."""
    flops, moved = flops_of(subject), bytes_of(subject)
    batch = subject.config.batch_size
    candidates: Candidates = {
        "FLOP floor": lambda: matmul_rate(subject.device, subject.precision) / flops,
        "byte floor": lambda: copy_rate(subject.device) / moved * batch,
    }
    notes = [
        f"FLOP floor: {flops / 1e6:,.1f} MFLOP an image (6 a multiply-add) at the rate of a large matmul",
        f"byte floor: {moved / 1e6:,.1f} MB an iteration (2 S + 24 P: activations kept for the backward pass written "
        "and read; weights, gradients and momentum) at the rate of a large copy, which caches may exceed",
    ]
    return candidates, notes


def matmul_rate(device: torch.device, precision: torch.dtype) -> float:
    """FLOP/s of a large product of matrices."""
    n = MATRIX[device.type]
    a, b = (torch.randn(n, n, device=device).to(precision) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device)


def copy_rate(device: torch.device) -> float:
    """Bytes/s of a large copy, read and written ones counted."""
    source = torch.zeros(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    """Of one `act`, the mean of several after a first."""
    act()
    wait(device)
    started = time.perf_counter()
    for _ in range(4):
        act()
    wait(device)
    return (time.perf_counter() - started) / 4
