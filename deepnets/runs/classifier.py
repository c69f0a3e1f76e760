"""A trained network that takes image files and names their classes; it can be written as a torch program."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from deepnets.data.decoding import decode_bytes, decode_one
from deepnets.data.normalization import KINDS, Normalization, of_each
from deepnets.data.source import reduced
from deepnets.errors import UserError, first_line
from deepnets.runs.contents import Input
from deepnets.runs.folder import RunFolder
from deepnets.runs.record import data_of, differing, input_of
from deepnets.runs.weights import Weights
from deepnets.system.files import fresh, new_name, writing

BATCH = 64
TOLERANCE = 1e-5  # of a probability; the program may execute its operations in another order
PROGRAM = "model.pt2"


class Classifier(nn.Module):
    """A network that maps raw images (N, H, W, C) uint8 to probabilities (N, classes); `classes` names the classes.

    It normalises like the run, and computes in float32 on the device that it is moved to.

    Raises:
        UserError: `about` lacks the mean image, or has a normalisation that this version does not know.
    """

    def __init__(self, model: nn.Module, about: Input) -> None:
        super().__init__()
        self.model, self.classes, self.about = model, tuple(about.classes), about
        channels, *sides = about.shape
        height, width = (side * about.reduce for side in sides)
        self.shape = channels, height, width  # of a raw image
        if about.normalization not in KINDS:
            raise UserError(f"normalization={about.normalization}: this version knows {', '.join(KINDS)}")
        self.of_each = of_each(about.normalization)
        if about.mean_image is not None:
            pixels = np.frombuffer(base64.b64decode(about.mean_image), "<f4").reshape(*sides, channels)
            mean = torch.from_numpy(pixels.astype(np.float32))
        elif about.mean is not None:
            mean = torch.tensor(about.mean, dtype=torch.float32)
        else:
            raise UserError("the mean image is missing; the run's checkpoint has it, and so have exported weights")
        self.register_buffer("mean", mean)
        self.register_buffer("scale", torch.tensor(about.scale, dtype=torch.float32))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Compute probabilities (N, classes) of images (N, H, W, C) uint8."""
        if self.about.reduce > 1:
            images = reduced(images, self.about.reduce)
        x = Normalization(self.get_buffer("mean"), self.get_buffer("scale"), self.of_each)(images)
        return self.model(x.permute(0, 3, 1, 2)).float().softmax(1)

    def predict(self, images: Tensor | np.ndarray | Sequence[Tensor]) -> Tensor:
        """Compute probabilities (N, classes), on the CPU, of any number of images (N, H, W, C) uint8.

        `images` may also be a list of what `read` returned.

        Raises:
            UserError: the images are of another type or shape.
        """
        channels, height, width = self.shape
        if not isinstance(images, Tensor | np.ndarray):
            if len({image.shape for image in images}) > 1:
                raise UserError("the images have several shapes; `read` brings each to the network's")
            images = np.stack(images) if len(images) else np.zeros((0, height, width, channels), np.uint8)
        images = images if isinstance(images, Tensor) else torch.tensor(images)  # a copy, as Pillow's are read-only
        if images.dtype != torch.uint8 or images.shape[1:] != (height, width, channels):
            raise UserError(
                f"images of shape {tuple(images.shape)} and type {str(images.dtype).removeprefix('torch.')}: must be "
                f"uint8 of shape (N, {height}, {width}, {channels})"
            )
        device = self.get_buffer("mean").device
        with torch.inference_mode():
            parts = [self(batch.to(device)).cpu() for batch in images.split(BATCH)]
        return torch.cat(parts) if len(images) else torch.zeros(0, len(self.classes))

    def read(self, file: str | Path) -> Tensor:
        """Read an image file as `predict` takes it: (H, W, C) uint8, scaled, cropped and coloured like the test images.

        Colours become grey where C = 1, and grey becomes three equal channels where C = 3.

        Raises:
            UserError: the file cannot be read, or the network takes images of other than one or three channels.
        """
        file, (channels, height, width) = Path(file), self.shape
        if channels not in (1, 3):
            raise UserError(f"{file}: the network takes images of {channels} channels, which no image file holds")
        if not file.is_file():
            raise UserError(f"{file}: {'is not a file' if file.exists() else 'no such file'}")
        if self.about.shorter_side is None:
            return torch.from_numpy(decode_one(file, self.shape))
        from torchvision.transforms.v2 import functional as F

        try:
            pixels = decode_bytes(torch.from_numpy(np.fromfile(file, np.uint8)))
        except (OSError, RuntimeError) as error:
            reason = first_line(error).rpartition(", ")[2]  # without the place in torchvision's source
            raise UserError(f"{file} is not a readable image ({reason}): replace it") from error
        return F.center_crop(F.resize(pixels, [self.about.shorter_side]), [height, width]).permute(1, 2, 0)


def classifier_of(weights: Weights) -> Classifier:
    """Build the classifier with these weights, on the CPU; raises UserError if they lack a description of the input."""
    if weights.input is None:
        raise UserError(
            "the run is of an earlier version, which did not store normalisation and names of classes; name the folder "
            "of its data by --data DIR, in Python load_classifier(..., data=DIR)"
        )
    return Classifier(weights.model(), weights.input)


def with_input(weights: Weights, folder: str | Path, data: str | Path | None) -> Weights:
    """Add a description of the network's input, computed from the images in `data`, to weights that have none.

    Weights of earlier versions need this. `folder` is the folder of their run.

    Raises:
        UserError: `data` has no images, or other images than the run was trained on.
    """
    if weights.input or data is None:
        return weights
    config = replace(weights.config, dataset=weights.config.dataset | {"root": str(data)})
    result, cpu = RunFolder(folder).result, torch.device("cpu")
    if result and (others := differing(result.data, data_of(config, cpu))):
        raise UserError(f"{RunFolder(folder)}: was trained on other data than those in {data}: {others}")
    return replace(weights, input=input_of(config, cpu))


def write_program(classifier: Classifier, file: Path) -> Path:
    """Write the classifier as a program of `torch.export`, for any number of images; returns the file.

    The program needs torch, but not deepnets. It is read back and compared with `classifier` before it replaces `file`.

    Raises:
        UserError: torch cannot export this network, the program computes other probabilities, or it cannot be written.
    """
    channels, height, width = classifier.shape
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (3, height, width, channels), generator=draw, dtype=torch.uint8)
    # Export supports no other memory format, and a checkpoint has channels_last. Probabilities need no gradients.
    classifier.to(memory_format=torch.contiguous_format).requires_grad_(False)
    try:
        number = torch.export.Dim("images", min=1)
        program = torch.export.export(classifier, (images,), dynamic_shapes=({0: number},))
    except Exception as error:  # the kind of error depends on the network
        raise UserError(f"torch.export cannot express this network: {first_line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    with writing(file):
        with fresh(file) as new:
            torch.export.save(program, new)
        try:
            with new_name(file).open("rb") as written:
                again = torch.export.load(written).module()
            for count in (1, 3):
                with torch.inference_mode():
                    difference = (again(images[:count]) - classifier(images[:count])).abs().max().item()
                if not difference <= TOLERANCE:
                    raise UserError(f"its probabilities differ by {difference:.1e} from the network's")
            new_name(file).replace(file)
        finally:
            new_name(file).unlink(missing_ok=True)
    return file
