"""A client of the HTTP edge that looks at the bytes: no library hides what a gateway has written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"


class ConnectionBroken(Exception):
    """The connection has ended within an answer."""


@dataclass(slots=True)
class HttpAnswer:
    """`events` are the parsed data of server-sent events, but for DONE; `whole`: the answer has come to its
    end."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    events: list[Any] = field(default_factory=list)
    done_marks: int = 0
    whole: bool = False

    @property
    def json(self) -> Any:
        """Return the body of what is no stream."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """Return the text of all choices, one after the other as it came."""
        parts = self.events if self.events else [self.json]
        return "".join(choice.get("text", "") for part in parts for choice in part.get("choices", ()))

    @property
    def finish_reasons(self) -> list[str]:
        parts = self.events if self.events else [self.json]
        reasons = [choice.get("finish_reason") for part in parts for choice in part.get("choices", ())]
        return [reason for reason in reasons if reason]

    @property
    def error(self) -> dict[str, Any] | None:
        """Return the error object that it ended with, if any."""
        parts = self.events if self.events else [self.json]
        return next((part["error"] for part in parts if "error" in part), None)


async def ask_http(
    host: str,
    port: int,
    path: str,
    body: Any = None,
    key: str = "",
    on_event: Callable[[HttpAnswer], None] = lambda _: None,
    pause_s: float = 0.0,
    **headers: str,
) -> HttpAnswer:
    """Ask once, on a connection of its own; `on_event` sees the answer so far after each event, and
    nothing more is read for `pause_s` then.

    Raises OSError where no connection can be had, and ConnectionBroken. A task that is cancelled here hangs
    up.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_request(host, path, body, key, headers))
        answer = HttpAnswer()
        try:
            await _read(reader, answer, on_event, pause_s)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionBroken(f"after {len(answer.body)} bytes of an answer {answer.status}") from error
        return answer
    finally:
        writer.transport.abort()


def _request(host: str, path: str, body: Any, key: str, headers: dict[str, str]) -> bytes:
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    content = b"" if body is None else json.dumps(body).encode()
    if content:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def _read(
    reader: asyncio.StreamReader, answer: HttpAnswer, on_event: Callable[[HttpAnswer], None], pause_s: float
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    answer.status = int(head[0].split()[1])
    answer.headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    if answer.headers.get("transfer-encoding") != "chunked":
        answer.body = await reader.readexactly(int(answer.headers["content-length"]))
        answer.whole = True
        return
    unread = b""
    while size := int(await reader.readline(), 16):
        part = (await reader.readexactly(size + 2))[:-2]
        answer.body += part
        *events, unread = (unread + part).split(b"\n\n")
        for event in events:
            _take(event, answer)
            on_event(answer)
            if pause_s:
                await asyncio.sleep(pause_s)
    await reader.readexactly(2)
    answer.whole = not unread


def _take(event: bytes, answer: HttpAnswer) -> None:
    data = event.decode().rpartition("data: ")[2]
    if data == DONE:
        answer.done_marks += 1
    else:
        answer.events.append(json.loads(data))
