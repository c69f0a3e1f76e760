"""Measure why depth works: `python scripts/analyze.py` is `deepnets analyze`."""

from deepnets.system import begin

if __name__ == "__main__":
    begin()

from deepnets.command import run_command
from deepnets.commands.analyze import main

if __name__ == "__main__":
    run_command(main)
