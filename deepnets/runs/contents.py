"""The JSON files of a run folder, as typed objects that read and write themselves.

A field that a later version adds gets a default, so that older folders stay readable.
"""

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Len, MinLen
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from deepnets.errors import UserError
from deepnets.system.files import read_object, write_atomically
from deepnets.system.settings import Size

FinalStatus = Literal["finished", "diverged", "failed"]
FINISHED: FinalStatus = "finished"
DIVERGED: FinalStatus = "diverged"
FAILED: FinalStatus = "failed"
LONGEST_WAIT = 1e12  # seconds; a timedelta holds no more than 8.6e13


class Unreadable(UserError):
    """A run folder's file cannot be read, or is not as a run writes it; the arguments are its path and the error."""

    def __str__(self) -> str:
        return f"{self.args[0]}: cannot be read ({self.reason}); restore the run's own file, or remove it"

    @property
    def reason(self) -> str:
        return " ".join(str(self.args[1]).split())


def _text(value: object) -> object:
    if not isinstance(value, str | datetime):
        raise ValueError("is no date and time")
    return value


Instant = Annotated[AwareDatetime, BeforeValidator(_text)]  # pydantic alone also accepts a number of seconds


class RunFile(BaseModel):
    """A JSON file of a run folder, called `FILE`; entries that this version does not know are kept as they are."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    FILE: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the file; returns None if it is missing, or if a crash of the machine left it empty.

        Raises:
            Unreadable: the file is no JSON object, or an entry has another type than a run writes.
        """
        try:
            content = read_object(folder / cls.FILE)
            return cls.model_validate(content) if content else None
        except ValidationError as error:
            first = error.errors()[0]
            message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
            raise Unreadable(folder / cls.FILE, ValueError(message)) from error
        except (OSError, ValueError) as error:
            raise Unreadable(folder / cls.FILE, error) from error

    def write(self, folder: Path) -> None:
        """Write all fields that were set, also those set to their default; the file appears as a whole."""
        text = json.dumps(self.model_dump(mode="json", exclude_unset=True), indent=2, allow_nan=False)
        write_atomically(folder / self.FILE, text + "\n")


class Progress(BaseModel):
    """How far a run has come; `test_error` is in percent, and None until the first epoch ends.

    `seconds_idle` is the time between the last iteration or evaluated batch and the last heartbeat.
    """

    model_config = ConfigDict(frozen=True)

    epoch: int
    epochs: int
    iteration: int
    iterations: int
    test_error: float | None
    images_per_second: float
    seconds_left: Annotated[float, Field(ge=0, le=LONGEST_WAIT)]
    seconds_idle: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] = 0.0


class Status(RunFile):
    """status.json: the training process writes it every few seconds."""

    FILE = "status.json"

    state: str
    heartbeat: Instant
    pid: int | None = None
    host: str | None = None
    job: str | None = None
    progress: Progress | None = None


class Job(RunFile):
    """job.json: the SLURM task that was submitted to train the run, e.g. 123_4."""

    FILE = "job.json"

    job: str
    submitted: Instant


class Code(BaseModel):
    """A user's own code: `modules` maps each module to its hash, and each installed package to its version.

    `commit` is the commit of the clone with the modules. See `deepnets.runs.code`.
    """

    model_config = ConfigDict(frozen=True)

    hash: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    modules: dict[str, str] = {}
    commit: str | None = None


class Origin(RunFile):
    """origin.json: the command that froze the run, its choices and claims, and the code that the run executes."""

    FILE = "origin.json"

    command: str = ""
    overrides: list[str] = []
    choices: Mapping[str, str | None] = {}
    commit: str | None = None
    claims: list[Any] = []
    created: str = ""
    code: Code | None = None
    cleaned: bool = False  # its checkpoints were removed on purpose
    copied_from: str | None = None  # a run of the same identity in another sweep


class Beginning(BaseModel):
    """The losses (nats) of a run's first iterations and the checksum of the weights after them; see `Evidence`."""

    model_config = ConfigDict(strict=True, frozen=True)

    losses: Annotated[list[float | None], MinLen(1)]
    weights: str


class Input(BaseModel):
    """The input of a trained network, x = (g(u) - mean) * scale for pixels u in 0..255, and its classes by label.

    `shape` is (C, H, W) of x. `mean` and `scale` have a number for each channel. If the mean is an image, `mean` is
    None and `mean_image` holds (H, W, C) float32, little-endian, in base 64: 16 kB for CIFAR-10. Checkpoints and
    exports hold this image; result.json does not. `normalization` names g: see `deepnets.data.normalization`.

    An image file is scaled until its shorter side is `shorter_side` (None: until it just covers `shape`), and its
    centre is cropped. Squares of `reduce` x `reduce` pixels are averaged to one pixel.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    shape: Annotated[list[Size], Len(3, 3)]
    classes: Annotated[list[str], MinLen(1)]
    normalization: str
    mean: list[float] | None
    scale: list[float]
    mean_image: str | None = None
    reduce: Size = 1
    shorter_side: Size | None = None

    @model_validator(mode="after")
    def _fits_the_shape(self) -> Self:
        channels, height, width = self.shape
        if any(len(numbers) != channels for numbers in (self.mean, self.scale) if numbers is not None):
            raise ValueError(f"mean and scale do not have a number for each of {channels} channels")
        if self.mean_image is not None and len(base64.b64decode(self.mean_image)) != 4 * channels * height * width:
            raise ValueError(f"mean_image is not of the shape {self.shape}")
        return self

    @property
    def without_image(self) -> "Input":
        """This input without `mean_image`, as in result.json, which every report reads."""
        return Input.model_validate(self.model_dump(exclude={"mean_image"}, exclude_unset=True))


class Result(RunFile):
    """result.json: how the run ended, with errors in percent; a run that failed has only status, reason and job.

    `test_right` has a bit for each test image (see `packed`). `weights_sha256` is a checksum of the final weights.
    `code` is the user's own code, by the iteration at which the run began to execute it. `processor` tells generations
    of processors with the same `device` apart; older results and those of GPUs do not have it. `own_seconds` is the
    run's share of `seconds`, where it trained at once with others.
    """

    model_config = ConfigDict(strict=True)

    FILE = "result.json"

    status: FinalStatus
    reason: str = ""
    job: str | None = None
    test_error: float | None = None
    test_top5_error: float | None = None
    view: str = "center"
    selection: str = ""
    selected_epoch: int | None = None
    last_test_error: float | None = None
    best_test_error: float | None = None
    train_error: float | None = None
    validation_error: float | None = None
    epochs: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    own_seconds: float | None = None
    images_per_second: float | None = None
    protocol: str = ""
    data: dict[str, Any] = {}
    input: Input | None = None
    parameters: int | None = None
    identity: str | None = None
    identity_before: str | None = None
    commit: str | None = None
    versions: dict[str, str] = {}
    python: str | None = None
    device_type: str | None = None
    device: str | None = None
    processor: str | None = None
    precision: str | None = None
    threads: int | None = None
    step: str | None = None
    processes: dict[str, int] = {}
    code: dict[str, Code] = {}
    claims: list[Any] = []
    beginning: Beginning | None = None
    test_right: str | None = None
    weights_sha256: str | None = None

    @model_validator(mode="after")
    def _a_bit_for_each_image(self) -> Self:
        if self.test_right is not None:
            if not isinstance(images := self.data.get("test"), int):
                raise ValueError("data.test: is not the number of test images")
            unpacked(self.test_right, images)
        return self

    @classmethod
    def of_ended(cls, folder: Path, identity: str) -> "Result | None":
        """Return the result of the run in `folder`, which has this identity; None if something is left to train.

        Raises:
            UserError: result.json is of another run, or is not as a run that ended writes it.
        """
        result = cls.read(folder)
        if not result or not result.is_complete:
            return None
        reason = f"is of another run (identity {result.identity} there, {identity} by config.yaml)"
        if result.iterations is None:
            reason = f"says that the run {result.status}, but not after how many iterations"
        elif result.identity in (None, identity):  # earlier versions noted no identity
            return result
        raise UserError(f"{folder / cls.FILE}: {reason}; restore the run's own, or start again with overwrite=true")

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to train: the run finished or diverged."""
        return self.status in (FINISHED, DIVERGED)


def packed(right: np.ndarray) -> str:
    """Pack `right` (images,) into a bit for each image, eight to a byte, in base 64: 1.7 kB for 10,000."""
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def unpacked(text: str, images: int) -> np.ndarray:
    """Return the array (images,) bool that `packed` turned into this text.

    Raises:
        ValueError: the text does not hold a bit for each image.
    """
    packed_bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(packed_bits) != ceil(images / 8):
        raise ValueError(f"{len(packed_bits)} bytes are not a bit for each of {images} images")
    return np.unpackbits(packed_bits, count=images).astype(bool)
