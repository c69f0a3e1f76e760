"""Writes metrics.csv, log.txt and lines on the console while a run trains; the dashboard writes for TensorBoard."""

import csv
import io
import time
from contextlib import nullcontext, suppress
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from deepnets.config.schema import Config
from deepnets.runs.folder import RunFolder
from deepnets.runs.record import duration, protocol_change
from deepnets.system.files import opened_to_append, write_atomically
from deepnets.system.printing import print_line
from deepnets.training.fit import Training
from deepnets.training.hardware import wait

# Columns of metrics.csv that differ from one execution to the next; all others are a function of the run.
TIME_COLUMNS = ("images_per_second", "seconds")
REFRESH_SECONDS = 1.0  # between two reads of the device for the display
FIRST_LINES, LINE_SECONDS = 3, 60.0  # without a terminal, a process prints the first epochs, then one a minute

PROTOCOLS: list[str] = []  # printed by this process; emptied when its output moves to another file
_printed: list[float] = []  # the times when epochs were printed


class Log:
    """Follows one run; call `iteration` at every yield of `fit`, and `epoch` when an epoch is completed.

    `history` holds one dict an epoch, as in metrics.csv, and `observed` the dashboard's measurements of the units; the
    log adds to both, and checkpoints store them. The argument `seconds` is the wall time of earlier executions, and
    `own_seconds` the run's share of it (all, if None); the properties add this execution's. If `runs` train at the same
    time, the run's `name` stands before its lines on the console, and no progress is displayed.
    """

    def __init__(
        self,
        folder: RunFolder,
        training: Training,
        config: Config,
        history: list[dict[str, Any]],
        observed: list[dict[str, Any]],
        seconds: float,
        name: str | None = None,
        own_seconds: float | None = None,
        runs: int = 1,
    ) -> None:
        self.folder = folder
        self.prefix = "" if name is None else f"{name}: "
        self.history = history
        self.every = config.log_iterations
        self.started = time.monotonic() - seconds
        self.own, self.since, self.runs = seconds if own_seconds is None else own_seconds, seconds, runs
        self.start_iteration = training.iteration
        self.clock = _Clock(training)
        self.losses: list[tuple[int, torch.Tensor]] = []
        self.noted = training.iteration
        self.refreshed = 0.0
        self.begun = self.yielded = time.monotonic()
        if training.iteration == 0:  # log.txt is of an execution that left no checkpoint
            (folder.path / "log.txt").unlink(missing_ok=True)
        from deepnets.monitor.dashboard import Dashboard  # with matplotlib, which no plan needs

        self.dashboard = Dashboard(folder.path, folder.origin.model_dump(), training, config, observed)
        console = Console(highlight=False)
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=12), TextColumn("{task.fields[state]}")]
        self.progress = Progress(
            *(columns if console.width >= 100 else columns[::2]),
            console=console,
            transient=True,
            disable=name is not None or not console.is_terminal or console.is_dumb_terminal,
        )
        self.task = self.progress.add_task("starting", total=training.iterations, state="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError):  # the terminal is gone
            self.progress.stop()
        # If writing has failed, closing fails too; the user should see the first error.
        with nullcontext() if kind is None else suppress(OSError):
            self._write_losses()
            self.dashboard.close()

    @property
    def seconds(self) -> float:
        """Seconds of wall time over all executions of the run."""
        return time.monotonic() - self.started

    @property
    def own_seconds(self) -> float:
        """This run's share of `seconds`: the runs that train at once share the time equally."""
        return self.own + (self.seconds - self.since) / self.runs

    def share(self, runs: int) -> None:
        """Let the time from now on be that of so many runs."""
        self.own, self.since, self.runs = self.own_seconds, self.seconds, runs

    def times(self) -> dict[str, Any]:
        """Return the seconds and, if others trained at once, the run's own, as results and checkpoints hold them."""
        return {"seconds": self.seconds} | (
            {"own_seconds": own} if (own := self.own_seconds) < self.seconds - 1e-3 else {}
        )

    @property
    def seconds_idle(self) -> float:
        """Seconds since the last iteration or evaluated batch."""
        return time.monotonic() - self.yielded

    def iteration(self, training: Training) -> None:
        """Note an iteration; now and then, read the losses from the device and refresh the display."""
        self.yielded = time.monotonic()
        self.clock.tick(training)
        if training.loss is not None and training.iteration % self.every == 0 and training.iteration > self.noted:
            self.losses.append((training.iteration, training.loss))
            self.noted = training.iteration
        if time.monotonic() - self.refreshed < REFRESH_SECONDS:
            return
        self.refreshed = time.monotonic()
        self._write_losses()
        self._display(training, training.sums.mean().loss)

    def epoch(self, training: Training) -> None:
        """Write the epoch just completed to metrics.csv, log.txt, TensorBoard and, if a line is due, to the console."""
        row: dict[str, Any] = {
            "epoch": training.epoch,
            "iteration": training.iteration,
            "learning_rate": training.learning_rate,
        }
        for split, mean in training.completed.items():
            row |= {f"{split}_loss": mean.loss, f"{split}_error": mean.error}
            if mean.top_error is not None:
                row[f"{split}_top5_error"] = mean.top_error
        row |= {"images_per_second": round(self.clock.images_per_second(), 1), "seconds": round(self.seconds, 2)}
        self.clock = _Clock(training)
        self.history.append(row)
        self.write_metrics(durable=False)  # the checkpoint has all rows
        self.dashboard.epoch(training, self.history)
        line = f"epoch {training.epoch}/{training.epochs}" + "".join(
            f"  {split} {mean.loss:.4f} {mean.error:.2f}%" for split, mean in training.completed.items()
        )
        if row["images_per_second"] > 0:  # 0: this execution has only evaluated
            line += f"  {row['images_per_second']:,.0f} images/s  {duration(self.time_left(training))} left"
        self._record(line)
        if self.progress.disable and _is_due():
            self._print(line)

    def flush(self) -> None:
        """Write everything noted so far to disk; call this before each checkpoint."""
        self._write_losses()
        self.dashboard.flush()

    def end(self, finished: bool) -> None:
        """Write the last entries of a run that `finished` or, if not, diverged."""
        self.write_metrics()
        self.dashboard.end(finished)

    def write_metrics(self, durable: bool = True) -> None:
        """Write `history` as metrics.csv."""
        write_atomically(self.folder.path / "metrics.csv", as_csv(self.history), durable)

    def remark(self, line: str) -> None:
        """Write a line about the run into its log.txt and to the console."""
        self._record(line)
        self._print(line)

    def protocol(self, line: str) -> None:
        """Write the protocol line; the console shows what is not as in the line that it shows last."""
        self._record(line)
        if PROTOCOLS[-1:] != [line]:
            change = protocol_change(line, PROTOCOLS[-1]) if PROTOCOLS else None
            self._print(f"protocol: as before, but {change}" if change else line)
            PROTOCOLS.append(line)

    def _record(self, line: str) -> None:
        with opened_to_append(self.folder.path / "log.txt") as file:
            file.write(f"{line}\n".encode())

    def _print(self, line: str) -> None:
        print_line(self.prefix + line)

    def time_left(self, training: Training) -> float:
        """Return the seconds to the end of the budget, at the pace of this execution."""
        done = training.iteration - self.start_iteration
        return (time.monotonic() - self.begun) / max(done, 1) * (training.iterations - training.iteration)

    def _write_losses(self) -> None:
        if self.losses:
            iterations, losses = zip(*self.losses, strict=True)
            self.dashboard.losses(dict(zip(iterations, torch.stack(losses).tolist(), strict=True)))
            self.losses.clear()

    def _display(self, training: Training, loss: float) -> None:
        errors = [
            f"{key[:-6]} {value:.2f}%" for key, value in (self.history or [{}])[-1].items() if key.endswith("_error")
        ]
        self.progress.update(
            self.task,
            completed=training.iteration,
            description=f"epoch {min(training.epoch + 1, training.epochs)}/{training.epochs}"
            f"  {duration(self.time_left(training))} left",
            state=f"{self.clock.images_per_second():,.0f} images/s  loss {loss:.3f}  {'  '.join(errors)}",
        )


def _is_due() -> bool:
    """Return whether to print the epoch that has just ended."""
    if len(_printed) >= FIRST_LINES and time.monotonic() - _printed[-1] < LINE_SECONDS:
        return False
    _printed.append(time.monotonic())
    return True


def as_csv(history: list[dict[str, Any]]) -> str:
    """Return the text of metrics.csv."""
    text = io.StringIO()
    if history:
        writer = csv.DictWriter(text, fieldnames=list(history[-1]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
    return text.getvalue()


class _Clock:
    """Measures training images per second, without the time of evaluations."""

    def __init__(self, training: Training) -> None:
        self.first = self.images = training.images
        self.last = time.monotonic()
        self.seconds = 0.0

    def tick(self, training: Training) -> None:
        ends_epoch = training.batch == len(training.batches) or training.iteration == training.iterations
        if ends_epoch and training.images > self.images:
            wait(training.device)  # so that its unfinished work counts as training, not as evaluation
        now = time.monotonic()
        if training.images > self.images:
            self.seconds += now - self.last
            self.images = training.images
        self.last = now

    def images_per_second(self) -> float:
        return (self.images - self.first) / self.seconds if self.seconds else 0.0
