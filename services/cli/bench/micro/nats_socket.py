"""A plain blocking socket to a nats-server: the most that can be had of it, nothing computed or looked at."""

from __future__ import annotations

import socket
from urllib.parse import urlparse

from services.cli.bench.micro.turns import TURN_DEADLINE_S

READ_BYTES = 64 << 10


def nats_socket(url: str) -> socket.socket:
    """Return a connection that is ready for PUB and SUB; no call on it waits longer than a turn may."""
    place = urlparse(url)
    connection = socket.create_connection((place.hostname or "", place.port or 0), TURN_DEADLINE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(READ_BYTES)
    connection.sendall(b'CONNECT {"verbose":false}\r\n')
    return connection


def received(connection: socket.socket) -> bytes:
    """Return what has come. Raises ConnectionError at the end of the connection."""
    data = connection.recv(READ_BYTES)
    if not data:
        raise ConnectionError("nats-server closed the connection")
    return data
