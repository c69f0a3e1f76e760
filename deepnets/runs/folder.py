"""The folder of a run: its frozen settings, lock and result."""

import json
import os
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import filelock
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.build import check_ranges
from deepnets.config.identity import difference, flat, identity, identity_hash
from deepnets.config.safe_yaml import LONGEST, frozen_yaml, is_plain_node, read_frozen
from deepnets.config.schema import NODES, CodeChoice, Config, Sweep
from deepnets.errors import UserError
from deepnets.runs.contents import Code, Job, Origin, Result, Status, Unreadable
from deepnets.runs.owner import OWNER, Owner, is_left_behind, owned, owner_elsewhere
from deepnets.system.files import check_folder, flush_folder, folders_with, make_folder, read_text, write_atomically

CHECKPOINTS = ("checkpoint.pt", "checkpoint.previous.pt")  # the last one, and the one before
WEIGHTS = "weights.safetensors"  # in a record, or in a run without checkpoints
MOST_OTHERS = 10_000  # a command gives up after so many folders without a run, which takes about a second
BESIDE = "name=NAME"  # the override that trains the same runs in another folder
MIXED = "rows with seeds of both versions count for no claim"
SCHEMA = OmegaConf.structured(Config)
FREEZING_SECONDS = 10.0  # longer than any process takes to write a configuration


class Locked(UserError):
    """Another process executes a folder; the arguments are the folder and, if known, that process."""

    def __str__(self) -> str:
        who = f" ({self.args[1]})" if len(self.args) > 1 else ""
        return f"{self.args[0]}: already running in another process{who}"


class OtherSettings(UserError):
    """A folder holds a run with other settings; the arguments are the folder and, by key, the old and the new value."""

    def __str__(self) -> str:
        lines = [f"  {key}: {_shown(kept)} there, {_shown(new)} here" for key, (kept, new) in self.args[1].items()]
        return "\n".join([f"{self.args[0]} holds a run with other settings:", *lines, self.remedy])

    @property
    def summary(self) -> str:
        """Say in a line, without the folder, how the settings differ."""
        values = (f"{key} {_shown(kept)} there, {_shown(new)} here" for key, (kept, new) in self.args[1].items())
        return f"other settings: {'; '.join(values)}"

    @property
    def remedy(self) -> str:
        """Say how to continue the run in the folder, to train beside it, or to delete it."""
        return self.remedy_for(self.args[1], "it")

    def remedy_for(self, keys: Collection[str], what: str) -> str:
        """Say what `remedy` says for a command whose runs all have these keys: overrides of others would be refused.

        `what` is what overwrite=true deletes.
        """
        ways = [f"to continue what is there, add {self.overrides}"] * (self.args[1].keys() <= {*keys})
        ways += [f"to train beside it, {BESIDE}", f"to delete {what} and train anew, overwrite=true"]
        return f"{ways[0][0].upper()}{'; '.join(ways)[1:]}."

    @property
    def overrides(self) -> str:
        """The overrides that give the folder's settings, as a user types them."""
        words = []
        for key, (kept, new) in self.args[1].items():
            kept_value = f"{key}={json.dumps(kept, separators=(',', ':'))}"
            words.append(f"~{key}" if kept == "absent" else f"{'+' * (new == 'absent')}{kept_value}")
        return shlex.join(words)


class OtherCode(UserError):
    """A run began with other code; arguments: its folder, the changed files, how to type a choice, and the copy."""

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.summary}.\n{self.remedy}"

    @property
    def summary(self) -> str:
        """Name the changed files, in a line without the folder."""
        return f"your code has changed since the run began: {', '.join(self.args[1])}"

    @property
    def remedy(self) -> str:
        """Say how to go on with either version of the code."""
        frozen, current = (self.args[2].replace("{}", choice) for choice in CodeChoice)
        copy = self.args[3]
        if not copy.is_dir():
            return (
                f"The code as it was is not here ({RunFolder(copy)}): copy it from where the run was trained and add "
                f"{frozen}, or add {current} for today's code."
            )
        mixed = (
            f"; with today's code, code=current, but {MIXED}. To train in another folder, add {BESIDE}; to train runs "
            "anew, name their rows and seeds, for example seed=0, and add overwrite=true."
        )
        others = mixed if frozen.startswith("code=") else f"; with today's code, {current}."
        return f"To go on with the code as it was, add {frozen}{others}"


def _shown(value: Any) -> str:
    return "absent" if value == "absent" else repr(value)


class RunFolder:
    """One run on disk. Commands know it by the files in its folder:

    config.yaml   the run's settings, frozen before training starts
    origin.json   the command that froze the run, and the versions of deepnets and of the user's code
    other files   see docs/run-folder.md
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        """The path as a user would type it: relative when it lies below the working directory."""
        try:
            path, here = self.path.resolve(), Path.cwd()
        except OSError:  # the working directory is gone
            return str(self.path)
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

    @property
    def grid(self) -> Path:
        """The absolute path of the sweep's folder, which holds the rows; for a run folder in / it is / too."""
        return self.path.resolve().parent.parent

    @property
    def hint_below(self) -> str:
        """The end of a message that asks for a run folder: the first one below this folder; empty without any."""
        below = [*self.path.glob("*/config.yaml"), *self.path.glob("*/*/config.yaml")]  # a row's, or a sweep's runs
        return f"; name one below it, as {RunFolder(min(below).parent)}" if below else ""

    @property
    def config(self) -> Config:
        """The frozen configuration.

        Raises:
            UserError: the folder holds no configuration, or one that this version cannot read.
        """
        file = self.path / "config.yaml"
        if not file.is_file():
            reason = "no config.yaml in it" if self.path.is_dir() else "there is no such folder"
            raise UserError(f"{self}: not a run folder ({reason}){self.hint_below}")
        try:
            frozen = read_frozen(read_text(file, LONGEST))
            # OmegaConf would copy these nodes unchanged, and take three times as long for them as for the rest.
            nodes: dict[str, Any] = {name: frozen[name] for name in NODES if is_plain_node(frozen.get(name))}
            config = OmegaConf.to_object(OmegaConf.merge(SCHEMA, frozen | {name: {} for name in nodes}))
            assert isinstance(config, Config)
            config = replace(config, **nodes)
            check_ranges(config)
        except (OmegaConfBaseException, yaml.YAMLError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{file}: not a configuration of this version of deepnets: {reason}") from error
        return config

    @property
    def origin(self) -> Origin:
        """The command that froze this folder, its overrides and its git commit; without a file, all are empty."""
        return Origin.read(self.path) or Origin()

    @property
    def result(self) -> Result | None:
        """How the run ended; None if it has not ended, or if a crash of the machine left the file empty."""
        return Result.read(self.path)

    @property
    def status(self) -> Status | None:
        """The last status that the training process wrote; None if it has not written one."""
        return Status.read(self.path)

    @property
    def job(self) -> Job | None:
        """The SLURM task that was last submitted for the run; None if the run was never submitted."""
        return Job.read(self.path)

    @property
    def completed(self) -> Result | None:
        """The result of a run that finished or diverged; None if something is left to train, e.g. after a failure."""
        result = self.result
        return result if result and result.is_complete else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to train."""
        return self.completed is not None

    @property
    def code_hashes(self) -> set[str]:
        """The versions of the user's own code that the run noted, when it was frozen and when it trained."""
        hashes = set[str]()
        with suppress(Unreadable):
            hashes |= {code.hash for code in self.result.code.values()} if self.result else set()
            hashes |= {self.origin.code.hash} if self.origin.code else set()
        return hashes

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run has a checkpoint, from which it resumes."""
        return any(os.path.lexists(self.path / name) for name in CHECKPOINTS)

    @property
    def has_begun(self) -> bool:
        """Whether the run has a checkpoint or a job, so that the code noted in the folder may have trained it."""
        return self.has_checkpoint or os.path.lexists(self.path / Job.FILE)

    @property
    def has_weights(self) -> bool:
        """Whether the folder has a file from which a network can be loaded."""
        return any(os.path.lexists(self.path / name) for name in (*CHECKPOINTS, WEIGHTS))

    def check(self, config: Config) -> Config | None:
        """Check that this folder may hold a run with `config`; returns the configuration frozen in it, or None.

        Raises:
            OtherSettings: the folder holds another run.
            UserError: something is left to train, and the folder cannot be written; or as `Result.of_ended`.
        """
        kept = self.config if (self.path / "config.yaml").is_file() and not config.overwrite else None
        if kept and (differing := difference(identity(kept), config)):
            raise OtherSettings(self, differing)
        if kept and Result.of_ended(self.path, identity_hash(kept)):
            return kept
        nearest = next(parent for parent in (self.path, *self.path.parents) if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(
                f"{self}: cannot be written ({nearest} is not a writable folder); choose another output_root"
            )
        return kept

    def holds(self, config: Config) -> bool:
        """Return whether a run with these settings is frozen in this folder."""
        if (self.path / "config.yaml").is_file():
            with suppress(UserError):  # nobody asked for this folder, so it does not matter that it cannot be read
                return not difference(identity(self.config), config)
        return False

    def freeze(self, config: Config, origin: Origin, has_begun: bool | None = None) -> None:
        """Write the run's configuration, with the settings of its execution; `overwrite` first deletes an earlier run.

        Trust is not frozen: the user states it again in each command that executes the folder. Only `axes`, `deep` and
        `zip` of the sweep are frozen; reports read published numbers and claims from the sweep's file. `has_begun`
        replaces the property of this name if the caller has read the queue.

        Raises:
            Locked: another process executes the folder.
        """
        make_folder(self.path)
        # If there is no configuration yet, a process that holds the lock is about to write it.
        with self.hold(0 if (self.path / "config.yaml").is_file() else FREEZING_SECONDS):
            if config.overwrite:
                self._clear()
            if not (self.path / Origin.FILE).is_file():
                origin.write(self.path)
            elif config.code == CodeChoice.current or not (self.has_begun if has_begun is None else has_begun):
                note_code(self.path, origin.code)
            sweep = config.sweep and Sweep(axes=config.sweep.axes, deep=config.sweep.deep, zip=config.sweep.zip)
            config = replace(config, overwrite=False, code=None, reuse=False, until=None, hours=None, sweep=sweep)
            write_atomically(self.path / "config.yaml", frozen_yaml(config))

    def _clear(self) -> None:
        # Delete the configuration last: after a kill, no other run may find a checkpoint without a configuration.
        for item in sorted(self.path.iterdir(), key=lambda item: item.name == "config.yaml"):
            if item.name != ".lock" and not item.name.startswith(OWNER):
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        flush_folder(self.path)

    def discard_failure(self) -> bool:
        """Delete a failed run's result; returns whether something is left to train. The caller holds the folder."""
        if self.is_complete:
            return False
        (self.path / Result.FILE).unlink(missing_ok=True)
        return True

    @contextmanager
    def hold(self, patience: float = 0, *, to_train: bool = False) -> Iterator[Owner | None]:
        """Hold the folder's lock, so that no other process of this machine writes here; a process that dies frees it.

        With `to_train`, this machine also becomes the run's only `Owner`, which is yielded; otherwise, or if nothing is
        left to train, None is yielded. The call waits at most `patience` seconds for the lock.

        Raises:
            Locked: another process, here or on another machine, holds the folder.
            UserError: the file system cannot lock.
        """
        lock = filelock.FileLock(self.path / ".lock", timeout=patience)
        try:
            if is_left_behind(self.path):
                (self.path / ".lock").unlink(missing_ok=True)
            lock.acquire()
        except filelock.Timeout:
            raise Locked(self) from None
        except OSError as error:  # .lock is a link, which is not followed, or the file system has no locks left
            raise UserError(f"{self.path / '.lock'}: cannot be locked ({error.strerror})") from error
        with ExitStack() as held:
            held.callback(lock.release)
            if who := owner_elsewhere(self.path):
                raise Locked(self, who)
            if not (to_train and self.discard_failure()):
                yield None
                return
            owner = held.enter_context(owned(self.path))
            if owner is None:
                raise Locked(self, *filter(None, [owner_elsewhere(self.path)]))
            yield None if self.is_complete else owner  # another machine may just have finished the run


def note_code(path: Path, code: Code | None) -> None:
    """Write into origin.json that the run executes this code from now on; the caller holds the run folder."""
    origin = Origin.read(path)
    if code and origin and (origin.code is None or origin.code.hash != code.hash):
        origin.model_copy(update={"code": code}).write(path)


def run_folders(below: Path, most_others: float = inf) -> list[RunFolder]:
    """Return all run folders in and below a folder, in the order of their names; raises as `folders_with`."""
    return [RunFolder(path) for path in folders_with("config.yaml", below, most_others)]


def folders_in(paths: Sequence[Path]) -> list[RunFolder]:
    """Return the run folders in and below these folders, each once.

    Raises:
        UserError: a folder is missing, has no run in it, or holds so much else that it cannot be a folder of runs.
    """
    folders: dict[Path, RunFolder] = {}
    for path in paths:
        check_folder(path)
        below = run_folders(path.resolve(), MOST_OTHERS)
        if not below:
            raise UserError(f"{path}: no run folder in it (a run folder has a config.yaml)")
        folders |= {folder.path: folder for folder in below}
    return list(folders.values())


def remedies_of(errors: Iterable[UserError], configs: Sequence[Config]) -> list[str]:
    """Return lines that say what to type where folders hold runs of other settings or of other code."""
    everywhere = set.intersection(*(set(flat(identity(config))) for config in configs))
    what = "all runs of this command" if len(configs) > 1 else "it"
    lines = (
        error.remedy if isinstance(error, OtherCode) else error.remedy_for(everywhere, what)
        for error in errors
        if isinstance(error, OtherSettings | OtherCode)
    )
    return list(dict.fromkeys(lines))


def lines_by_reason(reasons: Mapping[RunFolder, str]) -> list[str]:
    """Return a line for each reason; folders with the same reason share a line."""
    folders: dict[str, list[RunFolder]] = {}
    for folder, reason in reasons.items():
        folders.setdefault(reason.removeprefix(f"{folder}: "), []).append(folder)
    others = {reason: f" and {len(same) - 1} more" if len(same) > 1 else "" for reason, same in folders.items()}
    return [f"  {same[0]}{others[reason]}: {reason}" for reason, same in folders.items()]
