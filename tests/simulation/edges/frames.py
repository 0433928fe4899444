"""Carry the messages of one gRPC call over a connection, both ways, in frames.

What HTTP/2 does beyond that, several calls on a connection and its windows, is left out: a call has a
connection of its own, and whoever ends it early resets that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

HEADER_BYTES = 5
MAX_UNREAD_FRAMES = 16
"""The frames that are taken in before somebody reads them; the writer waits then."""


class FrameKind(IntEnum):
    HEAD = 1
    """(method, metadata, seconds until the deadline or None), of the client"""
    MESSAGE = 2
    INITIAL = 3
    """(metadata), of the server"""
    STATUS = 4
    """(code, details, metadata), of the server: its last"""


class Frame(NamedTuple):
    kind: FrameKind
    payload: bytes

    def fields(self) -> Any:
        return msgpack.unpackb(self.payload)


class FrameConnection(asyncio.Protocol):
    """One end of a call. `on_lost` is called when the connection is gone, whoever ended it."""

    def __init__(self, on_lost: Callable[[], object] = lambda: None) -> None:
        self.on_lost = on_lost
        self.lost = False
        self._transport: asyncio.Transport
        self._come = bytearray()
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def other_end(self) -> tuple[str, int]:
        """Return the node and the port of its other end."""
        place, port = self._transport.get_extra_info("peername")
        return place, port

    # ---- what comes -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._come += data
        while len(self._come) >= HEADER_BYTES:
            length = int.from_bytes(self._come[1:HEADER_BYTES], "big")
            end = HEADER_BYTES + length
            if len(self._come) < end:
                break
            self._frames.put_nowait(Frame(FrameKind(self._come[0]), bytes(self._come[HEADER_BYTES:end])))
            del self._come[:end]
        if self._frames.qsize() >= MAX_UNREAD_FRAMES:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self.lost = True
        self._has_room.set()
        self._frames.put_nowait(None)
        self.on_lost()

    async def receive(self) -> Frame | None:
        """Return the next frame; None: there is none any more."""
        frame = await self._frames.get()
        if frame is None:
            self._frames.put_nowait(None)
        elif self._frames.qsize() < MAX_UNREAD_FRAMES:
            self._transport.resume_reading()
        return frame

    # ---- what is sent -----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def send(self, kind: FrameKind, payload: bytes) -> None:
        self._transport.write(bytes((kind,)) + len(payload).to_bytes(4, "big") + payload)

    def send_fields(self, kind: FrameKind, *fields: Any) -> None:
        self.send(kind, msgpack.packb(fields))

    async def drain(self) -> None:
        """Return when there is room for more."""
        await self._has_room.wait()

    def close(self) -> None:
        """End it when all that was sent has gone out."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
