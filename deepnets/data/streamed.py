"""Batches of images that workers read and decode while the network trains; uint8 until they are on the device."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import ceil
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from deepnets.data.crops import ViewName, lighting, views
from deepnets.data.normalization import Normalization
from deepnets.distributed.signals import SIGNALS
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError
from deepnets.models.share import Share

TOP = 5  # ImageNet's second error: the label is not among the five classes of the highest scores


class Encoded(Protocol):
    """Images of a split as bytes, of files or of shards."""

    @property
    def labels(self) -> Tensor: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def fingerprint(self) -> bytes: ...
    def __len__(self) -> int: ...
    def select(self, index: Tensor) -> "Encoded": ...
    def name(self, image: int) -> str: ...
    def read(self, image: int) -> Tensor: ...


@dataclass(frozen=True)
class Loading:
    """Who reads and decodes, for `device`: so many worker processes, or with 0 this one.

    In place of an unreadable image stands, with `skip_unreadable`, the next one of the split that is readable: so each
    batch has its images, in every process. `skipped` are those that were found.
    """

    workers: int
    device: torch.device
    skip_unreadable: bool
    skipped: set[str] = field(default_factory=set)


class StreamedTraining:
    """This process's share of shuffled batches of random crops, each image once an epoch.

    As of `TrainingBatches`, the order is a function of (seed, epoch), each image's crop and colours of (seed, epoch,
    image): the same for any number of processes and workers, and from any batch on. `lights` is the deviation of the
    draws of lighting noise (fb.resnet.torch: 0.1; 0 for none).
    """

    def __init__(
        self,
        images: Encoded,
        normalization: Normalization,
        cropped: Callable[[Tensor], Tensor],
        loading: Loading,
        *,
        lights: float,
        batch_size: int,
        seed: int,
        world: World = ALONE,
    ) -> None:
        self.source, self.normalization, self.cropped, self.loading = images, normalization, cropped, loading
        self.lights, self.batch_size, self.seed, self.world = lights, batch_size, seed, world
        self.images = len(images)
        self.share = Share(world.rank)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a crop."""
        height, width, channels = self.normalization.mean.shape
        return channels, height, width

    def __len__(self) -> int:
        """Batches per epoch; the last may be short."""
        return ceil(self.images / self.batch_size)

    def images_in(self, batch: int) -> int:
        """Of that batch of an epoch, over all processes."""
        return min(self.batch_size, self.images - batch * self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """That epoch from batch `start` on: x (n, C, H, W) float32 with channels_last strides, y (n,) int64."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.images)
        whole_batches = [order[first : first + self.batch_size] for first in range(0, self.images, self.batch_size)]
        shards = [self.world.shards(len(whole)) for whole in whole_batches[start:]]
        own = [whole[parts[self.world.rank]] for whole, parts in zip(whole_batches[start:], shards, strict=True)]
        batches = _loaded(_Crops(self.source, self.cropped, (self.seed, epoch), self.loading), own)
        for (pixels, labels, draws), self.share.parts in zip(batches, shards, strict=True):
            x = self.normalization(pixels)
            if self.lights:
                x += (lighting(draws * self.lights) * 255)[:, None, None] * self.normalization.scale
            yield x.permute(0, 3, 1, 2), labels


class StreamedEvaluation:
    """This process's share of the images of a split, in order, as the view shows them; `top` asks for top-5 errors.

    All processes have as many batches; where the images do not go round, the last one of some is empty. `is_final`:
    only evaluated once, when the budget ends.
    """

    top = TOP

    def __init__(
        self,
        images: Encoded,
        normalization: Normalization,
        view: ViewName,
        size: int,
        loading: Loading,
        *,
        batch_size: int,
        world: World = ALONE,
        is_final: bool = False,
    ) -> None:
        self.source, self.normalization, self.loading, self.is_final = images, normalization, loading, is_final
        self.views, self.has_one_view = views(view, size), view in ("center", "center_320")
        # Images of several sizes cannot lie in one tensor, and ten crops are a batch of ten images.
        self.batch_size = {"multi_scale": 1, "ten_crop": ceil(batch_size / 10)}.get(view, batch_size)
        self.largest_share = ceil(len(images) / world.size)
        shard = world.shard(len(images))
        self.own = np.arange(shard.start, shard.stop)

    def __len__(self) -> int:
        return ceil(self.largest_share / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor | tuple[Tensor, ...], Tensor]]:
        """x (n, C, H, W) float32 with channels_last strides, y (n,) int64.

        Where an image has several views, x is a tuple of those of a size, (n * k, C, h, w), an image's k in a row.
        """
        starts = range(0, self.largest_share, self.batch_size)
        chunks = [self.own[first : first + self.batch_size] for first in starts]
        for pixels, labels in _loaded(_Views(self.source, self.views, self.loading), chunks):
            x = tuple(self._normalised(view) for view in pixels)
            yield (x[0] if self.has_one_view and x else x), labels

    def some(self, count: int) -> Tensor:
        """At most `count` images spread over the split, the same at every call: (n, C, H, W), normalised."""
        chosen = self.own[:: max(1, ceil(len(self.own) / count))]
        ((pixels, _),) = _loaded(_Views(self.source, self.views, replace(self.loading, workers=0)), [chosen])
        return self._normalised(pixels[0])

    def _normalised(self, pixels: Tensor) -> Tensor:
        return at_size(self.normalization, *pixels.shape[1:3])(pixels).permute(0, 3, 1, 2)


def mean_image(images: Encoded, size: int, loading: Loading) -> Tensor:
    """The mean (H, W, 3) float64 of their centre crops, on a scale of 0 to 255."""
    starts = range(0, len(images), 64)
    chunks = [np.arange(first, min(first + 64, len(images))) for first in starts]
    total, count = torch.zeros(size, size, 3, dtype=torch.float64, device=loading.device), 0
    for (pixels, *_), labels in _loaded(_Views(images, views("center", size), loading), chunks):
        total += pixels.sum(0, dtype=torch.float64)
        count += len(labels)
    return total / count


def at_size(normalization: Normalization, height: int, width: int) -> Normalization:
    """For images of another size: the mean image is scaled with them, by bilinear interpolation."""
    if normalization.mean.shape[:2] == (height, width):
        return normalization
    mean, scale = (
        F.interpolate(x.permute(2, 0, 1)[None], (height, width), mode="bilinear")[0].permute(1, 2, 0).contiguous()
        for x in (normalization.mean, normalization.scale)
    )
    return replace(normalization, mean=mean, scale=scale)


def decoded(images: Encoded, image: int) -> Tensor:
    """That image as torchvision reads it: (3, H, W) uint8, colours of grey and CMYK files RGB, EXIF tags not minded.

    Raises:
        UserError: it cannot be read.
    """
    from torchvision.io import ImageReadMode, decode_image

    try:
        pixels = decode_image(images.read(image), ImageReadMode.RGB)
    except (OSError, RuntimeError) as error:
        reason = str(error).rpartition(", ")[2]  # behind the place in torchvision's source
        raise UserError(
            f"{images.name(image)} is not a readable image ({reason}): replace or remove it, or leave such images out "
            "by dataset.skip_unreadable=true"
        ) from error
    return pixels[0] if pixels.ndim == 4 else pixels  # the first picture of an animation


@dataclass(frozen=True)
class _Crops(Dataset):
    """Training images by their numbers: pixels (n, H, W, 3) uint8, labels (n,), draws of lighting (n, 3)."""

    images: Encoded
    cropped: Callable[[Tensor], Tensor]
    draw: tuple[int, int]
    loading: Loading

    def __getitem__(self, numbers: np.ndarray) -> tuple[Any, list[str]]:
        problems: list[str] = []
        readable, draws, pixels = numbers.copy(), torch.empty(len(numbers), 3), []
        with torch.random.fork_rng(devices=[]):
            for place, number in enumerate(numbers.tolist()):
                torch.manual_seed(int(np.random.SeedSequence((*self.draw, number)).generate_state(1)[0]))
                draws[place] = torch.randn(3)
                readable[place], image = _readable(self, number, problems)
                if image is None:
                    return None, problems
                pixels.append(self.cropped(image).permute(1, 2, 0))
        return (torch.stack(pixels), self.images.labels[readable], draws), problems


@dataclass(frozen=True)
class _Views(Dataset):
    """Images by their numbers: a tensor (n * k, h, w, 3) uint8 for each size of view, labels (n,)."""

    images: Encoded
    views: Callable[[Tensor], list[Tensor]]
    loading: Loading

    def __getitem__(self, numbers: np.ndarray) -> tuple[Any, list[str]]:
        problems: list[str] = []
        readable, seen = numbers.copy(), []
        for place, number in enumerate(numbers.tolist()):
            readable[place], image = _readable(self, number, problems)
            if image is None:
                return None, problems
            seen.append(self.views(image))
        pixels = [torch.cat(same).permute(0, 2, 3, 1).contiguous() for same in zip(*seen, strict=True)]
        return (pixels, self.images.labels[readable]), problems


def _readable(dataset: "_Crops | _Views", number: int, problems: list[str]) -> tuple[int, Tensor | None]:
    """That image, or where unreadable ones are skipped the next readable one; adds what is wrong to `problems`."""
    images = dataset.images
    for candidate in chain(range(number, len(images)), range(number)):
        try:
            return candidate, decoded(images, candidate)
        except UserError as error:
            problems.append(str(error))
            if not dataset.loading.skip_unreadable:
                break
    return number, None


def _loaded(dataset: _Crops | _Views, batches: Sequence[np.ndarray]) -> Iterator[Any]:
    """The tensors of each batch on the device, in order.

    Raises:
        UserError: an image cannot be read, and is not to be skipped.
    """
    loading = dataset.loading
    loader: DataLoader = DataLoader(
        dataset,
        batch_size=None,
        sampler=batches,  # type: ignore[arg-type]
        num_workers=min(loading.workers, len(batches)),
        pin_memory=loading.device.type == "cuda",
        worker_init_fn=_leave_signals_to_the_parent,
        generator=torch.Generator(),  # of the workers' seeds, which nothing here uses; the run's own is left as it is
    )
    for tensors, problems in loader:
        if tensors is None:
            raise UserError(problems[0])
        for name in (problem.partition(" is not a readable image")[0] for problem in problems):
            if name not in loading.skipped:
                loading.skipped.add(name)
                print(f"warning: {name} cannot be read; skipped ({len(loading.skipped)} so far)", file=sys.stderr)
        yield _moved(tensors, loading.device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return [_moved(one, device) for one in value]


def _leave_signals_to_the_parent(worker: int) -> None:
    """It saves the run first; a scheduler signals all processes, and one that loses a worker fails instead."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_end_for_the_parent, daemon=True).start()


def _end_for_the_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
