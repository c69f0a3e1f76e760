"""Exports runs, from their files, to an experiment tracker: MLflow or Weights & Biases."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deepnets.errors import UserError, printable
from deepnets.monitor.style import styled
from deepnets.results.figures.curves import training_curves
from deepnets.results.page import Picture
from deepnets.results.read import Run, read_runs
from deepnets.runs.contents import DIVERGED

KEY = "deepnets.key"


@dataclass(frozen=True)
class Entry:
    """A run that has ended, as a tracker shows it."""

    run: Run

    @property
    def experiment(self) -> str:
        return self.run.grid.name

    @property
    def name(self) -> str:
        return f"{self.run.row}/{self.run.folder.path.name}"

    @cached_property
    def key(self) -> str:
        """A hash that identifies the run: a copied folder has the same, a run that is trained again has another."""
        lines = [self.experiment, self.name, self.run.result.get("seconds"), *self.run.history]
        return hashlib.sha256("\n".join(map(str, lines)).encode()).hexdigest()[:16]

    @property
    def parameters(self) -> dict[str, Any]:
        """The option chosen in each group, if the run recorded it, and every setting of the run's identity."""
        return self.run.options | self.run.settings | {"seed": self.run.seed}

    @property
    def results(self) -> dict[str, float]:
        """The numbers of result.json."""
        return {name: float(value) for name, value in self.run.result.items() if isinstance(value, int | float)}

    @property
    def curves(self) -> dict[int, dict[str, float]]:
        """The values of metrics.csv by epoch."""
        return {
            int(epoch["epoch"]): {f"curves/{name}": value for name, value in epoch.items() if name != "epoch"}
            for epoch in self.run.history
        }

    @property
    def tags(self) -> dict[str, str]:
        noted = {name: self.run.result.get(name) for name in ("status", "commit", "device", "precision")}
        tags = {"sweep": self.experiment, "row": self.run.row, **noted, "folder": self.run.folder}
        return {name: str(value) for name, value in tags.items() if value is not None}

    def figures(self, folder: Path) -> list[Path]:
        """Draw the run's curves into `folder`; return them and the figures of its analyses. Links are not followed."""
        curves = folder / "curves.png"
        if self.run.history:
            with styled():
                Picture("curves", self.name, training_curves({self.name: self.run}, logarithmic=False)).save(folder)
        place = self.run.folder.path / "analysis"
        analyses = [] if place.is_symlink() else sorted(place.glob("*.png"))
        return [curves] * curves.exists() + [each for each in analyses if each.is_file() and not each.is_symlink()]


class MlflowTracker:
    """The server or database that MLFLOW_TRACKING_URI names: a sweep is an experiment, a diverged run is failed."""

    def __init__(self) -> None:
        import mlflow

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # by default it tries for minutes
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient()
        self.place = str(mlflow.get_tracking_uri())

    def has(self, entry: Entry) -> bool:
        """Return whether the tracker has the complete run."""
        return any(run.info.status != "RUNNING" for run in self._runs_of(entry))

    def add(self, entry: Entry, figures: Sequence[Path]) -> None:
        """Write the run, after deleting the remains of an interrupted export."""
        for run in self._runs_of(entry):
            self._client.delete_run(run.info.run_id)
        end = os.path.getmtime(entry.run.folder.path / "result.json")
        start = end - entry.run.result.get("seconds", 0)
        tags = entry.tags | {KEY: entry.key}
        run = self._client.create_run(self._experiment(entry), int(start * 1000), tags, entry.name).info.run_id
        Metric, Param = self._entities.Metric, self._entities.Param
        metrics = [
            Metric(name, value, int((start + values.get("curves/seconds", 0)) * 1000), epoch)
            for epoch, values in entry.curves.items()
            for name, value in values.items()
        ]
        metrics += [Metric(name, value, int(end * 1000), 0) for name, value in entry.results.items()]
        self._client.log_batch(run, metrics, [Param(name, str(value)) for name, value in entry.parameters.items()])
        for file in figures:
            self._client.log_artifact(run, str(file), "figures")
        status = "FAILED" if entry.run.state.name == DIVERGED else "FINISHED"
        self._client.set_terminated(run, status, int(end * 1000))

    def _experiment(self, entry: Entry) -> str:
        experiment = self._client.get_experiment_by_name(entry.experiment)
        return experiment.experiment_id if experiment else self._client.create_experiment(entry.experiment)

    def _runs_of(self, entry: Entry) -> list[Any]:
        return list(self._client.search_runs([self._experiment(entry)], f"tags.`{KEY}` = '{entry.key}'"))


class WandbTracker:
    """Weights & Biases, in the mode that WANDB_MODE names: a sweep is a project, a row is a group.

    A run that is exported again has the same id, so it replaces the earlier export.
    """

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb
        self._settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True
        )
        self.place = self._settings.wandb_dir

    def has(self, entry: Entry) -> bool:
        return any(Path(self.place).glob(f"*run-*-{entry.key}/{KEY}"))

    def add(self, entry: Entry, figures: Sequence[Path]) -> None:
        run = self._wandb.init(
            project="".join("_" if letter in "/\\#?%:" else letter for letter in entry.experiment)[:128],
            id=entry.key,
            name=entry.name,
            group=entry.run.row,
            config=entry.parameters | entry.tags,
            tags=[value[:64] for name, value in entry.tags.items() if name in ("sweep", "row", "status", "precision")],
            settings=self._settings,
        )
        for epoch, values in entry.curves.items():
            run.log(values, step=epoch)
        images = {f"figures/{file.stem}": self._wandb.Image(str(file)) for file in figures}
        run.log(images, step=len(entry.run.history))
        run.summary.update(entry.results)
        folder = Path(run.dir).parent
        run.finish()
        (folder / KEY).touch()


TRACKERS: dict[str, type[MlflowTracker | WandbTracker]] = {"mlflow": MlflowTracker, "wandb": WandbTracker}


def export(paths: Sequence[Path], kind: str) -> int:
    """Add the ended runs in `paths` that the tracker does not have, with their results, curves and figures. Returns 0.

    Raises:
        UserError: the tracker's library is not installed, the tracker refuses, or a folder has no runs.
    """
    runs = read_runs(paths)
    entries = [Entry(run) for run in runs if run.has_ended]
    try:
        tracker = TRACKERS[kind]()
        new = [entry for entry in entries if not tracker.has(entry)]
        for entry in new:
            with TemporaryDirectory() as folder:
                tracker.add(entry, entry.figures(Path(folder)))
    except ModuleNotFoundError as error:
        if error.name != kind:
            raise
        raise UserError(f"--export {kind}: {kind} is not installed: pip install 'deepnets[{kind}]'") from error
    except Exception as error:
        if type(error).__module__.split(".")[0] != kind:
            raise
        raise UserError(f"--export {kind}: {error}") from error
    before, unfinished = len(entries) - len(new), len(runs) - len(entries)
    written = f"{len(new)} run{'s' * (len(new) != 1)}"
    print(printable(f"{kind:<12} {written} in {tracker.place}; {before} there before, {unfinished} not ended"))
    return 0
