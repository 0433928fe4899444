"""Ports that several gateways of a host listen on: the kernel gives each new connection to one of them.

Closing a listening socket resets what the kernel has given to it and nobody has accepted yet, so a gateway
that goes away first lets nothing new begin there, and closes once what had begun is in. A client whose first
packet came in that moment sends it again after a second, as TCP does, and then meets another gateway.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import structlog

from services.gateway.open_sockets import borrow_socket, is_internet, socket_names

log = structlog.get_logger()

HANDSHAKES_S = 0.25
"""The time in which connections that have begun are accepted and ask: some round trips, also between
continents."""
LAST_CALLS_S = 0.05
"""The time in which calls that are here already become requests, after the ports are left."""

SO_ATTACH_FILTER = 26
TCP_FLAGS_BYTE = 13
SYN, SYN_AND_ACK = 0x02, 0x12
WHOLE_PACKET = 0xFFFFFFFF
DROP_NEW = (
    (0x30, 0, 0, TCP_FLAGS_BYTE),  # load the flags
    (0x54, 0, 0, SYN_AND_ACK),
    (0x15, 0, 1, SYN),  # the first packet of a connection, or skip one
    (0x06, 0, 0, 0),
    (0x06, 0, 0, WHOLE_PACKET),
)
"""A classic packet filter: code, jumps if true and if false, operand. A packet begins at its TCP header."""


async def divert_new_connections(addresses: Iterable[str]) -> None:
    """Return when what came to us at these HOST:PORT has been accepted; nothing new comes any more."""
    ports = {int(address.rpartition(":")[2]) for address in addresses if address}
    try:
        with _listeners(ports) as listeners:
            for listener in listeners:
                _drop_new(listener)
    except OSError as error:
        log.warning(
            "connections_not_diverted", error=str(error), help="some may be reset as the port is left"
        )
    await asyncio.sleep(HANDSHAKES_S)


@contextmanager
def _listeners(ports: set[int]) -> Iterator[list[socket.socket]]:
    """The sockets on which this process listens there; gRPC tells nobody which are its own."""
    with ExitStack() as borrowed:
        sockets = [borrowed.enter_context(borrow_socket(*each)) for each in socket_names().items()]
        yield [one for one in sockets if one is not None and _listens(one, ports)]


def _listens(one: socket.socket, ports: set[int]) -> bool:
    if not is_internet(one):
        return False
    listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(listens) and one.getsockname()[1] in ports


def _drop_new(listener: socket.socket) -> None:
    code = b"".join(struct.pack("HBBI", *step) for step in DROP_NEW)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(DROP_NEW), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
