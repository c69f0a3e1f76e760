"""scripts/analyze.py within this process, which has torch and the digits at hand."""

import importlib

import pytest

from tests.command import ROOT


def analyze(*words: object) -> int:
    """`python scripts/analyze.py` with these words; its exit code, user errors being raised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return importlib.import_module("analyze").main([str(word) for word in words])
