"""Results on disk as soon as they are there, so that an analysis that was killed resumes."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor


class Saved:
    """Numbers by key, a line of JSON each; those of another `origin` are dropped, and so is a line half written."""

    def __init__(self, file: Path, origin: str) -> None:
        self.file, self.found = file, dict[str, list[float]]()
        lines = file.read_text().splitlines() if file.exists() else []
        if lines[:1] != [json.dumps(origin)]:
            file.write_text(json.dumps(origin) + "\n")
            return
        for line in lines[1:]:
            try:
                key, numbers = json.loads(line)
            except ValueError:
                break
            self.found[key] = numbers
        written = [json.dumps(origin), *(json.dumps(each) for each in self.found.items())]
        file.write_text("".join(f"{line}\n" for line in written))

    def once(self, key: str, compute: Callable[[], Iterable[float]]) -> list[float]:
        """The numbers of this key, computed unless they are there."""
        if key not in self.found:
            self.found[key] = list(compute())
            with self.file.open("a") as file:
                file.write(json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]


def checksum(*tensors: Tensor) -> str:
    """SHA-256 over the bytes of all tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
