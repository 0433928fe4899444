"""Logs, metrics and the HTTP server that shows them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import structlog

from shared.telemetry import http, metrics
from shared.telemetry.logging import configure


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_line_is_one_json_object_with_identity_and_time(stream: io.StringIO) -> None:
    configure("info", "decode", "decode-0", stream)
    with structlog.contextvars.bound_contextvars(request_id="gateway-0.1"):
        structlog.get_logger().info("joined", blocks=3)
    (line,) = lines(stream)
    assert str(line.pop("ts")).endswith("Z")
    assert line == {
        "level": "info",
        "event": "joined",
        "role": "decode",
        "instance": "decode-0",
        "request_id": "gateway-0.1",
        "blocks": 3,
    }


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    configure("warning", "decode", "decode-0", stream)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_an_exception_is_one_line_with_its_traceback(stream: io.StringIO) -> None:
    configure("info", "decode", "decode-0", stream)
    try:
        raise ValueError("why")  # noqa: TRY301 - the traceback is what is tested
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = lines(stream)
    assert "ValueError: why" in str(line["exception"])


def test_warnings_of_libraries_are_written_the_same_way(stream: io.StringIO) -> None:
    configure("info", "decode", "decode-0", stream)
    logging.getLogger("asyncio").warning("slow %s", "callback")
    logging.getLogger("asyncio").info("chatter")
    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["level"]) == ("slow callback", "asyncio", "warning")


def test_as_text_a_line_is_for_people(stream: io.StringIO) -> None:
    configure("info", "decode", "decode-0", stream, log_format="text")
    structlog.get_logger().warning("late", by_ms=3, why="two words\nin lines", empty="")
    (line,) = stream.getvalue().splitlines()
    time, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", time)
    assert rest == 'warning late by_ms=3 why="two words\\nin lines" empty=""'


def test_as_text_a_traceback_follows_its_line(stream: io.StringIO) -> None:
    configure("info", "decode", "decode-0", stream, log_format="text")
    structlog.get_logger().error("broken", exc_info=ValueError("why"))
    first, *traceback = stream.getvalue().splitlines()
    assert first.endswith("error   broken")
    assert traceback == ["ValueError: why"]


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, "00016"), (16, "00016"), (17, "00128"), (32768, "32768"), (10**6, "inf")]
)
def test_prompt_lengths_fall_into_few_buckets(tokens: int, bucket: str) -> None:
    assert metrics.prompt_bucket(tokens) == bucket


@asynccontextmanager
async def serving(ready: bool = True, host: str = "127.0.0.1") -> AsyncIterator[str]:
    server = http.TelemetryServer("gateway", lambda: ready)
    await server.start(host, 0)
    try:
        yield server.address
    finally:
        await server.close()


async def get(address: str, request: bytes) -> tuple[int, bytes]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


async def test_metrics_are_shown_in_the_prometheus_format() -> None:
    metrics.RECONNECTS.inc(0)
    async with serving() as address:
        status, body = await get(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == 200
    assert b"# TYPE penstock_reconnects_total counter" in body
    assert b"# TYPE penstock_time_to_first_token_seconds histogram" in body


@pytest.mark.parametrize("path", ["/metrics", "/ready", "/live", "/extra", "/nothing"])
async def test_head_is_answered_as_get_is_without_the_content(path: str) -> None:
    server = http.TelemetryServer("gateway", lambda: True)
    server.add_page("/extra", lambda: "[]")
    await server.start("127.0.0.1", 0)
    host, port = server.address.rsplit(":", 1)
    heads = {}
    try:
        for method in ("GET", "HEAD"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{method} {path} HTTP/1.1\r\n\r\n".encode())
            heads[method], _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            assert bool(body) == (method == "GET")
    finally:
        await server.close()
    get_status, head_status = (head.split(b"\r\n")[0] for head in heads.values())
    assert get_status == head_status
    if path != "/metrics":  # there the process's own numbers differ from one to the next
        assert heads["GET"] == heads["HEAD"]


async def test_a_page_that_a_service_adds_is_shown_as_json() -> None:
    server = http.TelemetryServer("gateway", lambda: True)
    server.add_page("/extra", lambda: '["now"]')
    await server.start("127.0.0.1", 0)
    try:
        assert await get(server.address, b"GET /extra HTTP/1.1\r\n\r\n") == (200, b'["now"]')
        assert b"/extra" in (await get(server.address, b"GET / HTTP/1.1\r\n\r\n"))[1]
    finally:
        await server.close()


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_an_address_is_shown_as_a_url_has_it(host: str, shown: str) -> None:
    assert http._name_of(host) == shown


async def test_who_listens_everywhere_is_found_by_the_machines_name() -> None:
    async with serving(host="0.0.0.0") as address:
        assert address.rsplit(":", 1)[0] == socket.gethostname()


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_readiness_is_asked_at_each_request(ready: bool, status: int) -> None:
    async with serving(ready) as address:
        assert (await get(address, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == status
        assert (await get(address, b"GET /live HTTP/1.1\r\n\r\n"))[0] == 200


async def test_a_process_that_is_stalled_is_neither_ready_nor_alive_and_says_why() -> None:
    why = ""
    server = http.TelemetryServer("gateway", lambda: True, lambda: why)
    await server.start("127.0.0.1", 0)
    try:
        for path in (b"/ready", b"/live"):
            assert (await get(server.address, b"GET %s HTTP/1.1\r\n\r\n" % path))[0] == 200
        why = "the engine has not moved for 5.0 s though it has work"
        for path in (b"/ready", b"/live"):
            answer = await get(server.address, b"GET %s HTTP/1.1\r\n\r\n" % path)
            assert answer == (503, f"{why}\n".encode())
    finally:
        await server.close()


async def test_it_answers_while_the_loop_of_the_process_does_not() -> None:
    async with serving() as address:
        with urllib.request.urlopen(f"http://{address}/live", timeout=5.0) as answer:  # noqa: ASYNC210 - it blocks the loop, as a bug would
            assert answer.status == 200


async def test_a_port_that_is_taken_is_refused_to_the_starter() -> None:
    async with serving() as address:
        rival = http.TelemetryServer("gateway", lambda: True)
        with pytest.raises(OSError, match="address already in use"):
            await rival.start("127.0.0.1", int(address.rpartition(":")[2]))
        await rival.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * http.MAX_REQUEST_BYTES + b"\r\n\r\n", 431),
    ],
)
async def test_a_bad_request_gets_a_status_and_the_server_lives_on(request_bytes: bytes, status: int) -> None:
    async with serving() as address:
        assert (await get(address, request_bytes))[0] == status
        assert (await get(address, b"GET /live HTTP/1.1\r\n\r\n"))[0] == 200


async def test_a_client_that_sends_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)
    async with serving() as address:
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_clients_that_send_nothing_keep_nobody_from_health() -> None:
    """They are more than the server takes, and the oldest of them gives way."""
    async with serving() as address, AsyncExitStack() as held:
        host, port = address.rsplit(":", 1)
        silent = []
        for _ in range(http.MAX_CONNECTIONS + 8):
            reader, writer = await asyncio.open_connection(host, int(port))
            held.callback(writer.close)
            silent.append(reader)
        assert (await get(address, b"GET /live HTTP/1.1\r\n\r\n"))[0] == 200
        with suppress(ConnectionResetError):
            assert await silent[0].read() == b""


async def test_an_end_with_open_connections_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as held, serving() as address:
        host, port = address.rsplit(":", 1)
        for _ in range(4):
            _, writer = await asyncio.open_connection(host, int(port))
            held.callback(writer.close)
        await get(address, b"GET /live HTTP/1.1\r\n\r\n")  # by now the others are served, too
    assert caplog.records == []
