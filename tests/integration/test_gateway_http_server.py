"""The HTTP server itself: its pages, keys, TLS, pages of other origins, and what a connection may take."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import structlog

from services.gateway.http.listener import HEALTH_PLACES
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from tests.integration.gateway_peers import Running, fleet, gateway
from tests.integration.http_edge import CHAT, HELLO, TEXT, edge
from tests.support.certificate import Certificate, make_certificate
from tests.support.http import call, http_client
from tests.support.metric import value
from tests.support.wait import until

ORIGIN = "https://app.example"
TIMEOUT_S = 60
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def test_models_are_those_of_the_fleet_and_those_that_answer_come_first(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("retriever", model="an-embedder")
        await running.knows("decode", 1)
        await running.knows("retriever", 1)
        async with http_client(running.http.address) as client:
            listed = await call(client, "/v1/models")
            one = await call(client, "/v1/models/test-model")
            none = await call(client, "/v1/models/org/other")
    found = [(model["id"], model["embeds"]) for model in listed.body["data"]]
    assert found == [("test-model", False), ("an-embedder", True)]
    assert (one.body["id"], one.body["object"]) == ("test-model", "model")
    assert (none.status, none.error["code"]) == (404, "model_not_found")


async def test_health_is_that_it_answers_and_ready_that_it_can_serve(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await asyncio.wait_for(running.server.serving.wait(), TIMEOUT_S)
        async with http_client(running.http.address) as client:
            assert (await call(client, "/ready")).status == 200
            await peers["tokenizer-0"].stop()
            await running.knows("tokenizer", 0)
            assert (await call(client, "/ready")).status == 503
            assert [(await call(client, path)).status for path in ("/health", "/healthz")] == [200, 200]
            assert (await call(client, "/health", method="HEAD")).status == 200


async def test_a_draining_gateway_is_not_ready_and_takes_nothing_new(nats_url: str) -> None:
    async with fleet(nats_url), gateway(nats_url) as running:
        await asyncio.wait_for(running.server.serving.wait(), TIMEOUT_S)
        await running.server.drain()
        async with http_client(running.http.address) as client:
            ready, refused = await call(client, "/ready"), await call(client, CHAT, HELLO)
    assert (ready.status, refused.status, refused.error["code"]) == (503, 503, "unavailable")


async def test_metrics_are_the_gateways_own(nats_url: str) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        reply = await call(client, "/metrics")
    assert reply.status == 200
    assert "penstock_requests_total" in reply.body


async def test_with_keys_all_but_health_wants_one(nats_url: str, tmp_path: Path) -> None:
    key = new_api_key()
    file = tmp_path / "keys.toml"
    file.write_text(describe_api_key(ApiKey("web", "acme", hash_api_key(key), operator=True)))
    paths = ("/v1/models", "/metrics", "/v1/models/test-model")
    async with fleet(nats_url), gateway(nats_url, api_keys=str(file)) as running:
        await running.knows("decode", 1)
        async with http_client(running.http.address) as client:
            strangers = [await call(client, path) for path in paths]
            strangers.append(await call(client, CHAT, HELLO))
            strangers.append(await call(client, "/v1/requests/x/cancel", {}))
            wrong = await call(client, "/v1/models", authorization=f"Bearer {new_api_key()}")
            ours = [await call(client, path, authorization=f"Bearer {key}") for path in paths]
            health = await call(client, "/health")
    for reply in (*strangers, wrong):
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert [reply.status for reply in (*ours, health)] == [200] * 4


async def test_a_tenant_s_key_sees_no_metrics_which_name_others(nats_url: str, tmp_path: Path) -> None:
    tenant, operator = new_api_key(), new_api_key()
    entries = (
        ApiKey("web", "acme", hash_api_key(tenant)),
        ApiKey("prometheus", "rival", hash_api_key(operator), operator=True),
    )
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(map(describe_api_key, entries)))
    before = value("penstock_api_key_refusals_total", reason="permission_denied", tenant="acme")
    async with (
        gateway(nats_url, api_keys=str(file)) as running,
        http_client(running.http.address) as client,
    ):
        refused = await call(client, "/metrics", authorization=f"Bearer {tenant}")
        shown = await call(client, "/metrics", authorization=f"Bearer {operator}")
    assert (refused.status, refused.error["type"], refused.error["code"]) == (
        403,
        "permission_error",
        "operator_key_required",
    )
    assert "rival" not in refused.body
    assert "penstock_" not in refused.body
    assert "penstock keys new --operator" in refused.error["message"]
    assert shown.status == 200
    assert 'reason="permission_denied",tenant="acme"' in shown.body
    assert value("penstock_api_key_refusals_total", reason="permission_denied", tenant="acme") == before + 1


async def test_a_limit_of_a_key_is_a_429_by_its_name(nats_url: str, tmp_path: Path) -> None:
    key = new_api_key()
    file = tmp_path / "keys.toml"
    entry = describe_api_key(ApiKey("web", "acme", hash_api_key(key)))
    file.write_text(entry + "requests_per_min = 1\n")
    headers = {"authorization": f"Bearer {key}", "x_penstock_ttft_deadline_ms": "100"}
    async with (
        fleet(nats_url),
        gateway(nats_url, api_keys=str(file)) as running,
        http_client(running.http.address) as client,
    ):
        await call(client, CHAT, HELLO, **headers)
        reply = await call(client, CHAT, HELLO, **headers)
    assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
    assert int(reply.headers["Retry-After"]) > 1


# ---- who may call -----------------------------------------------------------------------------------------


async def test_no_page_of_another_origin_is_let_in_unless_it_is_named(nats_url: str) -> None:
    async with edge(nats_url) as here:
        page = await call(here.client, "/health", origin=ORIGIN)
        asking = await here.post(CHAT, HELLO, origin=ORIGIN)
        sandboxed = await here.post(CHAT, HELLO, origin="null")
        assert here.running.registry.audit().held == ()
    for reply in (page, asking, sandboxed):
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
        assert "http_cors_origins" in reply.error["message"]
        assert not [name for name in reply.headers if name.startswith("Access-Control")]


async def test_a_page_of_the_edge_itself_may_ask(nats_url: str) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        assert (await call(client, "/health", origin=f"http://{running.http.address}")).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("penstock.internal:8000", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1].evil.example", 403),
    ],
)
async def test_the_edge_of_one_machine_is_called_by_its_names_alone(
    nats_url: str, host: str, status: int
) -> None:
    async with (
        gateway(nats_url, http_hosts=("Penstock.internal",)) as running,
        http_client(running.http.address) as client,
    ):
        reply = await call(client, "/health", host=host)
    assert reply.status == status
    assert status == 200 or "http_hosts" in reply.error["message"]


@pytest.mark.parametrize(("hosts", "status"), [((), 200), (("localhost",), 403), (("*",), 200)])
async def test_an_edge_for_other_machines_is_called_by_any_name_unless_names_are_set(
    nats_url: str, hosts: tuple[str, ...], status: int
) -> None:
    async with gateway(nats_url, http_host="0.0.0.0", http_hosts=hosts) as running:
        port = running.http.address.rpartition(":")[2]
        async with http_client(f"127.0.0.1:{port}") as client:
            assert (await call(client, "/health", host="models.example")).status == status


@pytest.mark.thorough(
    but="/rerank- | /tokenize-text/plain | /v1/chat/completions-application/x-www-form-urlencoded | "
    "/v1/completions-multipart/form-data | /v1/embeddings-text/plain | /v1/responses-text/plain"
)
@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"],
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses", "/v1/embeddings", "/tokenize", "/rerank"])
async def test_a_body_that_does_not_say_that_it_is_json_is_a_415(nats_url: str, path: str, kind: str) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        reply = await call(client, path, b'{"prompt": "hello"}', content_type=kind)
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")
    assert "application/json" in reply.error["message"]


@pytest.mark.thorough(but="Application/JSON | application/json; charset=utf-8")
@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/ld+json"]
)
async def test_what_clients_call_json_is_taken(nats_url: str, kind: str) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        assert (await call(client, CHAT, b"[]", content_type=kind)).status == 400


@pytest.mark.parametrize("allowed", [ORIGIN, "*"])
async def test_a_named_origin_may_ask_before_and_then_read(nats_url: str, allowed: str) -> None:
    asks = {"access_control_request_method": "POST", "access_control_request_headers": "x-penstock-priority"}
    async with (
        gateway(nats_url, http_cors_origins=(allowed,)) as running,
        http_client(running.http.address) as client,
    ):
        before = await call(client, CHAT, method="OPTIONS", origin=ORIGIN, **asks)
        error = await call(client, CHAT, {}, origin=ORIGIN)
        other = await call(client, CHAT, method="OPTIONS", origin="https://other.example", **asks)
    assert before.status == 204
    assert before.headers["Access-Control-Allow-Methods"] == "POST"
    assert before.headers["Access-Control-Allow-Headers"] == "x-penstock-priority"
    assert (error.status, error.headers["Access-Control-Allow-Origin"]) == (400, ORIGIN)
    assert ("Access-Control-Allow-Origin" in other.headers) == (allowed == "*")


# ---- what a connection may take -----------------------------------------------------------------------


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Until the other side closes."""
    async with asyncio.timeout(TIMEOUT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_a_connection_that_does_not_say_what_it_wants_is_closed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.http.listener.HEAD_TIMEOUT_S", 0.2)
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        assert await all_of(reader) == b""


async def test_a_body_that_does_not_come_is_a_408(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.completions.call.BODY_TIMEOUT_S", 0.2)
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(POST + b"Content-Length: 50\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    assert head.startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(nats_url: str) -> None:
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        leave = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        writer.write(b"{}")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    assert leave.startswith(b"HTTP/1.1 100 ")
    assert head.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("header", [b"X: " + b"x" * 9000, b"\r\n".join(b"X%d: y" % n for n in range(100))])
async def test_a_head_over_the_limits_is_refused_without_a_traceback_in_the_log(
    nats_url: str, header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
        assert (await all_of(reader)).split(b" ")[1] == b"400"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: ,chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 6",
    ],
)
async def test_a_head_that_a_proxy_may_read_in_another_way_ends_its_connection(
    nats_url: str, framing: bytes
) -> None:
    """What follows it is nobody's request."""
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(POST + framing + b"\r\n\r\n0\r\n\r\n" + HEALTH % b"/health")
        answer = await all_of(reader)
    assert answer.split(b" ")[1] == b"400"
    assert answer.count(b"HTTP/1.") == 1


async def test_a_chunked_body_of_http_1_0_is_refused_and_named(nats_url: str) -> None:
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        answer = await all_of(reader)
    assert b"invalid_framing" in answer
    assert b"Content-Length" in answer


async def test_a_body_that_is_not_of_its_coding_is_a_400_without_a_traceback_in_the_log(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(POST + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
        answer = await all_of(reader)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"came broken" in answer
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_client_that_leaves_before_its_leave_to_send_is_no_bug(nats_url: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
            writer.write(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            writer.write_eof()
            await all_of(reader)
    assert not [line for line in logs if line["log_level"] == "error"]


async def test_a_body_that_comes_more_slowly_than_its_rate_is_a_408(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.http.completions.call.BODY_GRACE_S", 0.2)
    monkeypatch.setattr("services.gateway.http.completions.call.MIN_BODY_BYTES_PER_S", 1e9)
    async with gateway(nats_url) as running, connected(running.http.address) as (reader, writer):
        writer.write(POST + b"Content-Length: 500\r\n\r\n" + b"{" * 300)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    assert head.startswith(b"HTTP/1.1 408 ")


async def test_the_deadline_of_a_request_counts_from_its_head_on(nats_url: str) -> None:
    """It has passed when the body is there, so nothing is begun."""
    body = b'{"prompt": "hello", "penstock": {"deadline_ms": 200}}'
    async with (
        fleet(nats_url) as peers,
        gateway(nats_url) as running,
        connected(running.http.address) as (reader, writer),
    ):
        await running.knows("decode", 1)
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body))
        await writer.drain()
        await asyncio.sleep(0.3)  # longer than the deadline, however late the rest is
        writer.write(body)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        assert head.startswith(b"HTTP/1.1 504 ")
        assert not peers["tokenizer-0"].got


# ---- how many bytes of bodies ---------------------------------------------------------------------------


ROOM_BYTES = 1 << 20
HALF = ROOM_BYTES // 2


async def sending(
    here: AsyncExitStack, address: str, framing: bytes, come: int, key: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent so many bytes of a body."""
    reader, writer = await here.enter_async_context(connected(address))
    authorization = b"Authorization: Bearer %s\r\n" % key.encode() if key else b""
    writer.write(POST + authorization + framing + b"\r\n\r\n" + b" " * come)
    await writer.drain()
    return reader, writer


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)


async def held_bytes(running: Running, count: int) -> None:
    assert running.http._connections is not None
    router = running.http._respond.__self__  # type: ignore[attr-defined]  # the router's method
    await until(lambda: router._body_room.held_bytes == count)


async def test_bodies_of_all_connections_have_one_room_and_give_it_back(nats_url: str) -> None:
    """It takes what fits to the last byte; one more is refused, by what it says and by what it sends."""
    before = value("penstock_shed_total", hop="gateway", reason="bodies")
    options = {"http_max_body_bytes": ROOM_BYTES, "max_request_bytes": ROOM_BYTES}
    async with gateway(nats_url, **options) as running, AsyncExitStack() as here:
        address = running.http.address
        ends = [await sending(here, address, b"Content-Length: %d" % HALF, HALF - 1) for _ in range(2)]
        await held_bytes(running, ROOM_BYTES - 2)
        fits, _ = await sending(here, address, b"Content-Length: 2", 2)
        said, _ = await sending(here, address, b"Content-Length: 3", 0)
        sent, writer = await sending(here, address, b"Transfer-Encoding: chunked", 0)
        writer.write(b"3\r\n   \r\n")
        heads = [await head_of(reader) for reader in (fits, said, sent)]
        assert [head.split(b" ")[1] for head in heads] == [b"400", b"429", b"429"]
        assert all(b"\r\nRetry-After: 1\r\n" in head for head in heads[1:])
        for reader, writer in ends:
            writer.write(b"x")
            assert (await head_of(reader)).startswith(b"HTTP/1.1 400 ")
        await held_bytes(running, 0)
    assert value("penstock_shed_total", hop="gateway", reason="bodies") == before + 2


async def test_a_tenant_leaves_room_for_the_bodies_of_others(nats_url: str, tmp_path: Path) -> None:
    keys = {tenant: new_api_key() for tenant in ("acme", "rival")}
    file = tmp_path / "keys.toml"
    entries = [describe_api_key(ApiKey(tenant, tenant, hash_api_key(key))) for tenant, key in keys.items()]
    file.write_text("\n".join(entries))
    options = {"http_max_body_bytes": ROOM_BYTES, "max_request_bytes": HALF, "api_keys": str(file)}
    async with gateway(nats_url, **options) as running, AsyncExitStack() as here:
        address = running.http.address
        almost = (b"Content-Length: %d" % HALF, HALF - 1)
        await sending(here, address, *almost, key=keys["acme"])
        await held_bytes(running, HALF - 1)
        more, _ = await sending(here, address, b"Content-Length: 2", 1, key=keys["acme"])
        assert (await head_of(more)).startswith(b"HTTP/1.1 429 ")
        await sending(here, address, *almost, key=keys["rival"])
        await held_bytes(running, 2 * (HALF - 1))


# ---- how many connections --------------------------------------------------------------------------------


HEALTH = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def asked(address: str, request: bytes) -> bytes:
    """The status line of the answer on a connection of its own, empty for none."""
    async with connected(address) as (reader, writer):
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.readline(), TIMEOUT_S)
        except ConnectionResetError:
            return b""


@pytest.fixture
def no_room_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a request keep their places."""
    monkeypatch.setattr("services.gateway.http.listener.SETTLED_S", 3600.0)


@pytest.mark.usefixtures("no_room_is_made")
async def test_beyond_the_connections_of_clients_health_is_answered_and_nothing_else(nats_url: str) -> None:
    async with gateway(nats_url, http_max_connections=2) as running, AsyncExitStack() as held:
        for _ in range(2):
            _, writer = await held.enter_async_context(connected(running.http.address))
            writer.write(POST + b"Content-Length: 50\r\n\r\n{")
        for path in (b"/health", b"/healthz", b"/metrics"):
            assert (await asked(running.http.address, HEALTH % path)).split(b" ")[1] == b"200"
        assert (await asked(running.http.address, HEALTH % b"/ready")).split(b" ")[1] == b"503"
        assert (await asked(running.http.address, HEALTH % b"/v1/models")).split(b" ")[1] == b"429"


async def kept_open(held: AsyncExitStack, address: str) -> asyncio.StreamReader:
    """A connection that has been answered once."""
    reader, writer = await held.enter_async_context(connected(address))
    writer.write(HEALTH % b"/health")
    await asyncio.wait_for(reader.readuntil(b"ok\n"), TIMEOUT_S)
    return reader


async def test_who_has_had_no_request_for_the_longest_makes_room_for_the_next(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.http.listener.SETTLED_S", 0.0)
    closed_before = value("penstock_connections_closed_total", edge="http")
    async with gateway(nats_url, http_max_connections=3) as running, AsyncExitStack() as held:
        address = running.http.address
        busy, writer = await held.enter_async_context(connected(address))
        writer.write(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        await head_of(busy)
        first = await kept_open(held, address)
        second = await kept_open(held, address)
        assert (await asked(address, HEALTH % b"/v1/models")).split(b" ")[1] == b"200"
        assert await all_of(first) == b""
        assert not second.at_eof()
        writer.write(b"{}")
        assert (await head_of(busy)).startswith(b"HTTP/1.1 400 ")
    assert value("penstock_connections_closed_total", edge="http") == closed_before + 1


async def test_a_silent_connection_makes_room_too(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.listener.SETTLED_S", 0.0)
    async with (
        gateway(nats_url, http_max_connections=1) as running,
        connected(running.http.address) as (reader, _),
    ):
        assert (await asked(running.http.address, HEALTH % b"/v1/models")).split(b" ")[1] == b"200"
        assert await all_of(reader) == b""


@pytest.mark.usefixtures("no_room_is_made")
async def test_a_connection_that_was_just_answered_makes_no_room(nats_url: str) -> None:
    async with gateway(nats_url, http_max_connections=1) as running, AsyncExitStack() as held:
        reader = await kept_open(held, running.http.address)
        assert (await asked(running.http.address, HEALTH % b"/v1/models")).split(b" ")[1] == b"429"
        assert not reader.at_eof()


@pytest.mark.usefixtures("no_room_is_made")
async def test_a_connection_for_health_ends_with_its_answer(nats_url: str) -> None:
    async with (
        gateway(nats_url, http_max_connections=1) as running,
        connected(running.http.address),
        connected(running.http.address) as (reader, writer),
    ):
        writer.write(HEALTH % b"/health")
        assert (await all_of(reader)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("no_room_is_made")
async def test_silent_connections_beyond_the_limit_keep_nobody_from_health(nats_url: str) -> None:
    """They are more than the places for health, and the oldest of them gives way to each that comes."""
    async with gateway(nats_url, http_max_connections=1) as running, AsyncExitStack() as held:
        streams = [
            await held.enter_async_context(connected(running.http.address))
            for _ in range(1 + HEALTH_PLACES + 8)
        ]
        assert (await asked(running.http.address, HEALTH % b"/health")).startswith(b"HTTP/1.1 200 ")
        assert await all_of(streams[1][0]) == b""


async def test_a_place_is_given_back_when_its_connection_ends_without_a_word(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that ends before it has quite begun: then nobody hears of it."""
    monkeypatch.setattr("services.gateway.http.listener.HEAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr("services.gateway.http.listener.Place.abort", lambda _: None)
    async with gateway(nats_url) as running, connected(running.http.address):
        connections = running.http._connections
        assert connections is not None
        await until(lambda: len(connections._places) == 1)
        await until(lambda: not connections._places and not connections.listener._places)


async def test_a_connection_gives_its_place_back(nats_url: str) -> None:
    async with gateway(nats_url, http_max_connections=1) as running:
        for _ in range(3):
            await until(lambda: value("penstock_http_connections") == 0)
            line = await asked(running.http.address, HEALTH % b"/v1/models")
            assert line.startswith(b"HTTP/1.1 200 ")


async def test_an_empty_host_turns_the_edge_off(nats_url: str) -> None:
    async with gateway(nats_url, http_host="") as running:
        assert running.http.address == ""


# ---- TLS ----------------------------------------------------------------------------------------------


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


async def reaches(address: str, trusted: Certificate, own: Certificate | None = None) -> bool:
    context = ssl.create_default_context(cafile=str(trusted.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(f"https://{address}", connector=connector) as client:
        try:
            return (await call(client, "/health")).status == 200
        except aiohttp.ClientError:
            return False


@needs_openssl
async def test_https_shows_the_certificate_of_the_edge_and_a_renewed_one_from_then_on(
    nats_url: str, tmp_path: Path
) -> None:
    first, second = make_certificate(tmp_path / "first"), make_certificate(tmp_path / "second")
    used = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    for source, target in ((first.certificate, used.certificate), (first.key, used.key)):
        shutil.copy(source, target)
    async with gateway(nats_url, tls_cert=str(used.certificate), tls_key=str(used.key)) as running:
        address = running.http.address
        assert await reaches(address, first)
        assert not await reaches(address, second)
        for source, target in ((second.certificate, used.certificate), (second.key, used.key)):
            shutil.copy(source, target)
        await until(lambda: reaches(address, second))
        assert not await reaches(address, first)


@needs_openssl
async def test_with_a_client_ca_only_clients_with_a_certificate_of_it_come_in(
    nats_url: str, tmp_path: Path
) -> None:
    server, client, stranger = (make_certificate(tmp_path / name) for name in ("server", "client", "other"))
    options = {
        "tls_cert": str(server.certificate),
        "tls_key": str(server.key),
        "tls_client_ca": str(client.certificate),
    }
    async with gateway(nats_url, **options) as running:
        assert await reaches(running.http.address, server, client)
        assert not await reaches(running.http.address, server)
        assert not await reaches(running.http.address, server, stranger)


@needs_openssl
async def test_a_connection_counts_before_its_handshake(nats_url: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    tls = {"tls_cert": str(made.certificate), "tls_key": str(made.key)}
    async with gateway(nats_url, http_max_connections=2, **tls) as running, AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(connected(running.http.address))
        context = ssl.create_default_context(cafile=str(made.certificate))
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(f"https://{running.http.address}", connector=connector) as client:
            assert (await call(client, "/health")).status == 200
            assert (await call(client, "/v1/models")).status == 429


@needs_openssl
async def test_a_handshake_that_fails_leaves_nothing_behind(nats_url: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    async with gateway(nats_url, tls_cert=str(made.certificate), tls_key=str(made.key)) as running:
        for _ in range(3):
            async with connected(running.http.address) as (reader, writer):
                writer.write(b"GET /health HTTP/1.1\r\n\r\n")
                await all_of(reader)
        connections = running.http._connections
        assert connections is not None
        await until(lambda: not connections._places and not connections.listener._places)


async def test_a_handshake_that_does_not_come_is_given_up(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.http.listener.HEAD_TIMEOUT_S", 0.2)
    made = make_certificate(tmp_path)
    tls = {"tls_cert": str(made.certificate), "tls_key": str(made.key)}
    async with gateway(nats_url, **tls) as running:
        async with connected(running.http.address) as (reader, _):
            assert await all_of(reader) == b""
        await until(lambda: value("penstock_http_connections") == 0)
