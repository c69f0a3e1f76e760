"""Records: the small files of runs that have ended, to commit beside the code."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from deepnets.config.identity import identity_hash
from deepnets.config.safe_yaml import LONGEST
from deepnets.errors import UserError, printable
from deepnets.results.read import Run, read_runs
from deepnets.results.writing import writing
from deepnets.runs.contents import FINISHED, Result
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import DIVERGED
from deepnets.system.files import LONGEST_METRICS, read_text, write_atomically


def keep(paths: Sequence[Path], into: Path) -> int:
    """Copy config.yaml, metrics.csv and result.json of the ended runs in `paths` to into/<table>/<row>/<seed>.

    The record of a machine's own folders is left out. Reports read records as they read runs, and a run whose record
    is put into an output root counts as finished there. A run of which a file cannot be read, or is a link, is named
    and not kept. Returns 0, or 1 where that happened.

    Raises:
        UserError: a folder has no runs, or files that contradict each other, a record would replace that of another
            run, or a file cannot be written.
    """
    runs = read_runs(paths)
    for run in runs:
        if run.contradiction:
            raise UserError(
                f"{run.folder}: contradicts itself: {run.contradiction}; restore the file that was changed, or train "
                "the run again"
            )
    refused = [reason for run in runs if (reason := _obstacle(run))]
    print(printable("".join(f"not kept     {reason}\n" for reason in refused)), end="")
    ended = [run for run in runs if run.state.name in (FINISHED, DIVERGED) and not _obstacle(run)]
    records: dict[Path, Run] = {}
    for run in ended:
        if "identity" not in run.result:
            raise UserError(
                f"{run.folder}: result.json does not say of which run it is (identity); train the run again"
            )
        folder = into / run.grid.name / run.row / run.folder.path.name
        other = records[folder].folder if folder in records else RunFolder(folder)
        there = identity_hash(other.config) if (other.path / "config.yaml").is_file() else None
        if folder in records or there not in (None, identity_hash(run.folder.config)):
            raise UserError(f"{run.folder}: its record would replace that of another run, {other}; name another folder")
        records[folder] = run
    for folder, run in records.items():
        with writing(into):
            _copy(run, folder)
    going = len(runs) - len(ended) - len(refused)
    print(
        printable(
            f"records      {len(ended)} runs in {RunFolder(into)}" + (f"; {going} have not ended" if going else "")
        )
    )
    return 1 if refused else 0


def _obstacle(run: Run) -> str | None:
    """The first file of the run that cannot be kept, and why; None where all can."""
    if run.broken:
        return run.broken[0]
    has_ended = run.state.name in (FINISHED, DIVERGED)
    missing = has_ended and not (run.folder.path / "metrics.csv").exists()
    return f"{run.folder}/metrics.csv: is missing" if missing else None


def _copy(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "metrics.csv", read_text(run.folder.path / "metrics.csv", LONGEST_METRICS))
    Result.model_validate(run.result).write(folder)
    own = run.grid / f"{run.grid.name.split('+')[0]}.yaml"  # the sweep's, where it is somebody's own
    if own.is_file() and not own.is_symlink():
        write_atomically(folder.parents[1] / own.name, read_text(own, LONGEST))
    config = run.config | {"output_root": "outputs", "dataset": run.config["dataset"] | {"root": "data"}}
    write_atomically(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
