"""Bytes at a gateway's HTTP edge: request lines, headers, bodies and their framing, as no client sends them.

A connection is answered by 4xx or by what was asked for, or closed; its end is never left to the client.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
import socket
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import structlog
import uvloop

from services.gateway.http import listener, server
from services.gateway.http.completions import call
from shared.bus.nats_server import NatsServer
from tests.fuzz.http_answers import END, Answer, has_two_readings, read_answers
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, RunOne, Target
from tests.integration.gateway_peers import Running, gateway
from tests.support.wait import until

MAX_BODY_BYTES = 64 << 10
QUIET_S = 0.03
"""An edge that has said nothing for so long waits for more, or for its client's end."""
END_S = 30.0
"""By then every connection has ended whose client keeps silent: the sum of all times, on a busy machine."""
SHORT_S = {
    (listener, "HEAD_TIMEOUT_S"): 0.3,
    (server, "KEEPALIVE_S"): 0.3,
    (server, "LINGER_S"): 0.2,
    (call, "BODY_TIMEOUT_S"): 0.5,
    (call, "BODY_GRACE_S"): 0.3,
}
"""The limits of time are as short as that."""
BUSY = (429, 503, 504)
HOST = b"Host: localhost"
JSON = b"Content-Type: application/json"
BODY = b'{"model": "x", "prompt": "a"}'
CANARY = b"GET /canary HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""A request in the body of another, which nobody may answer."""


def _post(*headers: bytes, body: bytes = BODY, path: bytes = b"/v1/completions") -> bytes:
    return b"\r\n".join((b"POST " + path + b" HTTP/1.1", HOST, JSON, *headers)) + END + body


def _length(count: int) -> bytes:
    return b"Content-Length: %d" % count


CHUNKED = b"Transfer-Encoding: chunked"
SMUGGLED = b"0\r\n\r\n" + CANARY
SOUND = (
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD /ready HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.b\r\n\r\n",
    b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    _post(_length(len(BODY))),
    _post(_length(len(BODY)), b"Expect: 100-continue"),
    _post(CHUNKED, body=b"1d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _post(CHUNKED, body=b"1d;a=b\r\n" + BODY + b"\r\n0\r\nTrailer: x\r\n\r\n"),
    _post(_length(len(gzip.compress(BODY))), b"Content-Encoding: gzip", body=gzip.compress(BODY)),
    _post(_length(len(BODY))) * 2,
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40,
)
UNSOUND = (
    _post(_length(4), CHUNKED, body=SMUGGLED),
    _post(CHUNKED, _length(len(SMUGGLED)), body=SMUGGLED),
    _post(_length(len(BODY)), _length(4), body=BODY + CANARY),
    _post(b"Content-Length: 29, 29"),
    _post(b"Content-Length: +29"),
    _post(b"Content-Length: 0x1d"),
    _post(b"Content-Length: -1"),
    _post(b"Content-Length: 99999999999999999999999"),
    _post(_length(1 << 40)),
    _post(b"Transfer-Encoding: chunked, identity", body=SMUGGLED),
    _post(b"Transfer-Encoding: xchunked", body=SMUGGLED),
    _post(b"Transfer-Encoding:\x0bchunked", body=SMUGGLED),
    _post(b"Transfer-Encoding : chunked", body=SMUGGLED),
    _post(b"Transfer-Encoding: gzip, chunked", body=SMUGGLED),
    _post(b"X: y\r\n Transfer-Encoding: chunked", _length(len(SMUGGLED)), body=SMUGGLED),
    _post(b"X: y\nTransfer-Encoding: chunked", _length(len(SMUGGLED)), body=SMUGGLED),
    _post(CHUNKED, body=SMUGGLED).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    _post(CHUNKED, body=b"ffffffffffffffff\r\n" + BODY),
    _post(CHUNKED, body=b"-1\r\n" + BODY),
    _post(CHUNKED, body=b"1d\n" + BODY + b"\n0\n\n" + CANARY),
    _post(CHUNKED, body=b"1d " + b"a" * 9000 + b"\r\n" + BODY),
    _post(CHUNKED, body=b"1\r\na\r\n" * 3000),
    _post(CHUNKED, body=b"0\r\n" + b"a: b\r\n" * 3000),
    _post(_length(60_000), body=b"[" * 60_000),
    _post(
        _length(len(zlib.compress(bytes(1 << 22)))),
        b"Content-Encoding: deflate",
        body=zlib.compress(bytes(1 << 22)),
    ),
    _post(_length(29), b"Content-Encoding: br"),
    _post(_length(29), b"Content-Encoding: gzip"),
    _post(_length(29), b"Expect: the-unexpected"),
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" + bytes(70_000),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" + CANARY,
    b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n" + CANARY,
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/1.1\nHost: localhost\n\n",
    b"GET  /health  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"get /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET //[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://a:b@c:99999999/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%00%ff%zz?%ff=%zz#%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff\xfe\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: [::1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"\r\n\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\0",
)
HEADERS = (
    b"X: \xe9\xff\x80",
    b"X: a\0b",
    b"X: a\rb",
    b"X\0: a",
    b": a",
    b"X",
    b" folded",
    b"\tfolded",
    b"X: " + b"a" * 8191,
    b"X: " + b"a" * 100_000,
    b"a" * 8191 + b": x",
    b"\r\n".join(b"h%d: x" % number for number in range(65)),
    b"\r\n".join(b"h%d: x" % number for number in range(1000)),
    b"Connection: close",
    b"Connection: keep-alive, close",
    b"Connection: upgrade",
    b"Upgrade: x",
    b"Expect: 100-continue",
    b"Expect: x",
    b"Content-Length: 5",
    b"Content-Length: 05",
    b"Content-Length:",
    b"Content-Length: 5 5",
    CHUNKED,
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Content-Encoding: gzip, gzip, gzip",
    b"Content-Type: \xff/\xff;;;",
    b"Authorization: Bearer \xff",
    b"Authorization: Basic !!!",
    b"Cookie: " + b"a=b; " * 1000,
    b"Range: bytes=0-1,2-3,4-",
    b'If-None-Match: "',
    b"If-Modified-Since: yesterday",
    b"Accept-Encoding: \0",
    b"Origin: null",
    b"Access-Control-Request-Headers: \xe9, a\x01",
    b"X-Request-Id: \xff\x01",
    b"Traceparent: 00-" + b"0" * 32,
    b'Forwarded: for="[::1"',
)
PIECES = (1, 2, 7, 100, 4096, 1 << 20)
MAX_PIECES = 2000


def make(rng: random.Random) -> bytes:
    """How it is sent, a line end, and what is sent."""
    sound = rng.random() < 0.5
    data = rng.choice(SOUND if sound else UNSOUND)
    for _ in range(rng.choice((0, 1, 1, 2)) if sound else rng.choice((0, 0, 1))):
        head, end, rest = data.partition(END)
        lines = head.split(b"\r\n")
        lines.insert(rng.randint(1, len(lines)), rng.choice(HEADERS))
        data = b"\r\n".join(lines) + end + rest
    if rng.random() < 0.2:
        data += rng.choice((CANARY, *SOUND))
    if rng.random() < 0.4:
        data = mutated_bytes(data, rng)
    way = rng.choices(("ask", "end", "stay"), (20, 10, 1))[0]
    return b"%s %d\n" % (way.encode(), rng.choice(PIECES)) + data


class Errors(logging.Handler):
    """Notes what a library says of an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class Edge:
    """A gateway without a fleet, in this process, with its times cut short."""

    def __init__(self, running: Running, logs: list[Any], errors: Errors) -> None:
        self._running = running
        self._logs = logs
        self._failed = errors.texts
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._failed.append(str(context)))
        self._tasks = len(asyncio.all_tasks())

    async def play(self, line: bytes) -> None:
        said, _, data = line.partition(b"\n")
        way, _, piece = said.partition(b" ")
        size = int(piece) if piece.isdigit() and len(piece) < 9 and int(piece) else 1 << 20
        size = max(size, len(data) // MAX_PIECES)
        host, port = self._running.http.address.rsplit(":", 1)
        with socket.socket() as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
            sending = asyncio.create_task(_send(client, data, size, end=way == b"end"))
            come, ended = await _receive(client, sending, QUIET_S if way == b"ask" else END_S)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if not ended and way != b"ask":
            raise Fault(f"the connection was open after {END_S:g} s")
        self._check(data, come, ended=ended)
        await self._settle()

    def _check(self, data: bytes, come: bytes, *, ended: bool) -> None:
        if ended and not come:
            return
        try:
            answers = read_answers(come, heads=b"HEAD" in data.upper())
        except Fault:
            if ended:
                return  # it was closed in the middle of an answer: bytes were unread, or its client ended
            raise
        for answer in answers:
            _check_answer(answer)
        final = [answer for answer in answers if answer.status >= 200]
        if has_two_readings(data) and final:
            first = final[0]
            if len(final) > 1 or first.status < 400:
                raise Fault(f"a head of two readings was answered with {[each.status for each in final]}")
            if not ended and not first.is_last:
                raise Fault("the connection goes on after a head of two readings")

    async def _settle(self) -> None:
        """Raise Fault unless the connection has left nothing behind."""
        listening = self._running.http._connections
        assert listening is not None
        try:
            await until(lambda: not listening.listener._places, timeout_s=END_S)
            await until(lambda: len(asyncio.all_tasks()) <= self._tasks, timeout_s=END_S)
        except AssertionError as error:
            raise Fault(
                f"left behind: {len(listening.listener._places)} places, {asyncio.all_tasks()}"
            ) from error
        bad = [each for each in self._logs if each["log_level"] in ("error", "critical")]
        self._logs.clear()
        if bad or self._failed:
            failed = self._failed.copy()
            self._failed.clear()
            raise Fault(f"logged: {bad[:2]} " + "\n".join(failed[:2]))


async def _send(client: socket.socket, data: bytes, size: int, *, end: bool) -> None:
    """Send it in pieces, as far as the edge takes it."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        for at in range(0, len(data), size):
            await loop.sock_sendall(client, data[at : at + size])
            await asyncio.sleep(0)
        if end:
            client.shutdown(socket.SHUT_WR)


async def _receive(client: socket.socket, sending: asyncio.Task[None], quiet_s: float) -> tuple[bytes, bool]:
    """Return what has come until the edge closes, or says nothing for so long; and whether it has closed."""
    loop, come = asyncio.get_running_loop(), bytearray()
    while True:
        try:
            async with asyncio.timeout(quiet_s):
                piece = await loop.sock_recv(client, 1 << 16)
        except TimeoutError:
            if sending.done():
                return bytes(come), False
            continue
        except ConnectionError:  # it closes with bytes unread
            return bytes(come), True
        if not piece:
            return bytes(come), True
        come += piece


def _check_answer(answer: Answer) -> None:
    if answer.status >= 500 and answer.status not in BUSY:
        raise Fault(f"{answer.status}: {answer.body[:400]!r}")
    if b"internal_error" in answer.body or b"Traceback" in answer.body:
        raise Fault(f"{answer.status}: {answer.body[:400]!r}")


@contextmanager
def opened() -> Iterator[RunOne]:
    with ExitStack() as stack:
        for (module, name), seconds in SHORT_S.items():
            stack.enter_context(patch.object(module, name, seconds))
        logs = stack.enter_context(structlog.testing.capture_logs())
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        nats = NatsServer()
        runner.run(nats.start())
        stack.callback(lambda: runner.run(nats.stop()))
        running = gateway(nats.url, max_request_bytes=MAX_BODY_BYTES, admit_wait_s=0.05)
        errors = Errors()
        logging.getLogger().addHandler(errors)
        stack.callback(logging.getLogger().removeHandler, errors)
        edge = runner.run(_begun(running, logs, errors))
        stack.callback(lambda: runner.run(running.__aexit__(None, None, None)))
        yield lambda data: runner.run(edge.play(data))


async def _begun(running: Any, logs: list[Any], errors: Errors) -> Edge:
    return Edge(await running.__aenter__(), logs, errors)


TARGET = Target("http_head", make, opened, tries=200)
