"""Who has connected to this process: gloo takes the first that comes to its port for the process that it waits for."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from deepnets.errors import UserError

ESTABLISHED = "01"
LOOPBACK = "[0-9A-F]{6}7F:|0{24}01000000:"  # 127.0.0.0/8 or ::1, as a little-endian Linux writes them
ATTEMPTS = 4  # a list that changes while it is read can lack a line


def check_peers() -> None:
    """Whether each connection of this process over loopback is with a process of the same user.

    Raises:
        UserError: one is not, or its other end has gone.
    """
    for attempt in range(ATTEMPTS):
        time.sleep(0.1 * attempt)
        strangers = _users() - {str(os.getuid())}
        if not strangers:
            return
    raise UserError(
        f"devices: user {strangers.pop()} of this machine has connected in place of a process; start the run again"
    )


def _users() -> set[str]:
    """The numbers of the users at the other ends of this process's connections over loopback."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    connections = {(words[1], words[2]): (words[7], words[9]) for words in rows if words[3] == ESTABLISHED}
    links = _links()
    own = [
        (there, here)
        for (here, there), (_, inode) in connections.items()
        if f"socket:[{inode}]" in links and re.match(LOOPBACK, here)
    ]
    return {connections.get(other_end, ("unknown", ""))[0] for other_end in own}


def _links() -> set[str]:
    """What the descriptors of this process refer to."""
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            links.add(os.readlink(descriptor))
    return links
