"""Gives each process one CPU thread, as tests run side by side, and their threads would slow one another."""

import os
import signal

# A shell's background job ignores Ctrl-C, nohup's ignores SIGHUP; the commands under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

from deepnets.config.trust import trusting  # noqa: E402


@pytest.fixture(autouse=True)
def trust_of_its_own() -> Iterator[None]:
    """Undo after each test the trust that it has given."""
    with trusting([]):
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from tests and the commands that they start, unless pytest was called with `-m gpu`."""
    if config.option.markexpr.split()[:1] != ["gpu"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` if there are too few GPUs, or if these are hidden."""
    for item in items:
        if marker := item.get_closest_marker("gpu"):
            wanted = marker.kwargs.get("devices", 1)
            if torch.cuda.device_count() < wanted:
                reason = f"needs {wanted} CUDA device{'s' * (wanted > 1)}, and -m gpu -n0"
                item.add_marker(pytest.mark.skip(reason=reason))
