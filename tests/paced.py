"""A schedule by which a test slows down a run, or makes it fail, through files in the folder that $PACE names."""

import os
import time
from pathlib import Path

TRUST = "--trust=tests.paced.Paced"


class Paced:
    """Keeps the full rate; each call is slow while the file `slow` is there.

    Raises RuntimeError, when called, while there is a file `broken_<name>`.
    """

    def __init__(self, total: int, name: str) -> None:
        self.name = name

    def __call__(self, iteration: int) -> float:
        if (_folder() / f"broken_{self.name}").exists():
            raise RuntimeError(f"{self.name} is broken")
        if (_folder() / "slow").exists():
            time.sleep(0.2 if iteration < 20 else 4)  # a few epochs end soon, then hardly any
        return 1.0


def _folder() -> Path:
    return Path(os.environ["PACE"])
