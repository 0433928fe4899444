"""Listen at an address and hand over each connection that comes, over whatever protocol."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

log = structlog.get_logger()

BACKLOG = 1024
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_ROOM_PAUSE_S = 0.2
"""A machine that has no descriptor or no memory for a connection is asked again after so long."""


class Accepting:
    """Take what comes at listening sockets, from `start` until `stop`.

    `take` gets each connection, of which there are `at_once` at most in a turn of the loop. No task waits for
    them: one that is cancelled then would lose one.
    """

    def __init__(
        self, sockets: list[socket.socket], take: Callable[[socket.socket], None], *, at_once: int = 1
    ) -> None:
        self._sockets = sockets
        self._take = take
        self._at_once = at_once
        self._pauses: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        for each in self._sockets:
            self._watch(each)

    def stop(self) -> None:
        """Take no more."""
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()
        for each in self._sockets:
            asyncio.get_running_loop().remove_reader(each)
        close_all(self._sockets)

    def _watch(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._at_once):
            try:
                connection, _address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # that of a client who is gone already included
                if error.errno in NO_ROOM:
                    log.warning("connection_not_accepted", error=error.strerror)
                    self._pause(listening)
                    return
                continue
            self._take(connection)

    def _pause(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def go_on() -> None:
            self._pauses.discard(pause)
            self._watch(listening)

        pause = loop.call_later(NO_ROOM_PAUSE_S, go_on)
        self._pauses.add(pause)


def listening_socket(
    family: int, address: tuple[object, ...], *, shared: bool, both_families: bool = False
) -> socket.socket:
    """Return a socket that listens there. `shared`: others may, too; `both_families`: one of IPv6 that takes
    clients of IPv4 as well. Raises OSError."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both_families))
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def close_all(sockets: list[socket.socket]) -> None:
    """Close them, and keep none."""
    for each in sockets:
        each.close()
    sockets.clear()
