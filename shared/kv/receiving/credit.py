"""The bytes that a receiver lets be on their way to it, shared out among its transfers."""

from __future__ import annotations

from collections import deque

from shared.errors import InternalError
from shared.kv.limits import FIRST_WINDOW_BYTES, RESERVED_WINDOW_BYTES, WINDOW_BYTES
from shared.kv.receiving.incoming import IncomingTransfer
from shared.seams.buggify import BUGGIFY


class CreditPool:
    """A first window for each transfer, first come, first served; a full one for those that move."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.free_bytes = total_bytes
        self._held: dict[int, int] = {}  # transfer → window
        self._waiting: deque[IncomingTransfer] = deque()

    def request(self, incoming: IncomingTransfer) -> None:
        self._waiting.append(incoming)

    def take(self) -> tuple[IncomingTransfer, int] | None:
        """The next transfer that can start, and its first window."""
        if not self._waiting:
            return None
        incoming = self._waiting[0]
        first_bytes = 0 if BUGGIFY.takes("the first window has one cell") else FIRST_WINDOW_BYTES
        window = min(incoming.total_bytes, max(first_bytes, incoming.cell_bytes))
        if window > self.free_bytes:
            return None
        self._waiting.popleft()
        self._held[incoming.transfer] = window
        self.free_bytes -= window
        return incoming, window

    def grow(self, incoming: IncomingTransfer) -> int:
        """The window it has now: full, if that much is free."""
        held = self._held[incoming.transfer]
        more = min(incoming.total_bytes, max(WINDOW_BYTES, incoming.cell_bytes)) - held
        if 0 < more <= self.free_bytes - RESERVED_WINDOW_BYTES:
            self.free_bytes -= more
            self._held[incoming.transfer] = held = held + more
        return held

    def release(self, incoming: IncomingTransfer) -> None:
        """Give credit back, also for a transfer that still waits or never asked."""
        self.free_bytes += self._held.pop(incoming.transfer, 0)
        if incoming in self._waiting:
            self._waiting.remove(incoming)

    def check(self) -> None:
        """Raise InternalError unless what is free and what transfers hold make up all there is."""
        held_bytes = sum(self._held.values())
        if self.free_bytes + held_bytes != self._total_bytes:
            raise InternalError(
                f"{self.free_bytes} bytes of credit are free and {held_bytes} are held, "
                f"of {self._total_bytes} in all"
            )
