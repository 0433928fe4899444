"""TCP ports on this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from shared.errors import InvalidRequest


def free_ports(host: str, count: int) -> list[int]:
    """Different ports that are free now. Another process may take one; its service then fails and retries."""
    with ExitStack() as held:  # all at once: a port given back could be given out again
        return [held.enter_context(_listener(host, 0)).getsockname()[1] for _ in range(count)]


def check_free(host: str, port: int) -> None:
    """Raises InvalidRequest with a sentence when nobody could listen there."""
    _listener(host, port).close()


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As the servers themselves do: a port whose last connections are closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "free it, or pass --grpc-port 0 for any free port"
        ) from error
    return listener
