"""A schedule with which a test holds a run in flight, or makes it fail, by files in the folder named by $PACE."""

import os
import time
from pathlib import Path

TRUST = "--trust=tests.paced.Paced"


class Paced:
    """The full rate throughout; slow as long as the file `slow` is there.

    Calling it raises RuntimeError while there is a file `broken_<name>`.
    """

    def __init__(self, total: int, name: str) -> None:
        self.name = name

    def __call__(self, iteration: int) -> float:
        if (_folder() / f"broken_{self.name}").exists():
            raise RuntimeError(f"{self.name} is broken")
        if (_folder() / "slow").exists():
            time.sleep(0.2 if iteration < 20 else 4)  # soon a few epochs, then hardly any
        return 1.0


def _folder() -> Path:
    return Path(os.environ["PACE"])
