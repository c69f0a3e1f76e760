"""Whether a record is what its configuration trains: its first iterations, trained anew and compared."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from deepnets.errors import UserError, brief, printable
from deepnets.results.consistency import unchecked
from deepnets.results.read import Run, read_runs
from deepnets.runs.record import Evidence, data_of, differing
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from deepnets.training.hardware import describe, find_device

NEEDED = {"beginning", "iterations", "data", "threads", "precision", "versions", "device", "processes"}
COMPARED = 5  # losses, where bits cannot be equal: rounding grows with each further iteration
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}  # of the largest relative difference of these losses


def verify(paths: Sequence[Path], root: str) -> int:
    """Train the first iterations of each record again, on the data in `root`, and print how they compare.

    Losses and weights must be equal bit by bit where torch, device, threads and step are those of the record and it
    was trained by one process, alone; elsewhere the first `COMPARED` losses within `TOLERANCE`. A record that
    contradicts itself is not trained. Returns 1 if one differs or contradicts itself.

    Raises:
        UserError: a folder has no runs, a run has no `beginning` in its result, or the data are others.
    """
    read = read_runs(paths)
    runs = [run for run in read if not run.contradiction]
    for run in read:
        if run.contradiction:
            print(printable(f"{run.folder}: contradicts itself: {run.contradiction}"))
    if old := [str(run.folder) for run in runs if not run.result.keys() >= NEEDED]:
        raise UserError(
            f"{old[0]}: its result has no first iterations to compare with ({len(old)} of {len(runs)} runs)"
        )
    outcomes = [_verify(run, root) for run in runs]
    for line in unchecked([run.files for run in runs if run.files]):
        print(printable(f"cannot be checked: {line}"))
    return max([*outcomes, int(len(runs) < len(read))])


def _verify(run: Run, root: str) -> int:
    result = run.result
    frozen = run.folder.config
    if result["precision"] not in TOLERANCE:
        raise UserError(f"{run.folder}: its result names an unknown precision, {brief(result['precision'])}")
    config = replace(frozen, dataset=frozen.dataset | {"root": root}, device="auto")
    device = find_device(config.device)
    if others := differing(result["data"], data_of(config, device)):
        raise UserError(f"{run.folder}: was trained on other data than those in {root}: {others}")
    torch.set_num_threads(result["threads"])
    training, evidence = prepare(config, device, getattr(torch, result["precision"])), Evidence()
    losses = result["beginning"]["losses"]
    for state in fit(training):
        evidence.note(state)
        if training.iteration == len(losses):
            break
    now = evidence.facts()["beginning"]
    others = "; ".join(_others(result, config.launcher, device))
    is_equal = now == result["beginning"]
    if is_equal:
        words = "equal bit by bit"
    else:
        pairs = zip(now["losses"], losses[:COMPARED], strict=False)
        gap = max(abs(a - b) / abs(b) if None not in (a, b) else float(a != b) for a, b in pairs)
        tolerance = TOLERANCE[result["precision"]]
        is_equal = bool(others) and gap <= tolerance
        words = f"the first {COMPARED} losses differ by at most {gap:.1e} (tolerance {tolerance:.0e})"
    why = f" ({others})" if others else ""
    print(
        printable(
            f"{run.folder}: {'verified' if is_equal else 'DIFFERS'}: the first {len(losses)} of {result['iterations']} "
            f"iterations, {words}{why}"
        )
    )
    return 0 if is_equal else 1


def _others(result: dict[str, Any], launcher: dict[str, Any], device: torch.device) -> list[str]:
    """What is not as it was, so that bits need not be equal."""
    then = {"torch": result["versions"].get("torch"), "device": result["device"]}
    now = {"torch": version("torch"), "device": describe(device)}
    words = [f"{name} {then[name]} then, {now[name]} now" for name in then if then[name] != now[name]]
    words += ["trained by several processes"] * (result["processes"] != {"0": 1})
    return words + ["trained in a stack"] * (launcher.get("stacked", 1) > 1)
