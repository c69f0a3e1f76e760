"""Classify image files with a trained run: `python scripts/predict.py` is `deepnets predict`."""

from deepnets.system import begin

if __name__ == "__main__":
    begin()

from deepnets.command import run_command
from deepnets.commands.predict import main

if __name__ == "__main__":
    run_command(main)
