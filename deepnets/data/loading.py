"""Lets workers read, decode and crop photographs while a network trains, and makes batches of them on the device.

Pixels stay uint8 until the device normalises them.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import ceil
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from deepnets.data.augmentation import ViewName, jittered, lighting, views
from deepnets.data.batches import OrderedBatches, ShuffledBatches
from deepnets.data.class_folders import ImageFiles
from deepnets.data.normalization import Normalization
from deepnets.distributed.signals import SIGNALS
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError, printable
from deepnets.system import usable_cores

MOST_WORKERS = 16
ORPHANED_SECONDS = 5.0
TOP = 5  # ImageNet's second error counts images whose label is not among the five classes with the highest scores

Decoder = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Loading:
    """Says how photographs reach `device`: `workers` processes read and decode them, or this process if there are 0.

    With `skip_unreadable`, the next readable image of the split replaces an unreadable one, so that every process has
    full batches. `skipped` holds the unreadable files found so far. With decoder=gpu workers only read, and the device
    decodes and crops.
    """

    workers: int
    device: torch.device
    skip_unreadable: bool
    decoder: Decoder = "cpu"
    skipped: set[str] = field(default_factory=set)


class StreamedTraining(ShuffledBatches):
    """This process's share of shuffled batches of random crops, each image once an epoch.

    As in `TrainingBatches`, the order depends only on (seed, epoch); an image's crop and colours depend only on (seed,
    epoch, image). So they are the same for any number of processes and workers, and after resuming. `lights` is the
    standard deviation of lighting noise (fb.resnet.torch: 0.1; 0 for none). The factors of brightness, contrast and
    saturation differ from 1 by at most `jitter` (fb.resnet.torch: 0.4).
    """

    def __init__(
        self,
        images: ImageFiles,
        normalization: Normalization,
        cropped: Callable[[Tensor], Tensor],
        loading: Loading,
        *,
        lights: float,
        jitter: float,
        batch_size: int,
        seed: int,
        world: World = ALONE,
    ) -> None:
        super().__init__(len(images), batch_size=batch_size, seed=seed, world=world)
        self.source, self.normalization, self.cropped, self.loading = images, normalization, cropped, loading
        self.lights, self.jitter = lights, jitter

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a crop."""
        height, width, channels = self.normalization.mean.shape
        return channels, height, width

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of an epoch from `start` on: x (n, C, H, W) float32, channels_last strides; y (n,) int64."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.images)
        whole_batches = [order[first : first + self.batch_size] for first in range(0, self.images, self.batch_size)]
        shards = [self.world.shards(len(whole)) for whole in whole_batches[start:]]
        own_parts = [whole[parts[self.world.rank]] for whole, parts in zip(whole_batches[start:], shards, strict=True)]
        batches = loaded(Crops(self.source, self.cropped, (self.seed, epoch), self.loading), own_parts)
        for (pixels, labels, lights, jitters), parts in zip(batches, shards, strict=True):
            self.share.parts = parts
            if self.jitter:
                pixels = jittered(pixels.float(), 1 + self.jitter * jitters)
            x = self.normalization(pixels)
            if self.lights:
                x += (lighting(lights * self.lights) * 255)[:, None, None] * self.normalization.scale
            yield x.permute(0, 3, 1, 2), labels


class StreamedEvaluation(OrderedBatches):
    """This process's share of the images of a split, in order, seen through `view`."""

    top = TOP

    def __init__(
        self,
        images: ImageFiles,
        normalization: Normalization,
        view: ViewName,
        size: int,
        loading: Loading,
        *,
        batch_size: int,
        world: World = ALONE,
    ) -> None:
        # Images of several sizes cannot lie in one tensor, and ten crops take as much memory as ten images.
        batch_size = {"multi_scale": 1, "ten_crop": ceil(batch_size / 10)}.get(view, batch_size)
        super().__init__(len(images), batch_size=batch_size, world=world)
        self.source, self.normalization, self.loading = images, normalization, loading
        self.views, self.has_one_view = views(view, size), view in ("center", "center_320")
        self.numbers = np.arange(self.own.start, self.own.stop)

    def __iter__(self) -> Iterator[tuple[Tensor | tuple[Tensor, ...], Tensor]]:
        """Yield x (n, C, H, W) float32 with channels_last strides, and y (n,) int64.

        If an image has several views, x is a tuple with one tensor (n * k, C, h, w) for each size of view, in which the
        k views of an image are adjacent.
        """
        chunks = [self.numbers[part] for part in self.slices()]
        for pixels, labels in loaded(Views(self.source, self.views, self.loading), chunks):
            x = tuple(self._normalised(view) for view in pixels)
            yield (x[0] if self.has_one_view and x else x), labels

    def some(self, count: int) -> Tensor:
        """Return at most `count` images of this process, evenly spread, always the same: (n, C, H, W), normalised."""
        chosen = self.numbers[:: max(1, ceil(len(self.numbers) / count))]
        ((pixels, _),) = loaded(Views(self.source, self.views, replace(self.loading, workers=0)), [chosen])
        return self._normalised(pixels[0])

    def _normalised(self, pixels: Tensor) -> Tensor:
        return at_size(self.normalization, *pixels.shape[1:3])(pixels).permute(0, 3, 1, 2)


def at_size(normalization: Normalization, height: int, width: int) -> Normalization:
    """Return the normalisation for another image size; the mean image is scaled by bilinear interpolation."""
    if normalization.mean.shape[:2] == (height, width):
        return normalization
    mean, scale = (
        F.interpolate(x.permute(2, 0, 1)[None], (height, width), mode="bilinear")[0].permute(1, 2, 0).contiguous()
        for x in (normalization.mean, normalization.scale)
    )
    return replace(normalization, mean=mean, scale=scale)


def check_decoder(decoder: Decoder, device: torch.device) -> None:
    """Raise `UserError` if a GPU should decode the images, but `device` is no CUDA GPU."""
    if decoder == "gpu" and device.type != "cuda":
        raise UserError(
            f"dataset.decoder=gpu: images are decoded by nvJPEG, which needs CUDA, and this run's device is "
            f"{device.type}; train on a GPU, or set dataset.decoder=cpu"
        )


def default_workers() -> int:
    """Return the number of workers: one for each core of this process, at most `MOST_WORKERS`.

    The processes of a run on one machine share its cores.
    """
    return min(MOST_WORKERS, max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


@dataclass(frozen=True)
class Crops(Dataset):
    """Returns crops (n, H, W, 3) uint8, labels (n,) and random numbers for the colours, of the images at n indices.

    The random numbers are normal for lighting (n, 3), and uniform in [-1, 1) for jitter (n, 3).
    """

    images: ImageFiles
    cropped: Callable[[Tensor], Tensor]
    draw: tuple[int, int]
    loading: Loading

    def __getitem__(self, numbers: np.ndarray) -> tuple[Any, list[str]]:
        return self.batch(numbers, self.images.decoded)

    def batch(self, numbers: np.ndarray, decode: Callable[[int], Tensor]) -> tuple[Any, list[str]]:
        """Return the images' tensors and the errors of unreadable images; no tensors if one could not be replaced."""
        problems: list[str] = []
        readable, pixels = numbers.copy(), []
        lights, jitters = torch.empty(2, len(numbers), 3)
        with torch.random.fork_rng(devices=[]):
            for place, number in enumerate(numbers.tolist()):
                # Not torch.manual_seed: it also seeds absent devices, and takes half as long as decoding.
                torch.default_generator.manual_seed(_seed(*self.draw, number))
                lights[place] = torch.randn(3)
                readable[place], image = _readable(self, number, decode, problems)
                if image is None:
                    return None, problems
                pixels.append(self.cropped(image).permute(1, 2, 0))
                jitters[place] = torch.rand(3) * 2 - 1
        # default_collate writes the crops directly into the memory that workers share.
        return (default_collate(pixels), self.images.labels[readable], lights, jitters), problems


@dataclass(frozen=True)
class Views(Dataset):
    """Returns a tensor (n * k, h, w, 3) uint8 for each size of view, and labels (n,), of the images at n indices."""

    images: ImageFiles
    views: Callable[[Tensor], list[Tensor]]
    loading: Loading

    def __getitem__(self, numbers: np.ndarray) -> tuple[Any, list[str]]:
        return self.batch(numbers, self.images.decoded)

    def batch(self, numbers: np.ndarray, decode: Callable[[int], Tensor]) -> tuple[Any, list[str]]:
        """Return the images' tensors and the errors of unreadable images; no tensors if one could not be replaced."""
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
    """Decode an image or, if unreadable ones are skipped, the next readable one; return its number and pixels.

    The errors of unreadable images are added to `problems`; the pixels are None if nothing could be decoded.
    """
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
    """Yield the tensors of each batch on the device, in order.

    Raises:
        UserError: an image cannot be read, and unreadable images are not skipped.
    """
    loading = dataset.loading
    workers = min(loading.workers, len(batches))
    loader: DataLoader = DataLoader(
        dataset if loading.decoder == "cpu" else _Bytes(dataset.images),
        batch_size=None,
        sampler=batches,  # type: ignore[arg-type]
        num_workers=workers,
        # Workers watch whether this process, their parent, lives; by default Python 3.14 would let a server fork them.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        pin_memory=loading.device.type == "cuda" and loading.decoder == "cpu",
        worker_init_fn=partial(_leave_signals_to_the_parent, os.getpid()),
        generator=torch.Generator(),  # seeds the workers, which ignore it; the run's generator must not advance
    )
    results = loader if loading.decoder == "cpu" else map(partial(_decoded_on_device, dataset), batches, loader)
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
    """Returns the lengths in bytes of the images' files by index, without unreadable ones, and all their bytes (uint8).

    They are one tensor, because each tensor of a worker takes a file descriptor of this process.
    """

    images: ImageFiles

    def __getitem__(self, numbers: np.ndarray) -> tuple[dict[int, int], Tensor]:
        read = {}
        for number in numbers.tolist():
            with suppress(OSError):  # decoding reports the error
                read[number] = self.images.read(number)
        lengths = {number: len(content) for number, content in read.items()}
        return lengths, torch.cat([torch.empty(0, dtype=torch.uint8), *read.values()])


def _decoded_on_device(
    dataset: Crops | Views, numbers: np.ndarray, read: tuple[dict[int, int], Tensor]
) -> tuple[Any, list[str]]:
    """Decode images together on the device; if a file is no readable JPEG, this process decodes one by one."""
    from torchvision.io import ImageReadMode, decode_jpeg

    device = dataset.loading.device
    decoded: dict[int, Tensor] = {}
    with suppress(RuntimeError, ValueError):  # a file is no JPEG or damaged, or no file could be read
        lengths, content = read
        files = [*content.split([*lengths.values()])]
        decoded = dict(zip(lengths, decode_jpeg(files, ImageReadMode.RGB, device), strict=True))

    def decode(number: int) -> Tensor:
        return decoded[number] if number in decoded else dataset.images.decoded(number).to(device)

    return dataset.batch(numbers, decode)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return [_moved(part, device) for part in value]


def _leave_signals_to_the_parent(parent: int, worker: int) -> None:
    """Block signals in a worker: a scheduler signals all processes, but the run needs its workers until it is saved."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigtimedwait"):
        threading.Thread(target=_end_for_the_parent, args=(parent,), daemon=True).start()


def _end_for_the_parent(parent: int) -> None:
    """End when the parent says so or has died; torch does not notice a parent that dies while this process starts."""
    while os.getppid() == parent:
        if (received := signal.sigtimedwait({signal.SIGTERM}, ORPHANED_SECONDS)) and received.si_pid == parent:
            break
    os._exit(0)
