"""Commands refuse at once numbers that no library could take, and verbs and folders that are not there."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from deepnets.command import count, counts, number, whole
from deepnets.commands import analyze, bench, predict
from deepnets.errors import UserError
from deepnets.system import SPINS
from tests.command import ENVIRONMENT, ROOT

pytestmark = pytest.mark.attack

NEVER = ["1" + "0" * 30, "-1" + "0" * 30, "nan", "inf", "1.5", "x", "", " ", "1_0", "0x1"]


def options(add: Callable[[argparse.ArgumentParser], Any]) -> dict[str, Any]:
    """Return the options that take numbers, with their types."""
    parser = argparse.ArgumentParser()
    add(parser)
    types = {action.option_strings[-1]: action.type for action in parser._actions if action.option_strings}
    assert int not in types.values()
    return {name: kind for name, kind in types.items() if kind in (number, whole, count, counts)}


@pytest.mark.parametrize("command", [analyze, bench], ids=["analyze", "bench"])
def test_numbers_that_are_none_are_refused(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = analyze.ANALYSES if command is analyze else bench.BENCHES
    tried = 0
    for verb, part in verbs.items():
        part = import_module(part) if command is analyze else part
        for option, kind in options(part.add_options).items():
            refused = [*NEVER, *["-1"] * (kind is not number), *["0"] * (kind is count)]
            for value in refused:
                with pytest.raises(SystemExit):
                    command.main([verb, f"{option}={value}"])
                message = capsys.readouterr().err.splitlines()[-1]
                assert message.endswith("at most"), (verb, option, value, message)
                tried += 1
    assert tried > 200


def test_what_there_is_not_is_said_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    for words in (["analyze", "lesions"], ["report", str(tmp_path / "nowhere")]):
        program = (
            f"import sys; sys.argv = ['deepnets', *{words!r}]\n"
            "from deepnets.__main__ import main\nfrom deepnets.errors import UserError\n"
            "try:\n    main()\nexcept UserError as error:\n    print(error)\nassert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "no such" in done.stdout


def test_the_version_is_told() -> None:
    done = subprocess.run([sys.executable, "-m", "deepnets", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith(f"deepnets {version('deepnets')}, commit ")


@pytest.mark.parametrize(
    "words",
    [
        ["report", ".", "--verify="],
        ["report", ".", "--project="],
        ["analyze", "evaluate", ".", "--root="],
        ["export", ".", "--to=x", "--data="],
    ],
)
def test_an_empty_value_is_refused_and_not_as_if_it_were_left_out(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"deepnets {words[0]}", *words[1:]])
    with pytest.raises(SystemExit):
        import_module(f"deepnets.commands.{words[0]}").main()
    assert capsys.readouterr().err.endswith(f"argument {words[-1][:-1]}: needs a value\n")


def test_predictions_are_not_written_to_a_folder(tmp_path: Path) -> None:
    for place in ("", ".", "/", str(tmp_path)):
        with pytest.raises(UserError, match="is a folder; name a file in it"):
            predict.main(["run", "image.png", f"--to={place}"])


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["report", ".", "--verfy"], "verify"),
        (["clean", ".", "--yess"], "yes"),
        (["analyze", "lesion", ".", "--ouput"], "output"),
        (["bench", "rows", "--repaets"], "repeats"),
    ],
)
def test_the_nearest_of_an_unknown_option_is_named(
    words: list[str], near: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        import_module(f"deepnets.commands.{words[0]}").main()
    assert capsys.readouterr().err.endswith(f"unrecognized arguments: {words[-1]}; the nearest: --{near}\n")


def test_the_nearest_analysis_is_named() -> None:
    with pytest.raises(UserError, match=r"analyze lesoin: no such analysis; .*; the nearest: lesion$"):
        analyze.main(["lesoin"])


@pytest.mark.parametrize("chosen", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}])
def test_threads_sleep_soon_unless_the_environment_says_how_they_wait(chosen: dict[str, str]) -> None:
    program = (
        "import os, sys; from deepnets.system import begin; begin(); print('torch' in sys.modules); "
        "print({key: os.environ[key] for key in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY') if key in os.environ})"
    )
    unset = {key: value for key, value in ENVIRONMENT.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=unset | chosen, cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout.decode().splitlines() == ["False", str(chosen or {"GOMP_SPINCOUNT": SPINS})]
