"""Checks of a run's settings that need no network: they run before torch is imported, which takes seconds."""

from collections.abc import Sequence

from deepnets.config.build import build, check_ranges
from deepnets.config.schema import Config, Row
from deepnets.errors import UserError


def check_early(rows: Sequence[Row]) -> None:
    """Refuse a grid in which all runs have the same error; a grid of different errors is checked row by row later.

    Raises:
        UserError: the error.
    """
    said = None
    for row in rows:
        try:
            check_plain_settings(row.config)
            return
        except UserError as error:
            if said not in (None, str(error)):
                return
            said = str(error)
    raise UserError(said)


def check_plain_settings(config: Config) -> None:
    """Whether numbers are in their ranges, the budget is one, and the schedule can be built.

    Raises:
        UserError: names the first thing that is wrong.
    """
    check_ranges(config)
    check_budget(config)
    build("schedule", config.schedule, config.trusted_targets, total=1)


def check_budget(config: Config) -> None:
    """Whether the budget is either in epochs or in iterations.

    Raises:
        UserError: not exactly one of `epochs` and `iterations` is set.
    """
    if (config.epochs is None) == (config.iterations is None):
        either = f"'epochs={config.epochs or 164} iterations=null'"
        other = f"'epochs=null iterations={config.iterations or 64000}'"
        raise UserError(
            f"epochs={config.epochs} and iterations={config.iterations}: set one of them, and the other to null: "
            f"{either} or {other}"
        )
