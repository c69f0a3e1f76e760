"""Rows of commands are what they were: configuration, identity, folder and names, by digests that are on file."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from deepnets.errors import UserError
from tests.config.golden import COMMANDS, FILE, REFUSED, commands, composed, digest, project

ON_FILE = json.loads(FILE.read_text())
TABLES = [command for command in commands() if command not in COMMANDS]
PARTS = 32


def check(command: str) -> None:
    with project() as place:
        try:
            now = digest(composed(command, place))
        except (UserError, HydraException, OmegaConfBaseException):
            now = REFUSED
    assert now == ON_FILE[command], command


def marked(mark: pytest.MarkDecorator, values: Iterable[Any]) -> list[Any]:
    return [pytest.param(value, marks=mark) for value in values]


SOME = COMMANDS[::5]
OTHERS = [command for command in COMMANDS if command not in SOME]


@pytest.mark.parametrize("command", [*SOME, *marked(pytest.mark.slow, OTHERS)])
def test_a_command_has_the_rows_it_had(command: str) -> None:
    check(command)


@pytest.mark.parametrize("part", [*marked(pytest.mark.slow, [0]), *marked(pytest.mark.nightly, range(1, PARTS))])
def test_every_table_has_the_rows_it_had(part: int) -> None:
    for command in TABLES[part::PARTS]:
        check(command)


def test_each_digest_is_of_a_command() -> None:
    assert set(ON_FILE) == set(commands())
