"""Finds runs that another sweep has trained, copies them, and says what is true of seeds that were trained before.

One identity is one experiment, even if the rows' names differ.
"""

import shlex
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from deepnets.config.claim import all_claims, claims_on_file
from deepnets.config.identity import difference, flat, identity, identity_hash
from deepnets.config.project import home
from deepnets.config.schema import CodeChoice, Config, Row
from deepnets.config.sweep import SWEEPS
from deepnets.config.trust import choose_code, chosen_code
from deepnets.errors import UserError, listed
from deepnets.runs.code import (
    by_change,
    changed_files,
    check_is_todays,
    code_of,
    copy_code,
    execute_copy,
    is_by,
    kept_code,
    noted_code,
)
from deepnets.runs.contents import FINISHED, Code, Origin, Result, Unreadable
from deepnets.runs.folder import BESIDE, MIXED, Locked, OtherSettings, RunFolder, run_folders
from deepnets.runs.owner import OWNER
from deepnets.system.files import write_atomically
from deepnets.system.printing import print_line

PILOT = "sweep.claims=[]"  # a run that is typed with this word counts for no claim
MOST_TOLD = 3  # differences between seeds of a row in one line
Words = Mapping[RunFolder, Sequence[str]]  # all runs of a command, with their overrides, such as seed=0
OWN_FILES = ("config.yaml", Origin.FILE, Result.FILE, ".lock")  # the copy writes its own; the result comes last


def twins_of(rows: Sequence[Row], folders: Sequence[RunFolder]) -> dict[RunFolder, RunFolder]:
    """Find, for each run that is not complete, a finished run of the same identity under the same `output_root`.

    It looks where `claims_below` does. The same version of the user's own code must have trained it. If there are
    several such runs, it takes the first by name. Runs without such a run are left out.
    """
    twins = {}
    for row, folder in zip(rows, folders, strict=True):
        if folder.is_complete:
            continue
        below = claims_below(Path(row.config.output_root).resolve(), row.config.seed)
        equal_runs = [run for run, _ in below.get(identity_hash(row.config), []) if _is_finished(run)]
        others = [run for run in equal_runs if run.path.resolve() != folder.path.resolve()]
        finished = sorted(others, key=lambda run: run.path)
        code = code_of(row.config) if finished else None
        if equal := [other for other in finished if is_by(other, code)]:
            twins[folder] = equal[0]
    return twins


def _is_finished(run: RunFolder) -> bool:
    """Return whether a run has finished and is no record, which has no origin.json."""
    with suppress(Unreadable):
        return bool(run.origin.command and (result := run.result) and result.status == FINISHED and result.identity)
    return False


def reuse(row: Row, folder: RunFolder, twin: RunFolder) -> None:
    """Copy the finished run `twin` into the folder of a row of the same identity, and note where it comes from.

    The copy keeps the claims of `twin`, which were registered before `twin` was trained.

    Raises:
        Locked: another process trains the row, or has trained it. OSError: a file cannot be copied.
    """
    changes = {"copied_from": str(twin), "choices": row.choices, "overrides": list(row.overrides)}
    origin = twin.origin.model_copy(update=changes)
    folder.freeze(row.config, origin)
    copy_code(twin, folder.grid)
    with folder.hold():
        if folder.is_complete or folder.has_begun:
            raise Locked(folder)
        for item in sorted(twin.path.iterdir()):
            if item.name not in OWN_FILES and not item.name.startswith(OWNER) and item.is_file():
                shutil.copyfile(item, folder.path / item.name, follow_symlinks=False)
        # Copy the result last: if this process is killed before, the run does not look finished.
        write_atomically(folder.path / Result.FILE, (twin.path / Result.FILE).read_bytes())


def copy_twins(rows: list[Row], folders: list[RunFolder]) -> None:
    """Copy the runs that other sweeps have trained already, and print from which folders."""
    by_folder = dict(zip(folders, rows, strict=True))
    copied = Counter[str]()
    for folder, twin in twins_of(rows, folders).items():
        if not folder.has_begun:
            with suppress(Locked):
                reuse(by_folder[folder], folder, twin)
                copied[str(RunFolder(twin.path.parent))] += 1
    for row, count in copied.items():
        print_line(f"{count} finished run{'s' * (count > 1)} copied from {row}")


def print_twins(twins: Mapping[RunFolder, RunFolder], remedy: str) -> None:
    """Print a line for each folder that holds finished runs of the same identity, as `twins_of` found them."""
    by_grid: dict[str, list[str]] = {}
    for folder, twin in twins.items():
        by_grid.setdefault(str(RunFolder(twin.grid)), []).append(folder.path.parent.name)
    for grid, names in by_grid.items():
        seeds = f"{len(names)} seed{'s' * (len(names) > 1)}"
        print_line(f"{seeds} of {listed(names)} finished in {grid}, with the same identity{remedy}")


@cache
def claims_below(root: Path, seed: int) -> dict[str, list[tuple[RunFolder, list[str]]]]:
    """Return each run or record of a seed in a folder of outputs, and the claims that it notes, by the run's identity.

    The runs have ended, or have begun, so that their errors could be seen.
    """
    claims: dict[str, list[tuple[RunFolder, list[str]]]] = {}
    for depth in ("*/*", "*/*/*"):  # records, and runs in a folder of their own below the root, lie deeper
        for file in root.glob(f"{depth}/seed{seed}/config.yaml"):
            folder = RunFolder(file.parent)
            with suppress(UserError):  # reports name a folder that cannot be read
                if result := folder.completed:
                    claims.setdefault(result.identity or identity_hash(folder.config), []).append(
                        (folder, result.claims)
                    )
                elif folder.has_begun:
                    claims.setdefault(identity_hash(folder.config), []).append((folder, folder.origin.claims))
    return claims


def claims_known(row: Row, folder: RunFolder) -> list[str]:
    """Return the claims, as SWEEP/HASH, that were in a sweep file before anybody could see this run's result.

    The result counts for these claims only; a pilot's counts for none. If a run of the same identity has begun already,
    under `output_root` or among the outputs and records here, this run will give the same numbers (or, if the user's
    own code has changed, similar ones), so it gets only claims that the earlier run has too.
    """
    if PILOT in row.overrides:
        return []
    folders = [SWEEPS, *(Path(place.removeprefix("file://")) / "sweep" for place in row.search.places)]
    seen = [claims for _, claims in _equal_runs(row)]
    with suppress(Unreadable):  # a run that is overwritten may itself have overwritten another, whose claims it knew
        seen += [origin.claims] if (origin := Origin.read(folder.path)) else []
    on_file = [claim for sweeps in folders for claim in claims_on_file(sweeps)]
    return [claim for claim in on_file if all(_holds(claims, claim) for claims in seen)]


def before_claims(pairs: Sequence[tuple[Row, RunFolder]], new: Collection[RunFolder]) -> str | None:
    """Return a line if claims in the sweep's file name rows of these runs, but were written down after the runs began.

    `new` are the runs that this command sets up; without any, there is nothing to say.
    """
    late, elsewhere = dict[RunFolder, list[str]](), list[str]()
    for row, folder in pairs if new and PILOT not in pairs[0][0].overrides else ():
        file, name = file_of_sweep(row), folder.path.parent.name
        claims = [claim for sweep, claim in all_claims(file.parent) if sweep == file.stem and claim.concerns(name)]
        noted = claims_known(row, folder) if folder in new else _noted_claims(folder)
        own = {f"{file.stem}/{claim.hash}": claim.text for claim in claims}
        if noted is not None and (lacking := [key for key in own if not _holds(noted, key)]):
            late[folder] = [own[key] for key in lacking]
            equal = _equal_runs(row) if folder in new else []
            others = [run for run, known in equal if not all(_holds(known, key) for key in lacking)]
            elsewhere += [str(run) for run in others if run.path.resolve() != folder.path.resolve()][:1]
    if not late:
        return None
    rows, texts = listed(run.path.parent.name for run in late), listed(text for each in late.values() for text in each)
    where = f"; first set up in {listed(elsewhere)}: reuse=true copies such seeds where it can" if elsewhere else ""
    return (
        f"runs first set up before claims about their rows were written down, which count only for older claims: "
        f"{len(late)}, of {rows}; claims: {texts}{where}"
    )


def _noted_claims(folder: RunFolder) -> list[str] | None:
    """Return the claims that a run notes; None if it has not begun, cannot be read, or is a pilot, which notes none."""
    with suppress(Unreadable):
        if (folder.has_begun or folder.is_complete) and PILOT not in folder.origin.overrides:
            return result.claims if (result := folder.completed) else folder.origin.claims
    return None


def _holds(noted: Collection[str], claim: str) -> bool:
    """Return whether a run notes a claim, SWEEP/HASH; older runs noted bare hashes, without the sweep."""
    return claim in noted or claim.rpartition("/")[2] in noted


def beside_other_settings(pairs: Sequence[tuple[Row, RunFolder]]) -> str | None:
    """Return a line if no other seed in the rows of these new runs has their settings, as after an edit of YAML.

    Call this before the new runs are frozen. Seeds that this command trains anew do not count.
    """
    new, rows = {folder.path for _, folder in pairs}, dict[Path, Config]()
    for row, folder in pairs:
        rows.setdefault(folder.path.parent, row.config)
    found, groups = dict[str, OtherSettings](), dict[str, list[str]]()
    for place, config in rows.items():
        if other := _unlike_all(config, [seed for seed in run_folders(place) if seed.path not in new]):
            found[place.name] = other
            groups.setdefault(other.summary, []).append(place.name)
    if not found:
        return None
    told = "; ".join(f"{listed(names)} ({summary})" for summary, names in [*groups.items()][:MOST_TOLD])
    told += f"; and {len(groups) - MOST_TOLD} more such groups" * (len(groups) > MOST_TOLD)
    line = f"no other seed has today's settings in {told}. To train in another folder, add {BESIDE}"
    other = next(iter(found.values()))
    if len(groups) == 1 and all(other.args[1].keys() <= flat(identity(each)).keys() for each in rows.values()):
        line += f"; for seeds with the old settings, add {other.overrides}"
        line += ", and overwrite=true too if they have a checkpoint"
    return line


def beside_other_code(
    runs: Mapping[RunFolder, Code], queued: Collection[RunFolder] = (), is_told: bool = False
) -> str | None:
    """Return a line if other seeds of these rows have other code of the user's; if `is_told` of it, a short one.

    These seeds have ended or have a checkpoint, or they are `queued`, so that they keep the code that they note.
    """
    these, waiting, names = {folder.path for folder in runs}, {folder.path for folder in queued}, []
    for row, code in {folder.path.parent: code for folder, code in runs.items()}.items():
        for seed in [seed for seed in run_folders(row) if seed.path not in these]:
            with suppress(Unreadable):  # nobody asked for this seed
                if (seed.is_complete or seed.has_checkpoint or seed.path in waiting) and not is_by(seed, code):
                    names.append(row.name)
    if not names:
        return None
    is_frozen = chosen_code() == CodeChoice.frozen
    more = "to train with the old code instead, add code=frozen (seeds that have begun start anew with overwrite=true)"
    if is_told:
        return None if is_frozen else f"the seeds of {listed(names)} that this command trains use today's code; {more}"
    beside = f"To train in another folder, add {BESIDE}{'' if is_frozen else f'; {more}'}"
    return f"other seeds of {listed(names)} have other code of yours; {MIXED}. {beside}"


def use_chosen_code(
    rows: Sequence[Row], folders: Sequence[RunFolder], begun: Collection[RunFolder]
) -> dict[RunFolder, Code | UserError]:
    """Let this process import the chosen version of the user's modules; `begun` is as in `begun_runs`.

    Returns, with code=frozen, the version for each run that this command sets up, or why it cannot be taken. Why an
    unfinished run cannot take its version, its check says. It prints which runs take a version that is not today's. A
    row of which no seed has begun takes today's, or the copy of its modules that this process executes for other rows.
    """
    choose_code(rows[0].config.code)
    chosen: dict[RunFolder, Code | UserError] = {}
    versions: dict[str, Code] = {}  # that this process executes
    taken, lacking = dict[str, list[RunFolder]](), dict[RunFolder, Config]()
    pairs = list(zip(rows, folders, strict=True)) if rows[0].config.code == CodeChoice.frozen else []
    todays = _codes_of(pairs)  # before the first copy stands in for today's modules
    for row, folder in pairs:
        is_new, used = row.config.overwrite or not (folder in begun or folder.is_complete), None
        try:
            if is_new and (used := kept_code(folder, row.config)):
                execute_copy(*used)
                chosen[folder] = used[1]
            elif is_new:
                lacking[folder] = row.config
            elif not folder.is_complete and (code := noted_code(folder)):
                used = folder, code
                execute_copy(*used)
            today = todays.get(folder)
            versions |= {used[1].hash: used[1]} if used else {}
            if used and today and (changed := changed_files(*used, today)):
                taken.setdefault(f"({used[1].hash}: {', '.join(changed)} changed since", []).append(folder)
        except UserError as error:
            if is_new:
                chosen[folder] = error
    joining, without = [], []
    for folder, config in lacking.items():
        if not (today := code_of(config)):  # none of the user's
            continue
        try:
            check_is_todays(folder, config)
            without.append(folder.path.parent.name)
        except UserError:
            chosen[folder] = versions.get(today.hash, today)
            joining.append(folder.path.parent.name)
    for what, runs in taken.items():
        count, where = f"{len(runs)} run{'s' * (len(runs) > 1)}", listed(run.path.parent.name for run in runs)
        print_line(f"code=frozen: {count} will use your code as it was {what}; rows {where})")
    if joining:
        print_line(
            f"code=frozen: no seed of {listed(joining)} has begun, so the code of other rows is used "
            f"({', '.join(versions)}); for today's, leave code=frozen out and choose only rows that have not begun"
        )
    if without:
        print_line(
            f"code=frozen: no seed of {listed(without)} has begun, so there is no earlier code of theirs to take"
        )
    return chosen


def _codes_of(pairs: Iterable[tuple[Row, RunFolder]]) -> dict[RunFolder, Code]:
    """Return today's version of the user's own code of each run; a run whose code cannot be read is left out."""
    codes = {}
    for row, folder in pairs:
        with suppress(UserError):
            if code := code_of(row.config):
                codes[folder] = code
    return codes


def trained_before(folders: Sequence[RunFolder], files: str, runs: Words) -> str:
    """Return a line about those of a command's `runs` that finished before these files of the user's code changed."""
    count = f"{len(folders)} finished runs were" if len(folders) > 1 else "1 finished run was"
    names = [folder.path.parent.name for folder in folders]
    is_all = len(folders) == len(runs) and len({*names}) > 1
    rows = f"; {'all rows' if is_all else f'rows {listed(names)}'}" if len(runs) > 1 else ""
    these, words = "these" if len(folders) > 1 else "it", selecting(folders, runs)
    words = "words that name the rows and seeds, and " if words is None else f"{words} ".lstrip()
    return (
        f"{count} trained before your code changed ({files}{rows}); {MIXED}. To train in another folder, add {BESIDE}; "
        f"to train {these} again here, add {words}overwrite=true"
    )


def selecting(folders: Collection[RunFolder], runs: Words) -> str | None:
    """Return overrides that select these folders among a command's runs, as `loss=focal seed=0,1`.

    It is empty if they are all of these runs, and None if no such overrides select them.
    """
    settings = {run.path: dict(word.split("=", 1) for word in words if "=" in word) for run, words in runs.items()}
    chosen = {
        key: dict.fromkeys(settings[folder.path].get(key, "") for folder in folders)
        for key in dict.fromkeys(key for each in settings.values() for key in each)
    }

    def selected() -> set[Path]:
        return {run for run, each in settings.items() if all(each.get(key, "") in chosen[key] for key in chosen)}

    for key in [*chosen]:  # leave out keys that select nothing, and those that follow from others, as in a zip
        before, values = selected(), chosen.pop(key)
        if selected() != before:
            chosen[key] = values
    is_choice = selected() == {folder.path for folder in folders} and not any("" in each for each in chosen.values())
    return shlex.join(f"{key}={','.join(values)}" for key, values in chosen.items()) if is_choice else None


def trained_before_change(folders: Iterable[RunFolder], runs: Words) -> list[str]:
    """Return `trained_before` for each group of these folders, among a command's `runs`, whose code has changed."""
    return [trained_before(those, files, runs) for files, those in by_change(folders).items()]


def kept_by_queue(queued: Sequence[RunFolder]) -> list[str]:
    """Return a line for each group of files of the user's code that changed since some of these runs were submitted."""
    lines = []
    for files, runs in by_change(queued).items():
        count, rows = f"{len(runs)} run{'s' * (len(runs) > 1)}", listed(each.path.parent.name for each in runs)
        lines.append(
            f"{count} in the queue, or running elsewhere, will use your code as it was ({files} changed since; rows "
            f"{rows}); {MIXED}. With code=current, those that are not training use today's, by the same jobs"
        )
    return lines


def _unlike_all(config: Config, seeds: Sequence[RunFolder]) -> OtherSettings | None:
    """Return how a run differs from the first of these seeds, if it differs from all of them in more than the seed."""
    first = None
    for seed in seeds:
        with suppress(UserError):  # nobody asked for this seed
            kept = seed.config
            if not (differing := difference(identity(kept), replace(config, seed=kept.seed))):
                return None
            first = first or OtherSettings(seed, differing)
    return first


def _equal_runs(row: Row) -> list[tuple[RunFolder, list[str]]]:
    """Return the runs of the row's identity that had begun before this command, and the claims that they note."""
    roots = {Path(row.config.output_root).resolve(), (home() / "outputs").resolve()}
    identity = identity_hash(row.config)
    return [found for root in roots for found in claims_below(root, row.config.seed).get(identity, [])]


def file_of_sweep(row: Row) -> Path:
    """Return the file of the row's sweep: the user's own file if there is one, else the file in conf/."""
    name = f"{row.choices.get('sweep')}.yaml"
    places = (Path(place.removeprefix("file://")) / "sweep" for place in row.search.places)
    return next((place / name for place in places if (place / name).is_file()), SWEEPS / name)


def copy_sweep(row: Row, grid: Path) -> None:
    """Copy the sweep's file beside its runs, because a report that is made elsewhere needs its numbers and claims."""
    if row.config.sweep and grid.is_dir() and (file := file_of_sweep(row)).is_file():
        write_atomically(grid / file.name, file.read_bytes())
