"""Train one run or a sweep: `python scripts/train.py` is `deepnets train`."""

from deepnets.system import begin

if __name__ == "__main__":
    begin()

from deepnets.command import run_command
from deepnets.commands.train import main

if __name__ == "__main__":
    run_command(main)
