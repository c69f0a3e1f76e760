"""Another user's connection to a port of this process, by real sockets."""

import os
import signal
import socket
import time

import pytest

from deepnets.distributed.peers import check_peers
from deepnets.errors import UserError

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("user", ["the same", "another"])
def test_a_connection_of_another_user_is_refused(user: str) -> None:
    if user == "another" and os.getuid():
        pytest.skip("only root can act as another user")
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            if user == "another":
                os.setuid(65534)
            connection = socket.socket()
            connection.connect(server.getsockname())
            time.sleep(60)
            os._exit(0)
        try:
            connection, _ = server.accept()
            if user == "another":
                with pytest.raises(UserError, match="user 65534 of this machine"):
                    check_peers()
            else:
                check_peers()
            connection.close()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
