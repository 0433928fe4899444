"""The small HTTP server of every process: GET /metrics, /ready, /live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

log = structlog.get_logger()

MAX_REQUEST_BYTES = 8192
REQUEST_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 32
TEXT = "text/plain; charset=utf-8"


class TelemetryServer:
    """Serves metrics, readiness and liveness. `ready` is asked at each GET /ready."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""
        """host:port once started."""

    async def start(self, host: str, port: int) -> None:
        """Listen on `port`, 0 = a free one. Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)
        bound = self._server.sockets[0].getsockname()
        self.address = f"{bound[0]}:{bound[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status, content_type, body = await self._answer(reader)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.debug("telemetry_request_dropped", error=type(error).__name__)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
        if len(self._open) > MAX_CONNECTIONS:
            return "503 Service Unavailable", TEXT, b"too many connections\n"
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "431 Request Header Fields Too Large", TEXT, b"request too large\n"
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3:
            return "400 Bad Request", TEXT, b"not an HTTP request\n"
        if words[0] != b"GET":
            return "405 Method Not Allowed", TEXT, b"only GET\n"
        return self._page(words[1].split(b"?", 1)[0])

    def _page(self, path: bytes) -> tuple[str, str, bytes]:
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest()
        if path == b"/live":
            return "200 OK", TEXT, b"live\n"
        if path == b"/ready":
            if self._ready():
                return "200 OK", TEXT, b"ready\n"
            return "503 Service Unavailable", TEXT, b"not ready\n"
        return "404 Not Found", TEXT, b"try /metrics, /ready or /live\n"
