"""Runs scripts/analyze.py in this process, which has imported torch and read the digits already."""

import importlib

import pytest

from tests.command import ROOT


def analyze(*words: object) -> int:
    """Run `python scripts/analyze.py` with these words and return its exit code; user errors are raised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return importlib.import_module("analyze").main([str(word) for word in words])
