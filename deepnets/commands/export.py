"""Write a run's weights, and everything that is needed to use them in deepnets and elsewhere, to a folder."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from deepnets.command import add_data_option, add_weights_options
from deepnets.errors import UserError, printable
from deepnets.runs import card
from deepnets.runs.classifier import PROGRAM, classifier_of, with_input, write_program
from deepnets.runs.folder import RunFolder
from deepnets.runs.weights import NoSuchNetwork, read_weights, write_for_torchvision, write_weights

FOR_TORCHVISION = "torchvision.safetensors"


def main(argv: Sequence[str] | None = None) -> int:
    """Export the run that `argv` (None: the command line) names; returns 1 if a file could not be written."""
    parser = argparse.ArgumentParser(
        description="Write a run's weights and configuration, which load_run and predict read; a program of "
        f"torch.export, {PROGRAM}, which needs only torch; and a model card, {card.FILE}. If torchvision and timm "
        f"have the network too, {FOR_TORCHVISION} has the weights under their names."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a record with weights")
    parser.add_argument("--to", type=Path, metavar="DIR", required=True, help="the folder to write to")
    add_data_option(parser)
    add_weights_options(parser)
    arguments = parser.parse_args(argv)
    weights = with_input(read_weights(arguments.run, arguments.allow_previous), arguments.run, arguments.data)
    print(printable(f"weights      {RunFolder(write_weights(weights, arguments.to))}"))
    print(printable(f"settings     {RunFolder(arguments.to / 'config.yaml')}"))
    failed: list[str] = []

    def write(name: str, writer: Callable[[], Path]) -> Path | None:
        try:
            file = writer()
        except UserError as error:
            if not isinstance(error, NoSuchNetwork):  # that is no failure
                failed.append(name)
            print(printable(f"{name:<12} not written: {' '.join(str(error).split())}"))
            return None
        print(printable(f"{name:<12} {RunFolder(file)}"))
        return file

    write("torchvision", lambda: write_for_torchvision(weights, arguments.to / FOR_TORCHVISION))
    program = write("program", lambda: write_program(classifier_of(weights), arguments.to / PROGRAM))
    write(
        "card",
        lambda: card.write_card(RunFolder(arguments.run), weights, arguments.to, program.name if program else None),
    )
    return 1 if failed else 0
