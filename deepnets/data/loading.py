"""Images that workers read, decode and crop while a network trains, as uint8 batches on the device."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from deepnets.data.decoding import Decoder, Encoded, decoded
from deepnets.distributed.signals import SIGNALS
from deepnets.errors import UserError, printable

MOST_WORKERS = 16
ORPHANED_SECONDS = 5.0


@dataclass(frozen=True)
class Loading:
    """Who reads and decodes, for `device`: so many worker processes, or with 0 this one.

    In place of an unreadable image stands, with `skip_unreadable`, the next one of the split that is readable: so each
    batch has its images, in every process. `skipped` are those that were found. With decoder=gpu workers only read;
    the device decodes and crops.
    """

    workers: int
    device: torch.device
    skip_unreadable: bool
    decoder: Decoder = "cpu"
    skipped: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Crops(Dataset):
    """Training images by their numbers: pixels (n, H, W, 3) uint8, labels (n,), and draws of colours.

    These are normal ones for lighting (n, 3), and even ones from [-1, 1) for jitter (n, 3).
    """

    images: Encoded
    cropped: Callable[[Tensor], Tensor]
    draw: tuple[int, int]
    loading: Loading

    def __getitem__(self, numbers: np.ndarray) -> tuple[Any, list[str]]:
        return self.batch(numbers, partial(decoded, self.images))

    def batch(self, numbers: np.ndarray, decode: Callable[[int], Tensor]) -> tuple[Any, list[str]]:
        """The tensors of these images, or None, and what is wrong with some of them."""
        problems: list[str] = []
        readable, pixels = numbers.copy(), []
        lights, jitters = torch.empty(2, len(numbers), 3)
        with torch.random.fork_rng(devices=[]):
            for place, number in enumerate(numbers.tolist()):
                # Of this generator alone: seeding those of absent devices takes as long as half of decoding.
                torch.default_generator.manual_seed(_seed(*self.draw, number))
                lights[place] = torch.randn(3)
                readable[place], image = _readable(self, number, decode, problems)
                if image is None:
                    return None, problems
                pixels.append(self.cropped(image).permute(1, 2, 0))
                jitters[place] = torch.rand(3) * 2 - 1
        # Collated, they lie at once in the memory that workers share.
        return (default_collate(pixels), self.images.labels[readable], lights, jitters), problems


@dataclass(frozen=True)
class Views(Dataset):
    """Images by their numbers: a tensor (n * k, h, w, 3) uint8 for each size of view, labels (n,)."""

    images: Encoded
    views: Callable[[Tensor], list[Tensor]]
    loading: Loading

    def __getitem__(self, numbers: np.ndarray) -> tuple[Any, list[str]]:
        return self.batch(numbers, partial(decoded, self.images))

    def batch(self, numbers: np.ndarray, decode: Callable[[int], Tensor]) -> tuple[Any, list[str]]:
        """The tensors of these images, or None, and what is wrong with some of them."""
        problems: list[str] = []
        readable, seen = numbers.copy(), []
        for place, number in enumerate(numbers.tolist()):
            readable[place], image = _readable(self, number, decode, problems)
            if image is None:
                return None, problems
            seen.append(self.views(image))
        pixels = [torch.cat(same).permute(0, 2, 3, 1).contiguous() for same in zip(*seen, strict=True)]
        return (pixels, self.images.labels[readable]), problems


def _readable(
    dataset: "Crops | Views", number: int, decode: Callable[[int], Tensor], problems: list[str]
) -> tuple[int, Tensor | None]:
    """That image, or where unreadable ones are skipped the next readable one; adds what is wrong to `problems`."""
    images = dataset.images
    for candidate in chain(range(number, len(images)), range(number)):
        try:
            return candidate, decode(candidate)
        except UserError as error:
            problems.append(str(error))
            if not dataset.loading.skip_unreadable:
                break
    return number, None


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def loaded(dataset: Crops | Views, batches: Sequence[np.ndarray]) -> Iterator[Any]:
    """The tensors of each batch on the device, in order.

    Raises:
        UserError: an image cannot be read, and is not to be skipped.
    """
    loading = dataset.loading
    workers = min(loading.workers, len(batches))
    loader: DataLoader = DataLoader(
        dataset if loading.decoder == "cpu" else _Bytes(dataset.images),
        batch_size=None,
        sampler=batches,  # type: ignore[arg-type]
        num_workers=workers,
        # From Python 3.14 on the default is a server that forks, not this process, whose end they watch.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        pin_memory=loading.device.type == "cuda" and loading.decoder == "cpu",
        worker_init_fn=partial(_leave_signals_to_the_parent, os.getpid()),
        generator=torch.Generator(),  # of the workers' seeds, which nothing here uses; the run's own is left as it is
    )
    results = loader if loading.decoder == "cpu" else map(partial(_decoded_there, dataset), batches, loader)
    for tensors, problems in results:
        if tensors is None:
            raise UserError(problems[0])
        for name in (problem.partition(" is not a readable image")[0] for problem in problems):
            if name not in loading.skipped:
                loading.skipped.add(name)
                print(
                    printable(f"warning: {name} cannot be read; skipped ({len(loading.skipped)} so far)"),
                    file=sys.stderr,
                )
        yield _moved(tensors, loading.device)


@dataclass(frozen=True)
class _Bytes(Dataset):
    """Images by their numbers as they lie in their files, those that can be read by their number."""

    images: Encoded

    def __getitem__(self, numbers: np.ndarray) -> dict[int, Tensor]:
        read = {}
        for number in numbers.tolist():
            with suppress(OSError):  # noted when it is decoded
                read[number] = self.images.read(number)
        return read


def _decoded_there(dataset: Crops | Views, numbers: np.ndarray, read: dict[int, Tensor]) -> tuple[Any, list[str]]:
    """Those images, decoded together on the device, or where one is no such JPEG one by one in this process."""
    from torchvision.io import ImageReadMode, decode_jpeg

    device = dataset.loading.device
    there: dict[int, Tensor] = {}
    with suppress(RuntimeError, ValueError):  # one is no JPEG or a damaged one, or none could be read
        there = dict(zip(read, decode_jpeg(list(read.values()), ImageReadMode.RGB, device), strict=True))

    def decode(number: int) -> Tensor:
        return there[number] if number in there else decoded(dataset.images, number).to(device)

    return dataset.batch(numbers, decode)


def default_workers() -> int:
    """As many as this process has cores, which those of its machine share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return [_moved(one, device) for one in value]


def _leave_signals_to_the_parent(parent: int, worker: int) -> None:
    """It saves the run first; a scheduler signals all processes, and one that loses a worker fails instead."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigtimedwait"):
        threading.Thread(target=_end_for_the_parent, args=(parent,), daemon=True).start()


def _end_for_the_parent(parent: int) -> None:
    """Where it says so, or is no more: torch's own watch misses a parent that was killed as this process began."""
    while os.getppid() == parent:
        if (said := signal.sigtimedwait({signal.SIGTERM}, ORPHANED_SECONDS)) and said.si_pid == parent:
            break
    os._exit(0)
