"""Write a run's weights and configuration, as safetensors and YAML, to another folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deepnets.command import add_weights_options
from deepnets.errors import UserError, printable
from deepnets.runs.folder import RunFolder
from deepnets.runs.weights import read_weights, write_for_torchvision, write_weights

FOR_TORCHVISION = "torchvision.safetensors"


def main(words: Sequence[str] | None = None) -> int:
    """Export the run that the command line, or `words`, names."""
    parser = argparse.ArgumentParser(
        description="Write a run's weights and configuration; load_run reads them. Residual networks that torchvision "
        f"and timm have too are also written in their names, as {FOR_TORCHVISION}."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a record with weights")
    parser.add_argument("--to", type=Path, metavar="DIR", required=True, help="where the files go")
    add_weights_options(parser)
    arguments = parser.parse_args(words)
    weights = read_weights(arguments.run, arguments.allow_previous)
    print(printable(f"weights      {RunFolder(write_weights(weights, arguments.to))}"))
    print(printable(f"settings     {RunFolder(arguments.to / 'config.yaml')}"))
    try:
        print(printable(f"torchvision  {RunFolder(write_for_torchvision(weights, arguments.to / FOR_TORCHVISION))}"))
    except UserError as error:
        print(printable(f"torchvision  not written: {error}"))
    return 0
