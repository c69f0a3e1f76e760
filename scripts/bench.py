"""Measure deepnets on this machine: `python scripts/bench.py` is `deepnets bench`."""

from deepnets.system import begin

if __name__ == "__main__":
    begin()

from deepnets.command import run_command
from deepnets.commands.bench import main

if __name__ == "__main__":
    run_command(main)
