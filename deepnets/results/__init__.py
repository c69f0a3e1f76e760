"""Run folders read, compared and shown."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`load_results`; it needs pandas, for which nothing else waits."""
    if name == "load_results":
        return import_module("deepnets.results.frame").load_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
