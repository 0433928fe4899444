"""Look after one connection now and then: end it where nobody is at its other end, or nobody gets on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.http2.limits import MAX_HALF_S, MAX_LINGER_S, ServerLimits

if TYPE_CHECKING:
    from shared.http2._codec import Connection

LAST_LOOK_S = 0.1
"""The time until one that is about to be ended is looked at once more: we may have been too busy to read."""


class Keepalive:
    """`leave` ends a connection that nobody needs, in peace; `abort` one that does not go on."""

    def __init__(
        self,
        codec: Connection,
        limits: ServerLimits,
        leave: Callable[[], None],
        abort: Callable[[], None],
        flush: Callable[[], None],
    ) -> None:
        self._codec = codec
        self._limits = limits
        self._leave = leave
        self._abort = abort
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        self.used_s = self.heard_s
        """The time at which its last call ended."""
        self.full_since_s: float | None = None
        """The time since which its socket takes nothing."""
        self._asked_s: float | None = None
        self._half_since_s: float | None = None
        self._frames = 0
        self._doubted = False
        self._every_s = min(limits.keepalive_s, limits.idle_s)
        self._handle = self._loop.call_later(limits.handshake_s, self._check_handshake)

    def stop(self) -> None:
        self._handle.cancel()

    def _check_handshake(self) -> None:
        if not self._codec.is_open:
            self._abort()
            return
        self._look()

    def _look(self) -> None:
        now_s = self._loop.time()
        if self._is_stuck(now_s):
            if self._doubted:
                self._abort()
                return
            self._doubted = True
            self._handle = self._loop.call_later(LAST_LOOK_S, self._look)
            return
        self._doubted = False
        if self._codec.stream_count == 0 and now_s - self.used_s >= self._limits.idle_s:
            self._leave()
        elif self._asked_s is None and now_s - self.heard_s >= self._limits.keepalive_s:
            self._asked_s = now_s
            self._codec.ping()
            self._flush()
        self._handle = self._loop.call_later(self._every_s, self._look)

    def _is_stuck(self, now_s: float) -> bool:
        if self._asked_s is not None and self.heard_s > self._asked_s:
            self._asked_s = None
        if not self._codec.is_half or self._codec.frame_count != self._frames:
            self._half_since_s = now_s if self._codec.is_half else None
        self._frames = self._codec.frame_count
        if self.full_since_s is not None:  # it hears no ping
            return now_s - self.full_since_s > MAX_LINGER_S
        if self._half_since_s is not None and now_s - self._half_since_s > MAX_HALF_S:
            return True
        return self._asked_s is not None and now_s - self._asked_s > self._limits.keepalive_timeout_s
