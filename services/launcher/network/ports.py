"""TCP ports on this machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from shared.errors import InvalidRequest

FIRST_PORT = 20_000
"""Below are ports that services are known by."""
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_OUTGOING_PORT = 32_768
"""The first one where the system does not tell."""
TRIES = 100


def free_ports(host: str, count: int) -> list[int]:
    """Different ports that are free now, and that no outgoing connection takes before their service comes.

    Another service may take one; then ours fails and retries.
    """
    with ExitStack() as held:  # all at once: a port given back could be given out again
        return [held.enter_context(_free_listener(host)).getsockname()[1] for _ in range(count)]


def _free_listener(host: str) -> socket.socket:
    """Listen on any free port below those of outgoing connections; where there is none, on any free port."""
    ports = range(FIRST_PORT, _first_outgoing_port())
    for _ in range(TRIES if ports else 0):
        with suppress(InvalidRequest):
            return _listener(host, secrets.choice(ports), listens=True)
    return _listener(host, 0, listens=True)


def _first_outgoing_port() -> int:
    try:
        return int(OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return FIRST_OUTGOING_PORT


def check_free(host: str, port: int, option: str) -> None:
    """Raises InvalidRequest with a sentence when nobody could listen there; `option` chose the port."""
    _listener(host, port, option).close()


def hold_port(host: str, port: int, option: str) -> socket.socket:
    """Keep other stacks off a port that the gateways of this one share, until what is returned is closed.

    Processes of one user that are willing to share may all listen on a port, and two stacks would then take
    each other's connections. So a stack also takes the port's name among the abstract sockets, of which there
    can be one: the kernel frees it with the process. Raises InvalidRequest when another one has it.
    """
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0penstock-port-{host}:{port}")
    except OSError as error:
        name.close()
        raise InvalidRequest(
            f"another stack has {host}:{port} for its gateways; stop it, or pass {option} 0 for any free port"
        ) from error
    return name


def _listener(host: str, port: int, option: str = "--grpc-port", *, listens: bool = False) -> socket.socket:
    """Return a socket that is bound to the port. Nobody else can be bound to it if it `listens`. Raises
    InvalidRequest where the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The servers do the same: a port whose last connections are closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        if listens:
            listener.listen()
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            f"free it, or pass {option} 0 for any free port"
        ) from error
    return listener
