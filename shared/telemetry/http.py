"""The small HTTP server of every process: GET and HEAD of /metrics, /ready, /live and what a service adds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from ipaddress import ip_address

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from shared.tasks import Tasks
from shared.telemetry import metrics
from shared.telemetry.build import PYTHON_VERSION, VERSION
from shared.telemetry.metrics import RoleMetrics

log = structlog.get_logger()

MAX_REQUEST_BYTES = 8192
"""The longest head of a request for metrics or health; a longer one gets 431."""
REQUEST_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
MAX_CONNECTIONS = 32
"""The most open connections. Of more the one that has been silent for the longest is closed."""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
METHODS = (b"GET", b"HEAD")

Page = tuple[str, str, bytes]
"""Status, type of the content, content."""


def never_stalled() -> str:
    return ""


class TelemetryServer:
    """Serves metrics, readiness and liveness, from a thread and a loop of its own: it answers also when the
    process's loop does not.

    It shows the metrics of a `role`, which may be `inside` the process of another. At each request `stalled`
    is asked for the sentence that says why the process is not alive ("" = it is), and `ready` for its
    readiness.
    """

    def __init__(
        self,
        role: str,
        ready: Callable[[], bool],
        stalled: Callable[[], str] = never_stalled,
        *,
        inside: str = "",
    ) -> None:
        self._metrics = RoleMetrics(role, inside=inside)
        metrics.BUILD_INFO.labels(version=VERSION, python=PYTHON_VERSION).set(1)
        self._pages: dict[bytes, Callable[[], str]] = {}
        self._ready = ready
        self._stalled = stalled
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event
        self._open: set[asyncio.StreamWriter] = set()
        self._connections = Tasks()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """The connections whose request has not come yet, the oldest first."""
        self.address = ""
        """host:port once started."""

    def add_page(self, path: str, page: Callable[[], str]) -> None:
        """Show at `path` what `page` returns, JSON, from now on. It is called in the server's thread."""
        self._pages[path.encode()] = page

    async def start(self, host: str, port: int) -> None:
        """Listen on `port`, 0 = a free one. Raises OSError when it is taken."""
        address: Future[str] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(host, port, address)), name="telemetry", daemon=True
        )
        self._thread.start()
        self.address = await asyncio.wrap_future(address)

    async def close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    # ---- in the thread ------------------------------------------------------------------------------

    async def _run(self, host: str, port: int, address: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        try:
            server = await asyncio.start_server(self._opened, host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            address.set_exception(error)
            return
        bound = server.sockets[0].getsockname()
        address.set_result(f"{_name_of(bound[0])}:{bound[1]}")
        await self._closing.wait()
        server.close()
        for writer in list(self._open):
            writer.close()
        await server.wait_closed()
        await self._connections.finish(0.0)

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in a task that is ours: Python 3.11 reports one of its own that is cancelled, as
        at the end of the loop, to be an error."""
        self._connections.start("telemetry_connection", self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self._silent[writer] = None
        if len(self._open) > MAX_CONNECTIONS:
            oldest = next(iter(self._silent))
            oldest.transport.abort()
            self._forget(oldest)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                method, (status, content_type, body) = await self._answer(reader)
                self._silent.pop(writer, None)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if method == b"HEAD" else body))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.debug("telemetry_request_dropped", error=type(error).__name__)
        finally:
            self._forget(writer)
            writer.close()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._silent.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[bytes, Page]:
        """The method, where there is one, and what to answer."""
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return b"", ("431 Request Header Fields Too Large", TEXT, b"request too large\n")
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3:
            return b"", ("400 Bad Request", TEXT, b"not an HTTP request\n")
        if words[0] not in METHODS:
            return words[0], ("405 Method Not Allowed", TEXT, b"only GET and HEAD\n")
        return words[0], self._page(words[1].split(b"?", 1)[0])

    def _page(self, path: bytes) -> Page:
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._metrics)
        if path == b"/live":
            return _health(self._stalled(), "live")
        if path == b"/ready":
            return _health(self._stalled() or ("" if self._ready() else "not ready"), "ready")
        if path in self._pages:
            return "200 OK", JSON, self._pages[path]().encode()
        paths = [b"/metrics", b"/ready", b"/live", *self._pages]
        return "404 Not Found", TEXT, b"try one of " + b", ".join(paths) + b"\n"


def _health(why_not: str, well: str) -> Page:
    if why_not:
        return "503 Service Unavailable", TEXT, f"{why_not}\n".encode()
    return "200 OK", TEXT, f"{well}\n".encode()


def _name_of(host: str) -> str:
    """Return the name by which others find us, who listen on every address of a machine or container: by its
    name."""
    address = ip_address(host)
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if address.version == 6 else host
