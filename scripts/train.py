"""Train one run or a whole grid; `python scripts/train.py --help` lists what can be chosen."""

import re
import sys
from os.path import expanduser

from hydra import main as hydra_main
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from deepnets.command import run_command
from deepnets.config.compose import register, renamed, typed
from deepnets.config.schema import Row
from deepnets.errors import UserError

composed: list[tuple[DictConfig, HydraConf]] = []


@hydra_main(version_base="1.3", config_path="../conf", config_name="train")
def compose(config: DictConfig) -> None:
    """Hydra composes a row of the grid; nothing is checked, written or trained before all rows are composed."""
    composed.append((config, HydraConfig.get()))


def main() -> int:
    # A shell expands ~ only where a word begins, and Hydra does not read it.
    sys.argv[1:] = [
        re.sub(r"^([\w.]+=)(~/)", lambda found: found[1] + expanduser(found[2]), word) for word in sys.argv[1:]
    ]
    for place, word in enumerate(sys.argv):
        if (now := renamed(word)) != word:
            print(f"{word}: read as {now}, its name since it belongs to the launcher", file=sys.stderr)
            sys.argv[place] = now
    try:
        compose()
    except ValueError as error:  # Hydra's own flags do not go together
        raise UserError(str(error)) from error
    if not composed:
        return 0
    tables = {hydra.runtime.choices.get("sweep") for _, hydra in composed}
    if len(tables) > 1:
        raise UserError(f"sweep={','.join(sorted(map(str, tables)))}: a command trains one table; give each its own")
    rows = [Row(typed(config), dict(hydra.runtime.choices), tuple(hydra.overrides.task)) for config, hydra in composed]
    given = [word for word in sys.argv[1:] if word.startswith("trusted_targets=")]
    if len({tuple(row.config.trusted_targets) for row in rows}) > 1 or (rows[0].config.trusted_targets and not given):
        raise UserError("trusted_targets: may be given only on the command line, and one list for all rows")
    # Here, because they import torch, which --help and a mistyped option need not wait for.
    if rows[0].config.plan:
        from deepnets.launch.plan import show_plan

        return show_plan(rows)
    from deepnets.launch.grid import launch

    return launch(rows)


if __name__ == "__main__":
    register()
    run_command(main)
