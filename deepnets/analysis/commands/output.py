"""The output of an analysis: tables (CSV), figures (PNG, SVG, TensorBoard) and findings (JSON, and printed)."""

import argparse
import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import nn

from deepnets.config.claim import claims_on_file
from deepnets.config.sweep import SWEEPS
from deepnets.errors import UserError, printable
from deepnets.monitor.dashboard import event_writer
from deepnets.monitor.style import styled
from deepnets.results.page import Picture
from deepnets.results.registered import PLACES, noted_by
from deepnets.runs.folder import RunFolder
from deepnets.system.files import LONGEST, make_own_folder, opened_to_append, read_text, write_atomically

LINE = TypeAdapter(tuple[str, list[float]])


class Output:
    """The files of one analysis: `<folder>/analysis/<analysis>_<name>.{csv,png,svg}`, or directly in --output.

    `<analysis>.json` beside them holds the options, the names of those that are not the default (`changed`) and, for
    each finding, its sentence and its numbers. Unless `folder` is a run folder, the JSON file also holds the claims
    that were on file when it was first written, as a run's result does.

    Each figure is also the TensorBoard image `analysis/<analysis>_<name>` of the run folder; a UserError is raised if
    another process, e.g. the training, writes to that folder. With --output the run folder is not touched.
    """

    def __init__(self, analysis: str, folder: Path, arguments: argparse.Namespace) -> None:
        self.analysis = analysis
        self.events = folder
        self.folder = folder if arguments.output else folder / "analysis"
        given = vars(arguments)
        self.options = {name: _plain(value) for name, value in given.items() if name not in ("run", "changed")}
        self.changed = [name for name in given.get("changed", ()) if name not in PLACES]
        subject = next(iter(given.get("subject") or []), None)
        in_run = (self.folder.parent / "config.yaml").is_file()
        if subject and in_run and Path(subject).resolve() != self.folder.parent.resolve():
            self.changed.append("subject")  # these are not results of the run in whose folder they lie
        self.findings: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # TensorBoard follows only the newest events file, so it would lose sight of a run that still trains.
            if (self.events / "config.yaml").is_file():
                stack.enter_context(RunFolder(self.events).hold())
            if self.folder.parent == self.events:
                make_own_folder(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tell_replaced()
            self._note()
            self.writer = stack.enter_context(closing(event_writer(self.events)))
            stack.enter_context(styled())
            self.held = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.held.close()
        if kind is None:
            self._note()
            print(printable(f"results      {RunFolder(self.folder)}/{self.analysis}*"))

    def _note(self) -> None:
        """Write the JSON file; before the first table too, so that no table is read with the options of an earlier one.

        The first call decides which claims the file holds.
        """
        contents: dict[str, Any] = {"analysis": self.analysis, "options": self.options, "changed": self.changed}
        contents["findings"] = self.findings
        if not (self.events / "config.yaml").is_file():  # no run folder: no result notes the claims
            contents["claims"] = self._claims_known()
        text = json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(self.folder / f"{self.analysis}.json", text + "\n")

    def _tell_replaced(self) -> None:
        """Print how the options of the results that this analysis will replace differ from its own."""
        earlier = None
        with suppress(UserError):  # a damaged file is replaced too
            earlier = noted_by(self.folder, self.analysis).get("options")
        now = self.options
        names = [name for name in (earlier if isinstance(earlier, dict) else ()) if name not in PLACES]
        differing = [
            f"--{name.replace('_', '-')} {_given(earlier[name])} then, {_given(now.get(name))} now"
            for name in names
            if earlier and earlier[name] != now.get(name)
        ]
        if differing:
            told = f"will replace the results in {RunFolder(self.folder)} with other options"
            print(printable(f"{self.analysis}: {told}: {'; '.join(differing)}"), flush=True)

    def _claims_known(self) -> list[str]:
        """Return the claims on file, as SWEEP/HASH; if the folder already has numbers, only those noted then."""
        earlier = noted_by(self.folder, self.analysis)
        return [claim for claim in claims_on_file(SWEEPS) if not earlier or claim in earlier.get("claims", [])]

    def table(self, name: str, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
        """Write the columns, of equal length, as CSV; numbers to six significant digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([f"{cell:.6g}" if isinstance(cell, float | np.floating) else cell for cell in row])
        write_atomically(self.folder / f"{self.analysis}_{name}.csv", text.getvalue(), durable=False)

    def rows(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write the rows as CSV, as `table` writes columns."""
        self.table(name, dict(zip(columns, zip(*rows, strict=True), strict=True)))

    def figure(self, name: str, figure: Figure) -> None:
        """Write the figure as PNG and SVG, and as an image for TensorBoard."""
        png, _ = Picture(f"{self.analysis}_{name}", name, figure).save(self.folder)
        with Image.open(png) as image:
            pixels = np.asarray(image.convert("RGB"))
        self.writer.add_image(f"analysis/{self.analysis}_{name}", pixels, dataformats="HWC")

    @contextmanager
    def saved(self, *nets: nn.Module) -> Iterator["Saved"]:
        """Yield results saved by key, with which a killed analysis resumes; delete them when the analysis has ended."""
        file = self.folder / f"{self.analysis}.partial"
        saved = Saved(file, json.dumps([self.options, _checksum(nets)]))
        if saved.results:
            print(f"{self.analysis}: resumes with the {len(saved.results)} results it has already", flush=True)
        yield saved
        file.unlink()

    def finding(self, sentence: str, **numbers: Any) -> None:
        """Print the finding, a sentence, and keep it with its numbers, which may be arrays, for the JSON file."""
        print(printable(f"{self.analysis}: {sentence}"), flush=True)
        self.findings.append({"sentence": sentence} | {name: _plain(value) for name, value in numbers.items()})


class Saved:
    """Numbers by key in a file, one line of JSON each; those of another `origin` and half-written lines are dropped."""

    def __init__(self, file: Path, origin: str) -> None:
        self.file, self.results = file, dict[str, list[float]]()
        try:
            lines = read_text(file, LONGEST).splitlines()
        except (OSError, ValueError):  # no such file, or a damaged one
            lines = []
        for line in lines[1:] if lines[:1] == [json.dumps(origin)] else []:
            try:
                key, numbers = LINE.validate_json(line)
            except ValidationError:
                break
            self.results[key] = numbers
        written = [json.dumps(origin), *(json.dumps(each) for each in self.results.items())]
        write_atomically(file, "".join(f"{line}\n" for line in written), durable=False)

    def once(self, key: str, compute: Callable[[], ArrayLike]) -> list[float]:
        """Return the numbers of this key; if they are not saved yet, compute and save them."""
        if key not in self.results:
            self.results[key] = np.ravel(compute()).astype(float).tolist()
            with opened_to_append(self.file) as file:
                file.write(json.dumps([key, self.results[key]]).encode() + b"\n")
        return self.results[key]


def whole_numbers(option: str, text: str, least: int = 1, most: float = math.inf) -> list[int]:
    """Return the numbers that an option lists, separated by commas.

    Raises:
        UserError: a number is not whole, or outside of `least` to `most`.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and least <= int(part) <= most for part in parts):
        bounds = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
        raise UserError(f"{option} {text}: must be whole numbers {bounds} with commas, e.g. {least},{least + 1}")
    return [int(part) for part in parts]


def _given(value: Any) -> str:
    """Return an option's value as a message says it."""
    return "not given" if value is None or value is False else "given" if value is True else str(value)


def _plain(value: Any) -> Any:
    """Return the value as JSON writes it: arrays as lists, numbers that are not finite as null."""
    match value:
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(each) for each in value]
        case float():
            return value if math.isfinite(value) else None
        case Path():
            return str(value)
        case _:
            return value


def _checksum(nets: Iterable[nn.Module]) -> str:
    """Return the SHA-256 over the bytes of all parameters and buffers of the nets."""
    digest = hashlib.sha256()
    for tensor in (tensor for net in nets for tensor in net.state_dict().values()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
