"""Classify image files with a trained run, and write a CSV file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

from deepnets.command import Parser, add_data_option, add_iteration_option, add_weights_options
from deepnets.config.build import own_targets
from deepnets.data.class_folders import SUFFIXES
from deepnets.errors import UserError, printable
from deepnets.results.export import no_formula
from deepnets.runs.classifier import BATCH, Classifier, classifier_of, with_input
from deepnets.runs.folder import RunFolder
from deepnets.runs.weights import read_weights
from deepnets.system.files import check_writable, write_atomically, writing
from deepnets.system.printing import print_error
from deepnets.training.hardware import find_device

COLUMNS = ("file", "class", "probability")
OWN_SOURCE = (
    "note: your own class made the images that trained this network; predict reads each file with Pillow and brings it "
    "to size by ImageOps.fit (bilinear). If your class does otherwise, pass its arrays to load_classifier(RUN).predict"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Classify the images that `argv` (None: the command line) names.

    Returns 1 if an image cannot be read or a folder has no images, else 0.
    """
    parser = Parser(
        description="Write the most probable class of each image, and its probability, according to a trained run. "
        "Images are scaled, cut and normalised like the run's test images."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, a record with weights, or an exported folder")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGES", help="image files, or folders of them")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", default=Path("predictions.csv"), help="the file to write (predictions.csv)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default)")
    add_data_option(parser)
    add_iteration_option(parser)
    add_weights_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.to.is_dir():
        raise UserError(f"--to {arguments.to}: is a folder; name a file in it")
    check_writable(arguments.to.parent)
    weights = read_weights(arguments.run, arguments.allow_previous, arguments.iteration)
    weights = with_input(weights, arguments.run, arguments.data)
    classifier = classifier_of(weights).to(find_device(arguments.device))
    if own_targets(weights.config.dataset.get("source")):
        print_error(OWN_SOURCE)
    problems: list[str] = []
    files = list(_files(arguments.images, problems))
    lines = [
        line for first in range(0, len(files), BATCH) for line in _lines(classifier, files[first:][:BATCH], problems)
    ]
    if not lines:  # the errors say why; a file of earlier predictions stays
        return 1
    table = pd.DataFrame(lines, columns=COLUMNS).to_csv(index=False)
    with writing(arguments.to):
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.to, table.encode(errors="surrogateescape"))  # a file name may not be UTF-8
    print(printable(f"predictions  {RunFolder(arguments.to)}: {len(lines)} image{'s' * (len(lines) != 1)}"))
    return 1 if problems else 0


def _files(places: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    """Yield the image files in the given order, those in a folder by name; reports folders without images."""
    for place in places:
        if not place.is_dir():
            yield place
            continue
        within = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
        images = sorted(file for file in within if file.suffix.lower() in SUFFIXES and file.name[0] != ".")
        yield from images
        if not images:
            _report(problems, f"{place}: no images in it ({' '.join(SUFFIXES)})")


def _lines(classifier: Classifier, files: Sequence[Path], problems: list[str]) -> list[tuple[str, str, str]]:
    """Return a line for each file that can be read: its name, the most probable class and the probability."""
    images, readable = [], []
    for file in files:
        try:
            images.append(classifier.read(file))
            readable.append(file)
        except UserError as error:
            _report(problems, str(error))
    if not images:
        return []
    best, labels = classifier.predict(torch.stack(images)).max(1)
    return [
        (no_formula(str(file)), no_formula(classifier.classes[label]), f"{probability:.6g}")
        for file, label, probability in zip(readable, labels.tolist(), best.tolist(), strict=True)
    ]


def _report(problems: list[str], problem: str) -> None:
    problems.append(" ".join(problem.split()))
    print_error(f"error: {problems[-1]}")
