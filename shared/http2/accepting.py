"""Listen at an address and hand over each connection that comes, as long as there is room for it."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

log = structlog.get_logger()

BACKLOG = 1024
AT_ONCE = 64
"""The most connections that are taken in one turn of the loop."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_ROOM_PAUSE_S = 0.2
"""A machine that has no descriptor or no memory for a connection is asked again after so long."""


def listening_sockets(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Return a socket for each address of the host, all at one port: 0 takes a free one. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(found):
            place = (address[0], made[0].getsockname()[1] if made else port, *address[2:])
            made.append(_listening(family, place, shared=shared))
    except OSError:
        for each in made:
            each.close()
        raise
    return made


class Accepting:
    """Take what comes at listening sockets, from `start` until `stop`. `take` gets each connection."""

    def __init__(self, sockets: list[socket.socket], take: Callable[[socket.socket], None]) -> None:
        self._sockets = sockets
        self._take = take
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
            each.close()
        self._sockets.clear()

    def _watch(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
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


def _listening(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
