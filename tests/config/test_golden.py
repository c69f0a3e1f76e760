"""Rows of commands are what they were: configuration, identity, folder and names, by digests that are on file."""

import json

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


def nightly(parts: range) -> list:
    return [pytest.param(part, marks=pytest.mark.nightly) for part in parts]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_rows_it_had(command: str) -> None:
    check(command)


@pytest.mark.parametrize("part", [pytest.param(0, marks=pytest.mark.slow), *nightly(range(1, PARTS))])
def test_every_table_has_the_rows_it_had(part: int) -> None:
    for command in TABLES[part::PARTS]:
        check(command)


def test_each_digest_is_of_a_command() -> None:
    assert set(ON_FILE) == set(commands())
