"""One direction of a connection: bytes arrive in order, each after its latency, none while it is held."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

WINDOW_BYTES = 4 << 20
"""The most that is on its way or unread at its end: what the sockets' buffers of both ends hold."""

Delay = Callable[[], float]


class Receiver(Protocol):
    """The end that bytes arrive at."""

    def arrived(self, data: bytes) -> None: ...

    def ended(self, error: Exception | None) -> None:
        """Take that nothing more will come: closed by the other end, or torn down with `error`."""


class Pipe:
    """`has_room` is called when the sender may send again. Nothing overtakes anything in it."""

    def __init__(self, delay: Delay, receiver: Receiver, has_room: Callable[[], None]) -> None:
        self._delay = delay
        self._receiver = receiver
        self._has_room = has_room
        self._on_way: deque[tuple[float, bytes | None, Exception | None]] = deque()
        self._bytes = 0
        self._timer: asyncio.Handle | None = None
        self._holds = 0
        self._unread = False

    @property
    def room(self) -> int:
        return WINDOW_BYTES - self._bytes

    def send(self, data: bytes) -> None:
        self._bytes += len(data)
        self._put(data, None)

    def end(self, error: Exception | None = None) -> None:
        """Let its receiver know, behind all that is on its way, that nothing more will come."""
        self._put(None, error)

    def drop(self) -> int:
        """Lose what is on its way; return how many bytes that was."""
        lost, self._bytes = self._bytes, 0
        self._on_way.clear()
        self._cancel_timer()
        return lost

    def hold(self) -> None:
        """Let nothing through until `release` has been called as often."""
        self._holds += 1
        self._cancel_timer()

    def release(self) -> None:
        self._holds -= 1
        self._schedule()

    def pause_reading(self) -> None:
        self._unread = True
        self._cancel_timer()

    def resume_reading(self) -> None:
        self._unread = False
        self._schedule()

    def _put(self, data: bytes | None, error: Exception | None) -> None:
        due_s = asyncio.get_running_loop().time() + self._delay()
        self._on_way.append((due_s, data, error))
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None or self._holds or self._unread or not self._on_way:
            return
        loop, due_s = asyncio.get_running_loop(), self._on_way[0][0]
        if due_s <= loop.time():
            self._timer = loop.call_soon(self._deliver)
        else:
            self._timer = loop.call_at(due_s, self._deliver)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        """Hand over what is due at this moment, as far as it is read."""
        self._timer = None
        now_s, freed = asyncio.get_running_loop().time(), 0
        while self._on_way and self._on_way[0][0] <= now_s and not self._holds and not self._unread:
            _, data, error = self._on_way.popleft()
            if data is None:
                self._receiver.ended(error)
            else:
                self._bytes -= len(data)
                freed += len(data)
                self._receiver.arrived(data)
        self._schedule()
        if freed:
            self._has_room()
