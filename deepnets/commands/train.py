"""Train one run or a whole sweep; `--help` lists the options."""

from deepnets.config.command_line import rows_of_command
from deepnets.errors import UserError


def main() -> int:
    """Train the runs that the command line names, or print their plan; returns the exit code."""
    rows = rows_of_command()
    if not rows:
        return 0
    # Imported here, because torch takes seconds: --help and errors about options come without this wait.
    from deepnets.runs.initial_weights import with_weights

    rows = with_weights(rows)
    if rows[0].config.hours is not None and not rows[0].config.until:
        raise UserError("hours: limits only until=decided; add until=decided")
    if rows[0].config.until:
        from deepnets.commands.until import train_until_decided

        return train_until_decided(rows)
    if rows[0].config.plan:
        from deepnets.launch.plan import show_plan
        from deepnets.results.claims_page import show_seeds

        code = show_plan(rows)
        show_seeds(rows)
        return code
    from deepnets.launch.grid import launch

    return launch(rows)
