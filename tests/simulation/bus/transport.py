"""One end of a connection in memory, as asyncio's protocols know it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.bus.pipe import Pipe

HIGH_WATER_BYTES = 64 << 10
"""The buffer above which a writer is asked to pause (asyncio's default)."""


class MemoryTransport(asyncio.Transport):
    """What it writes goes into `outgoing` as far as there is room, and waits in its buffer beyond."""

    def __init__(self, protocol: asyncio.BaseProtocol, names: dict[str, Any]) -> None:
        super().__init__(names)
        self._protocol = protocol
        self.outgoing: Pipe
        self.incoming: Pipe
        self._buffer = bytearray()
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._paused = False
        self._closing = False
        self.lost = False
        """Nothing is written or read any more; the other end may not know yet."""
        self.written = 0
        """Bytes that have left the buffer."""

    # ---- what arrives ---------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        if self.lost:
            self.outgoing.end(ConnectionResetError("the other end is closed"))
        if self._closing:
            return
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(self._protocol, data)
            else:
                assert isinstance(self._protocol, asyncio.Protocol)
                self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - as asyncio's transports: the connection ends, not the loop
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a protocol failed", "exception": error, "protocol": self._protocol}
            )
            self._tear_down(error)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._closing:
            room = memoryview(protocol.get_buffer(len(left)))
            count = min(len(room), len(left))
            room[:count] = left[:count]
            protocol.buffer_updated(count)
            left = left[count:]

    def ended(self, error: Exception | None) -> None:
        if self.lost:
            return
        if error is not None:
            self._buffer.clear()
            self._closing = True
            self._lose(error)
        elif not self._closing:
            assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not self._protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    # ---- what is written ------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not len(data):
            return
        self._buffer += data
        self.pour()
        if len(self._buffer) > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def pour(self) -> None:
        """Send as much of the buffer as there is room for; also called when there is some again."""
        count = min(self.outgoing.room, len(self._buffer))
        if count > 0:
            data = bytes(memoryview(self._buffer)[:count])
            del self._buffer[:count]
            self.written += count
            self.outgoing.send(data)
        if self._paused and len(self._buffer) <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._buffer and not self.lost:
            self.outgoing.end()
            self._lose(None)

    def close(self) -> None:
        """Read nothing more; what is in the buffer still goes out."""
        if not self._closing:
            self._closing = True
            self.incoming.resume_reading()  # what comes now is refused, not kept
            self.pour()

    def abort(self) -> None:
        """Drop what is in the buffer; the other end sees a reset."""
        self._tear_down(None)

    def _tear_down(self, error: Exception | None) -> None:
        if self.lost:
            return
        self._buffer.clear()
        self._closing = True
        self.incoming.resume_reading()
        self.outgoing.end(ConnectionResetError("the connection was torn down"))
        self._lose(error)

    # ---- what asyncio asks of it ----------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else HIGH_WATER_BYTES
        self._low = low if low is not None else self._high // 4

    def pause_reading(self) -> None:
        self.incoming.pause_reading()

    def resume_reading(self) -> None:
        self.incoming.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol
