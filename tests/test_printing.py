"""A loop that takes long says how far it is."""

import pytest

from deepnets.system import printing
from deepnets.system.printing import with_progress


def test_a_short_loop_prints_nothing_and_a_long_one_a_line_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(with_progress(range(1200), "runs frozen")) == list(range(1200))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(printing, "PATIENCE_SECONDS", 0)
    assert list(with_progress(range(1200), "runs frozen")) == list(range(1200))
    assert capsys.readouterr().err == "runs frozen: 0 of 1,200\nruns frozen: 1,200 of 1,200\n"  # none within a minute
