"""Lets only one machine train a run in a shared folder, where `flock` may act on one machine only, or not at all."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from deepnets.distributed.world import slurm_task
from deepnets.errors import UserError
from deepnets.runs.contents import Status, Unreadable
from deepnets.system.files import fresh, new_name, read_object, read_text, write_atomically
from deepnets.system.printing import print_line

LATE_SECONDS = 60.0  # NFS caches names and contents, so a machine sees another's files this late at most
GONE_SECONDS = 180.0  # an owner that is silent for this long has ended; the first LATE_SECONDS may be due to NFS
OLD_SECONDS = 600.0  # an earlier owner's file of this age is deleted
OWNER = ".owner."
BOOT = Path("/proc/sys/kernel/random/boot_id")  # identifies the kernel, so that all containers of a machine share it


class TakenOver(UserError):
    """Another machine trains the run now, because this machine was silent for too long."""


class Owner:
    """This machine's right to train the run in a folder; the file `.owner.N` stands for the Nth owner.

    The code relies only on this: if two machines create the same file, one of them fails. Numbers only grow, so a
    machine whose view of the folder is a minute old tries a number that is taken, and fails.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def check(self) -> None:
        """Raise TakenOver if there is a later owner."""
        if _last_number(self.folder) > self.number:
            raise TakenOver(f"{self.folder}: taken over by {_who(_content(self.folder, _last_number(self.folder)))}")


@contextmanager
def owned(folder: Path) -> Iterator[Owner | None]:
    """Make this machine the owner, or yield None if another machine is. The caller must hold the folder's lock."""
    number, me = _last_number(folder) + 1, _me()
    if number > 1:
        before = _content(folder, number - 1)
        if seconds := _seconds_late(before, me):
            print_line(f"{folder}: waiting {seconds:.0f} s until the files of {_who(before)} can be seen here")
            time.sleep(seconds)
        elif owner_elsewhere(folder):
            yield None
            return
    file = _file(folder, number)
    if not _created(file, me | {"since": time.time()}):
        yield None
        return
    for old in range(max(1, number - 100), number):
        with suppress(FileNotFoundError):
            if time.time() - _file(folder, old).stat().st_mtime > OLD_SECONDS:
                _file(folder, old).unlink()
    try:
        yield Owner(folder, number)
    finally:
        with suppress(OSError):  # the folder is gone
            write_atomically(file, json.dumps(me | {"released": time.time()}))


def owner_elsewhere(folder: Path) -> str | None:
    """Name the process on another machine that trains the run, and say when it was last heard of; None without one."""
    number, me = _last_number(folder), _me()
    if not number:
        return None
    content = _content(folder, number)
    if not content or "released" in content or _is_gone(content, me):
        return None
    silent = time.time() - _last_sign(folder, content)
    return f"{_who(content)}, last heard of {max(silent, 0):.0f} s ago" if silent <= GONE_SECONDS else None


def is_left_behind(folder: Path) -> bool:
    """Return whether `.lock` was left by a process killed on another machine, on a file system without locks.

    On such a file system the file's existence is the lock, and the file names the process that made it. On file systems
    with locks the file is empty.
    """
    try:
        maker = read_text(folder / ".lock", 1000).split()
        silent = time.time() - (folder / ".lock").stat().st_mtime
    except (OSError, ValueError):  # the file is missing, or can be neither read nor locked
        return False
    is_elsewhere = bool(maker) and socket.gethostname() not in maker
    return is_elsewhere and silent > GONE_SECONDS and owner_elsewhere(folder) is None


def _me() -> dict[str, Any]:
    boot = BOOT.read_text().strip() if BOOT.is_file() else socket.gethostname()
    return {"host": socket.gethostname(), "boot": boot, "pid": os.getpid(), "job": slurm_task()}


def _created(file: Path, content: dict[str, Any]) -> bool:
    """Create the file; returns False if it exists already. On a file system with hard links it appears as a whole."""
    draft = file.with_name(f"{file.name}.{content['host']}.{content['pid']}")
    with fresh(draft) as new:
        new.write(json.dumps(content).encode())
    try:
        os.link(new_name(draft), file)
    except FileExistsError:
        return False
    except OSError:  # without links the file is empty for a moment, and `_content` then reads the draft
        with suppress(FileExistsError), file.open("x") as alone:
            json.dump(content, alone)
            return True
        return False
    finally:
        new_name(draft).unlink(missing_ok=True)
    return True


def _who(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"


def _is_gone(owner: dict[str, Any], me: dict[str, Any]) -> bool:
    """Return whether the owner cannot be training on another machine.

    It ran on this machine, where the lock decides, or in this job, which SLURM executes only once at a time.
    """
    same_host = owner.get("host") == me["host"] != "localhost"
    same_job = owner.get("job") is not None and owner["job"] == me["job"]
    return owner.get("boot") == me["boot"] or same_host or same_job


def _seconds_late(owner: dict[str, Any], me: dict[str, Any]) -> float:
    """Return how many seconds to wait until NFS shows all files of an owner that has stopped on another machine."""
    if "released" not in owner or owner.get("boot") == me["boot"]:
        return 0.0
    return max(0.0, min(LATE_SECONDS, owner["released"] + LATE_SECONDS - time.time()))


def _last_sign(folder: Path, owner: dict[str, Any]) -> float:
    since = owner.get("since", 0.0)
    with suppress(Unreadable):
        if status := Status.read(folder):
            return max(since, status.heartbeat.timestamp())
    return since


def _last_number(folder: Path) -> int:
    numbers = [path.name.removeprefix(OWNER) for path in folder.glob(f"{OWNER}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _content(folder: Path, number: int) -> dict[str, Any]:
    """Return the content of an owner's file; {} if a crash or a full disk damaged it, and then nobody owns the run."""
    file = _file(folder, number)
    # List the drafts before reading the file: without hard links, the owner fills the file while its draft exists.
    drafts = sorted(folder.glob(f"{file.name}.*.new"))
    for path in (file, *drafts):
        try:
            if (content := read_object(path)) and _has_times(content):
                return content
        except ValueError:
            continue
        except OSError:  # NFS may refuse a file while its owner replaces it
            return {"since": path.lstat().st_mtime}
    return {}


def _has_times(owner: dict[str, Any]) -> bool:
    """Return whether the times in an owner's file are numbers of seconds."""
    return all(type(owner.get(name, 0.0)) in (int, float) for name in ("since", "released"))


def _file(folder: Path, number: int) -> Path:
    return folder / f"{OWNER}{number}"
