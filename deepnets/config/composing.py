"""What Hydra may do while it composes: call no class that an option names, write out no grid without a bound, and end
in no error but one of a line."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import inf
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.places import CONF
from deepnets.errors import UserError

CALLBACKS = {"callbacks": None}  # of Hydra's defaults
LARGEST_GRID = 10_000  # runs of one command, which are all composed before the first one starts
TOO_LARGE = f"a grid of more than {LARGEST_GRID:,} runs, the most that one command composes"


@dataclass
class NoCallback:
    """Of what Hydra would call: no name is one."""


@dataclass
class WithoutCallbacks(HydraConf):
    """Hydra's own node, where no option can name a class for Hydra to call."""

    defaults: list[Any] = field(default_factory=lambda: [each for each in HydraConf().defaults if each != CALLBACKS])
    callbacks: dict[str, NoCallback] = field(default_factory=dict)  # type: ignore[assignment]


@contextmanager
def composing(words: Iterable[str]) -> Iterator[None]:
    """Within, only Hydra works: what it asserts, or looks up in vain, is wrong in the words or in a file of options.

    Raises:
        UserError: so it is; a group that there is not; or a grid of more runs than `LARGEST_GRID`.
    """
    # Hydra loads the module of its sweeper anew, so that the class which it uses is found in its list only.
    sweeper: Any = next(each for each in Plugins.instance().discover(Sweeper) if each.__name__ == "BasicSweeper")
    split = sweeper.split_arguments

    def checked(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        check_size(overrides)
        return split(overrides, max_batch_size)

    sweeper.split_arguments = staticmethod(checked)
    # It composes every row before it launches one, for launchers elsewhere; this one only composes them, here.
    sweeper.validate_batch_is_legal = lambda self, batch: None
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserError, MemoryError) as error:
        if found := re.match(r"Could not override '((.+)/.+)'\.", str(error)):  # only groups have a / in their names
            groups = [str(group.relative_to(CONF)) for group in CONF.rglob("*/")]
            if found[1] in groups:
                raise UserError(f"{found[1]}: the chosen {found[2]} has no such part; leave it out") from error
            near = get_close_matches(found[1], groups, 1)
            listed = f"the nearest: {near[0]}" if near else "--help lists all"
            raise UserError(f"{found[1]}: no such group of options; {listed}") from error
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system; OmegaConf raises it without
            raise
        reason = f"Hydra cannot compose this: {' '.join(str(error).split()) or type(error).__name__}"
        if isinstance(error, AssertionError):
            words = [word for word in words if "." in word.partition("=")[0]]
            reason = f"a key here lies below one that has no value ({reason})"
        raise UserError(f"{' '.join(words)}: {reason}") from error
    finally:
        sweeper.split_arguments = staticmethod(split)
        del sweeper.validate_batch_is_legal


def check_size(overrides: Iterable[Override]) -> None:
    """Raises a UserError where the values of these words are a grid of more runs than `LARGEST_GRID`."""
    runs = 1.0
    for override in {override.get_key_element(): override for override in overrides}.values():  # the last of a key
        runs *= _number_of_values(override.value())
        if not runs <= LARGEST_GRID:  # or no number
            raise UserError(f"{override.input_line}: {TOO_LARGE}")


def _number_of_values(sweep: Any) -> float:
    """Of the sweep that a word is, without writing it out; 1 of a word that is none."""
    if isinstance(sweep, ChoiceSweep):
        return len(sweep.list)
    if isinstance(sweep, RangeSweep) and sweep.step:  # Hydra refuses a step of 0
        try:
            return max((sweep.stop - sweep.start) / sweep.step, 0.0)  # type: ignore[operator]
        except OverflowError:
            return inf
    return 1.0
