"""Show results beside the paper's: `python scripts/report.py` is `deepnets report`."""

from deepnets.system import begin

if __name__ == "__main__":
    begin()

from deepnets.command import run_command
from deepnets.commands.report import main

if __name__ == "__main__":
    run_command(main)
