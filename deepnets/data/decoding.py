"""Images of files or shards, one by one: their bytes, and what these decode to."""

import warnings
from typing import Literal, Protocol

import torch
from torch import Tensor

from deepnets.errors import UserError

# torchvision 0.29 announces in every process that its decoders will move to another library.
warnings.filterwarnings("ignore", "The image decoding and encoding capabilities of TorchVision", DeprecationWarning)


Decoder = Literal["cpu", "gpu"]


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


def decoded(images: Encoded, image: int) -> Tensor:
    """That image as torchvision reads it: (3, H, W) uint8, grey and CMYK files become RGB, EXIF tags are not applied.

    Raises:
        UserError: it cannot be read.
    """
    from torchvision.io import ImageReadMode, decode_image

    try:
        pixels = decode_image(images.read(image), ImageReadMode.RGB)
        if pixels.dtype != torch.uint8:
            raise OSError("it has more than 8 bits per channel")
    except (OSError, RuntimeError) as error:
        reason = str(error).rpartition(", ")[2]  # behind the place in torchvision's source
        raise UserError(
            f"{images.name(image)} is not a readable image ({reason}): replace or remove it, or leave such images out "
            "by dataset.skip_unreadable=true"
        ) from error
    return pixels[0] if pixels.ndim == 4 else pixels  # the first picture of an animation


def check_decoder(decoder: Decoder, device: torch.device) -> None:
    """A `UserError` where images should be decoded on a device that cannot."""
    if decoder == "gpu" and device.type != "cuda":
        raise UserError(
            f"dataset.decoder=gpu: images are decoded by nvJPEG, which needs CUDA, and this run's device is "
            f"{device.type}; train on a GPU, or set dataset.decoder=cpu"
        )
