"""An HTTP server that answers as a script says: which pieces, when, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer: `status` other than 200 has `body` at once. `pieces` are seconds to wait and the data of an
    event; `cut`: the connection closes behind them, without an end; `silent`: it
    closes without a word."""

    pieces: tuple[tuple[float, Any], ...] = ()
    status: int = 200
    body: Any = None
    cut: bool = False
    done: bool = True
    silent: bool = False


@dataclass(slots=True)
class Asked:
    """A request that came, when, and whether its client was gone before its answer had ended."""

    path: str
    headers: dict[str, str]
    body: Any
    at_s: float
    gone_at_s: float | None = None
    was_reset: bool = False


@dataclass(slots=True)
class ScriptedServer:
    answer: Callable[[Asked], Scripted]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self.connections += 1
        try:
            while head := await _head(reader):
                first, *lines = head.split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
                }
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                asked = Asked(first.split()[1], headers, json.loads(data) if data else None, loop.time())
                self.asked.append(asked)
                if not await self._play(asked, reader, writer):
                    return
        finally:
            writer.close()

    async def _play(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return whether the connection goes on."""
        script = self.answer(asked)
        if script.silent:
            return False
        if script.status != 200 or script.body is not None:
            page = json.dumps(script.body).encode() if not isinstance(script.body, bytes) else script.body
            head = f"HTTP/1.1 {script.status} Said\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(page)}\r\n\r\n".encode() + page)
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        gone = asyncio.ensure_future(reader.read(1))
        try:
            for wait_s, data in script.pieces:
                done, _ = await asyncio.wait([gone], timeout=wait_s)
                if done:
                    asked.gone_at_s = asyncio.get_running_loop().time()
                    asked.was_reset = isinstance(gone.exception(), ConnectionResetError)
                    return False
                _chunk(writer, b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()))
            if script.cut:
                return False
            if script.done:
                _chunk(writer, b"data: [DONE]")
            writer.write(b"0\r\n\r\n")
            return True
        finally:
            gone.cancel()
            await asyncio.wait([gone])
            if not gone.cancelled():
                gone.exception()  # a connection that was reset is gone, too


async def _head(reader: asyncio.StreamReader) -> str:
    """Return the head of a request, nothing where none comes any more."""
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode().strip()
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    data += b"\n\n"
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@asynccontextmanager
async def scripted_server(answer: Callable[[Asked], Scripted]) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(answer)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()


def chat_piece(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def usage_piece(prompt: int, completion: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"model": "scripted", "choices": [], "usage": usage}


def told_story(words: int, first_s: float = 0.2, gap_s: float = 0.05) -> Scripted:
    """An answer of so many words, with its usage."""
    pieces = [(first_s if index == 0 else gap_s, chat_piece(f"word{index} ")) for index in range(words)]
    return Scripted((*pieces, (0.0, usage_piece(11, words))))
