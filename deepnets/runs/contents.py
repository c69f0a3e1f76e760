"""What the JSON files of a run folder hold. Whatever was there before an entry was is a run's file too."""

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Required

import numpy as np
from annotated_types import Le, MinLen
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

Number = float | None


def _instant(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


Instant = Annotated[str, AfterValidator(_instant)]  # in ISO format


@dataclass(frozen=True)
class Progress:
    """How far a run is; the error in percent, None before the first epoch's end.

    `seconds_idle` have passed since the last iteration or evaluated batch, at the last heartbeat.
    """

    epoch: int
    epochs: int
    iteration: int
    iterations: int
    test_error: float | None
    images_per_second: float
    seconds_left: Annotated[float, Le(1e12)]  # a timedelta holds no more than 8.6e13
    seconds_idle: float = 0.0


class Status(TypedDict, total=False):
    """status.json."""

    state: Required[str]
    heartbeat: Required[Instant]
    progress: Progress | None
    host: str | None
    job: str | None
    pid: int


class Job(TypedDict):
    """job.json."""

    job: str
    submitted: Instant


class Origin(TypedDict, total=False):
    """origin.json."""

    command: str
    overrides: list[str]
    choices: dict[str, str | None]
    commit: str | None
    claims: list[Any]


class Beginning(TypedDict):
    """See `deepnets.runs.evidence`."""

    losses: Annotated[list[Number], MinLen(1)]
    weights: str


class Result(TypedDict, total=False):
    """result.json; that of a run that failed has the first three only."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]

    status: Required[Literal["finished", "diverged", "failed"]]
    reason: str
    job: str | None
    test_error: Number
    last_test_error: Number
    best_test_error: Number
    train_error: Number
    validation_error: Number
    selection: str
    selected_epoch: int | None
    epochs: int
    iterations: int
    seconds: float
    images_per_second: Number
    parameters: int
    protocol: str
    identity: str
    identity_before: str
    commit: str | None
    device: str
    precision: str
    threads: int
    step: str
    processes: dict[str, int]
    data: dict[str, Any]
    versions: dict[str, str]
    python: str
    claims: list[Any]
    beginning: Beginning
    test_right: str
    weights_sha256: str


PROGRESS = TypeAdapter(Progress)
KINDS: dict[str, TypeAdapter[Any]] = {
    "status.json": TypeAdapter(Status),
    "job.json": TypeAdapter(Job),
    "origin.json": TypeAdapter(Origin),
    "result.json": TypeAdapter(Result),
}


def check_contents(name: str, content: dict[str, Any]) -> None:
    """Whether what was read from the file `name` is of these types; an empty object is what a crash has left.

    Raises:
        ValueError: names the first entry that is not.
    """
    if name in KINDS and content:
        try:
            KINDS[name].validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg']}") from None
    if "test_right" in content:
        images = content.get("data", {}).get("test")
        if not isinstance(images, int):
            raise ValueError("data.test: is not the number of test images")
        unpacked(content["test_right"], images)


def packed(right: np.ndarray) -> str:
    """A bit for each image, `right` (images,), eight to a byte, in base 64: 1.7 kB for 10,000."""
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def unpacked(text: str, images: int) -> np.ndarray:
    """What `packed` packed, (images,) bool.

    Raises:
        ValueError: the text is not of so many images.
    """
    packed_bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(packed_bits) != -(-images // 8):
        raise ValueError(f"{len(packed_bits)} bytes are not a bit for each of {images} images")
    return np.unpackbits(packed_bits, count=images).astype(bool)
