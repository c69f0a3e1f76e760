"""Run folders read, compared and shown."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import `load_results` when it is asked for, as its module imports all others of this package."""
    if name == "load_results":
        return import_module("deepnets.results.export").load_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
