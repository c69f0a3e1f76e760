"""Results on disk as soon as they are there, so that an analysis that was killed resumes."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from deepnets.system.files import LONGEST, opened_to_append, read_text, write_atomically

LINE = TypeAdapter(tuple[str, list[float]])


class Saved:
    """Numbers by key, a line of JSON each; those of another `origin` are dropped, and so is a line half written."""

    def __init__(self, file: Path, origin: str) -> None:
        self.file, self.found = file, dict[str, list[float]]()
        try:
            lines = read_text(file, LONGEST).splitlines()
        except (OSError, ValueError):  # there is none, or something else lies there
            lines = []
        for line in lines[1:] if lines[:1] == [json.dumps(origin)] else []:
            try:
                key, numbers = LINE.validate_json(line)
            except ValidationError:
                break
            self.found[key] = numbers
        written = [json.dumps(origin), *(json.dumps(each) for each in self.found.items())]
        write_atomically(file, "".join(f"{line}\n" for line in written), durable=False)

    def once(self, key: str, compute: Callable[[], Iterable[float]]) -> list[float]:
        """The numbers of this key, computed unless they are there."""
        if key not in self.found:
            self.found[key] = list(compute())
            with opened_to_append(self.file) as file:
                file.write(json.dumps([key, self.found[key]]).encode() + b"\n")
        return self.found[key]


def checksum(*tensors: Tensor) -> str:
    """SHA-256 over the bytes of all tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
