"""List, and with --yes remove, files that nobody needs: checkpoints of finished runs, unused code, damaged files."""

import argparse
from pathlib import Path

from deepnets.runs.clean import clean


def main() -> int:
    """Clean the folders that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of sweeps, or of single runs")
    parser.add_argument("--yes", action="store_true", help="remove the listed files")
    parser.add_argument(
        "--keep-weights",
        action="store_true",
        help="keep each run's last weights as safetensors, and those of keep_checkpoints=N",
    )
    arguments = parser.parse_args()
    return clean(arguments.folders, remove=arguments.yes, keep_weights=arguments.keep_weights)
