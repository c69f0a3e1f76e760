"""Every number that a bench or an analysis takes on its command line is refused where no library could take it."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from deepnets.command import count, counts, number, whole
from deepnets.commands import analyze, bench

pytestmark = pytest.mark.attack

NEVER = ["1" + "0" * 30, "-1" + "0" * 30, "nan", "inf", "1.5", "x", "", " ", "1_0", "0x1"]


def options(add: Callable[[argparse.ArgumentParser], Any]) -> dict[str, Any]:
    """The options that take numbers, with their types."""
    parser = argparse.ArgumentParser()
    add(parser)
    known = {action.option_strings[-1]: action.type for action in parser._actions if action.option_strings}
    assert int not in known.values()
    return {name: kind for name, kind in known.items() if kind in (number, whole, count, counts)}


@pytest.mark.parametrize("command", [analyze, bench], ids=["analyze", "bench"])
def test_numbers_that_are_none_are_refused(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = analyze.ANALYSES if command is analyze else bench.BENCHES
    tried = 0
    for verb, part in verbs.items():
        for option, kind in options(part.add_options).items():
            refused = [*NEVER, *["-1"] * (kind is not number), *["0"] * (kind is count)]
            for value in refused:
                with pytest.raises(SystemExit):
                    command.main([verb, f"{option}={value}"])
                said = capsys.readouterr().err.splitlines()[-1]
                assert said.endswith("at most"), (verb, option, value, said)
                tried += 1
    assert tried > 200
