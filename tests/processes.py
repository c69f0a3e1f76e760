"""Calls a test's function in several processes of one world; each process runs this file."""

import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepnets.distributed.spawn import processes
from deepnets.distributed.world import world_from_env


def in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `function`, which pickle must find by name, in `count` processes of one thread; returns results by rank."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "path").write_bytes(pickle.dumps(sys.path))
        Path(place, "work").write_bytes(pickle.dumps((function, arguments)))
        with processes([sys.executable, __file__, place], count, threads=1) as group:
            assert group.first_failure() is None
        return [pickle.loads(Path(place, str(rank)).read_bytes()) for rank in range(count)]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    sys.path[:] = pickle.loads((place / "path").read_bytes())
    function, arguments = pickle.loads((place / "work").read_bytes())
    (place / str(world_from_env().rank)).write_bytes(pickle.dumps(function(*arguments)))
