"""Measures the test error of a run, of its record or of a state dict, or writes guesses for ImageNet's server.

Any view of ImageNet's images may be chosen.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import UNTRAINED, Subject, placed, subject_of
from deepnets.config.schema import Precision
from deepnets.data.augmentation import ViewName
from deepnets.data.imagenet import ImageNet, Streams, numbers_of, unlabelled
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder
from deepnets.runs.weights import load_state, read_state
from deepnets.system.files import fresh, new_name
from deepnets.system.printing import print_line, with_progress
from deepnets.training.assembly import dataset_of, splits_of
from deepnets.training.fit import Evaluated, Sums, autocast, evaluate, logits_of
from deepnets.training.hardware import choose_precision

OTHER_NAMES = (
    "note: these weights have torchvision's names, and torchvision and timm train with dataset.normalization=channel; "
    "here it is pixel_mean"
)
GUESSES = 5  # classes guessed for each image, as many as ImageNet's test server asks for


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that this analysis has besides its subject."""
    parser.add_argument("--weights", type=Path, metavar="FILE", help="state dict of deepnets, torchvision or timm")
    parser.add_argument("--view", choices=get_args(ViewName), help="view of ImageNet's images (default: the run's)")
    parser.add_argument(
        "--precision", choices=list(Precision), help="arithmetic (default: as in the run's result, else fp32)"
    )
    parser.add_argument(
        "--predict", type=Path, metavar="DIR", help="folder of unlabelled images to classify for the test server"
    )


def run(arguments: argparse.Namespace) -> None:
    """Evaluate, write the files and print the error.

    Raises:
        UserError: the subject is refused, --weights come with a run folder or are of another network, the data have
            no such view, or --predict comes without dataset=imagenet.
    """
    subject = subject_of(arguments)
    if arguments.weights:
        if subject.trained:
            raise UserError("--weights: name the network of a state dict by options, such as model=imagenet_resnet50")
        state = read_state(arguments.weights)
        load_state(subject.model, state)
        placed(subject.model, subject.device)
        subject = replace(subject, name=f"{subject.name.removesuffix(UNTRAINED)}, weights of {arguments.weights.name}")
        if not state.keys() & subject.model.state_dict().keys() and (
            subject.config.dataset.get("normalization") == "pixel_mean"
        ):
            print_line(OTHER_NAMES)
    result = RunFolder(arguments.subject[0]).result if subject.trained else None
    arithmetic = arguments.precision or ("bf16" if result and result.precision == "bfloat16" else "fp32")
    precision = choose_precision(Precision(arithmetic), subject.device)
    guesses = _guesses(subject, arguments) if arguments.predict else None
    with Output("evaluate", subject.folder, arguments) as output:
        if guesses:
            file = output.folder / "evaluate_predictions.txt"
            count = _predict(subject, guesses, precision, file)
            sentence = f"{subject.name}: {file.name} has guesses for {count} images of {arguments.predict}"
            output.finding(sentence, images=count)
            return
        view, batches = _batches(subject, arguments.view)
        sums = Sums(subject.device, top=batches.top)
        for _ in with_progress(evaluate(subject.model, batches, sums, precision), "evaluating", len(batches)):
            pass
        mean, images = sums.mean(), int(sums.values[2])
        numbers = {"test_error": mean.error, "top5_error": mean.top_error, "loss": mean.loss, "images": images}
        shown = f" by {view}, top-5 {mean.top_error:.2f} %" if mean.top_error is not None else ""
        error = result and result.test_error
        before = "" if error is None else f"; the run's result has {error:.2f} %"
        dtype = str(precision).removeprefix("torch.")
        output.finding(
            f"{subject.name}: test error {mean.error:.2f} %{shown}, {images} images, in {dtype}{before}",
            **numbers,
            view=view,
            precision=dtype,
        )


def _batches(subject: Subject, view: ViewName | None) -> tuple[ViewName, Evaluated]:
    """Return the view and the test images in it; if `view` is None, take the view in the subject's configuration."""
    dataset, size = dataset_of(subject.config), subject.config.evaluation_batch_size
    splits = splits_of(dataset, subject.device)
    if isinstance(splits, Streams) and isinstance(dataset, ImageNet):
        view = view or dataset.view
        return view, splits.evaluation_batches(splits.test, batch_size=size, view=view)
    if view not in (None, "center"):
        raise UserError(f"--view {view}: only the images of dataset=imagenet have several views")
    return "center", splits.evaluation_batches(splits.test, batch_size=size)


def _guesses(subject: Subject, arguments: argparse.Namespace) -> tuple[Evaluated, Tensor]:
    """Return the images to classify, and the number that ImageNet's test server uses for each class."""
    dataset = dataset_of(subject.config)
    if not isinstance(dataset, ImageNet):
        raise UserError("--predict: writes the format of ImageNet's test server; add dataset=imagenet")
    splits = dataset.load(subject.device)
    numbers = torch.tensor(numbers_of(dataset.photographs.folder, splits.train.classes))
    size, view = subject.config.evaluation_batch_size, arguments.view or dataset.view
    return splits.evaluation_batches(unlabelled(arguments.predict), batch_size=size, view=view), numbers


def _predict(subject: Subject, guesses: tuple[Evaluated, Tensor], precision: torch.dtype, file: Path) -> int:
    """Write the file for ImageNet's test server, and return the number of images.

    The file has a line for each image, sorted by file name. A line lists the classes guessed, best first, by the
    server's numbers.
    """
    (batches, numbers), images = guesses, 0
    subject.model.eval()
    with fresh(file, durable=False) as lines:
        for x, labels in batches:
            with torch.inference_mode(), autocast(subject.device, precision):
                best = logits_of(subject.model, x, len(labels)).topk(min(GUESSES, len(numbers))).indices.cpu()
            lines.writelines(f"{' '.join(map(str, guess))}\n".encode() for guess in numbers[best].tolist())
            images += len(labels)
    new_name(file).replace(file)
    return images
