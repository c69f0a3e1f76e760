"""Runs the project's commands and composes rows as users do."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from deepnets.config.compose import compose
from deepnets.config.schema import Row
from deepnets.runs.log import TIME_COLUMNS

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, str(ROOT / "scripts" / "train.py")]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "0"}


def train(*overrides: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `python scripts/train.py` with these overrides to its end."""
    return subprocess.run([*TRAIN, *overrides], capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, check=False)


def start(*overrides: str) -> subprocess.Popen[str]:
    """Start `python scripts/train.py` with these overrides, and do not wait for it."""
    return subprocess.Popen(
        [*TRAIN, *overrides], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=ENVIRONMENT
    )


def metrics(folder: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv without the columns that depend on a clock."""
    with (folder / "metrics.csv").open() as file:
        return [
            {name: value for name, value in row.items() if name not in TIME_COLUMNS} for row in csv.DictReader(file)
        ]


def row(output_root: Path, *changes: str) -> Row:
    """Compose the row that scripts/train.py composes for these overrides."""
    return compose([*changes, f"output_root={output_root}"])
