"""What Hydra may do while it composes: call no class that an option names, and end in no error but one of a line."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hydra.conf import HydraConf
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from deepnets.errors import UserError

CALLBACKS = {"callbacks": None}  # of Hydra's defaults


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
        UserError: so it is.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserError):
        raise
    except (AssertionError, LookupError, OSError, RuntimeError, TypeError, ValueError, YAMLError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system; OmegaConf raises it without
            raise
        reason = f"Hydra cannot compose this: {' '.join(str(error).split()) or type(error).__name__}"
        if isinstance(error, AssertionError):
            words = [word for word in words if "." in word.partition("=")[0]]
            reason = f"a key here lies below one that has no value ({reason})"
        raise UserError(f"{' '.join(words)}: {reason}") from error
