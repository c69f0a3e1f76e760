"""The top of every command: how it ends when the user erred, or asked it to stop."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from deepnets.distributed.signals import RESUME, Interrupted
from deepnets.errors import UserError


def run_command(command: Callable[[], int]) -> NoReturn:
    """Call `command` and exit with the code it returns; 1 with a message for a user's error, 128 + n after signal n.

    What Hydra refuses to compose is the user's error too. A bug keeps its traceback; with HYDRA_FULL_ERROR=1 so does a
    user's error.
    """
    try:
        sys.exit(command())
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        sys.exit(f"error: {error}")
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        print(f"Stopped. {RESUME}.", file=sys.stderr)
        sys.exit(130)
