"""Reads, compares and shows the runs in run folders."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import `load_results` only when somebody needs it: its module imports most of this package."""
    if name == "load_results":
        return import_module("deepnets.results.export").load_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
