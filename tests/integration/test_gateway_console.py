"""The console's pages of a gateway before a scripted fleet: who sees what, and what strangers may not do."""

from __future__ import annotations

import asyncio
import gzip
import re
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from services.gateway.http.console.site_files import POLICY_PARTS, site_files
from services.gateway.scope.outcome import Outcome
from services.gateway.session.console_report import MAX_SHOWN_LATEST, MAX_SHOWN_LIVE
from services.gateway.tracing.ended_requests import MAX_ENDED_REQUESTS
from shared.bus.subjects import inbox
from shared.bus.wire_schema import schema_digest
from shared.deadline import Deadline
from shared.errors import Unavailable
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from shared.messages import ConsoleReport, ConsoleRequest
from tests.integration.gateway_peers import GATEWAY, MODEL
from tests.integration.http_edge import CHAT, HELLO, edge
from tests.support.http import call, http_client
from tests.support.records import make_record
from tests.support.wait import until

FOR_OPERATORS = ("/console/pipeline", "/console/requests")
FOR_KEYS = ("/console/access", "/version")
FOR_ANYBODY = ("/", "/docs", "/openapi.json", "/console/files/penstock.svg")


def keys_of(folder: Path, *, operator: str, tenant: str) -> str:
    keys = (
        ApiKey("chief", "ops", hash_api_key(operator), operator=True),
        ApiKey("web", "acme", hash_api_key(tenant)),
    )
    file = folder / "keys.toml"
    file.write_text("".join(map(describe_api_key, keys)))
    return str(file)


async def test_what_tells_of_all_tenants_is_for_operators(nats_url: str, tmp_path: Path) -> None:
    operator, tenant = new_api_key(), new_api_key()
    keys = keys_of(tmp_path, operator=operator, tenant=tenant)
    async with edge(nats_url, api_keys=keys) as here:

        async def statuses(path: str) -> list[int]:
            headers: tuple[dict[str, str], ...] = (
                {},
                {"authorization": f"Bearer {tenant}"},
                {"authorization": f"Bearer {operator}"},
            )
            return [(await call(here.client, path, **each)).status for each in headers]

        for paths, expected in (
            (FOR_OPERATORS, [401, 403, 200]),
            (FOR_KEYS, [401, 200, 200]),
            (FOR_ANYBODY, [200, 200, 200]),
        ):
            for path in paths:
                assert await statuses(path) == expected, path
        access = await call(here.client, "/console/access", authorization=f"Bearer {tenant}")
        document = await call(here.client, "/openapi.json")
    assert access.body == {"keys": True, "tenant": "acme", "operator": False}
    assert document.body["paths"]["/console/pipeline"]["get"]["security"] == [{"apiKey": []}]
    assert "security" not in document.body["paths"]["/"]["get"]


@pytest.mark.thorough(but="/ | /console/requests | /openapi.json")
@pytest.mark.parametrize("path", [*FOR_OPERATORS, *FOR_KEYS, *FOR_ANYBODY])
async def test_strangers_pages_and_other_names_of_the_host_get_nothing(nats_url: str, path: str) -> None:
    async with edge(nats_url) as here:
        foreign = await call(here.client, path, origin="https://evil.example")
        rebound = await call(here.client, path, host="evil.example")
        posted = await call(here.client, path, b"{}", content_type="text/plain")
    assert [reply.status for reply in (foreign, rebound, posted)] == [403, 403, 405]
    assert "access-control-allow-origin" not in foreign.headers


async def test_pages_have_a_policy_that_lets_in_nothing_and_files_that_keep_to_it(nats_url: str) -> None:
    async with edge(nats_url) as here:
        paths = ("/", "/docs", "/console/files/penstock.svg", "/console/access")
        replies = [await call(here.client, path) for path in paths]
        hidden = [await call(here.client, f"/console/files/{name}") for name in ("console.js", "base.css")]
    for reply in replies:
        for rule in POLICY_PARTS:
            assert rule in reply.headers["content-security-policy"].split("; ")
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert [reply.status for reply in hidden] == [404, 404]
    for name, text in site_files().items():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text), name
        for named in re.findall(r"/console/files/([\w.]+)", text):
            assert named in site_files(), name
        for imported in re.findall(r'from "\./([\w.]+)"', text):
            assert imported in site_files(), name


async def test_the_pipeline_shows_instances_and_the_last_requests(nats_url: str) -> None:
    async with edge(nats_url) as here:
        begun = here.begin(CHAT, HELLO)
        envelope, prefill = await here.peers.placed()
        running = await call(here.client, "/console/requests")
        assert running.body["live"] == 1
        assert [request["id"] for request in running.body["running"]] == [envelope.request_id]
        await here.peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
        assert (await begun).status == 200

        async def ended() -> bool:
            shown = (await call(here.client, "/console/requests")).body
            return shown["live"] == 0 and len(shown["ended"]) == 1

        await until(ended)
        (request,) = (await call(here.client, "/console/requests")).body["ended"]
        shown = (await call(here.client, "/console/pipeline")).body
    assert (request["id"], request["outcome"], request["tokens"]) == (envelope.request_id, "finished", 2)
    assert sum(phase["duration_us"] for phase in request["phases"]) == request["total_us"]
    assert {"role": "prefill", "instance": "prefill-0"} in request["route"]
    found = {instance["instance"]: instance for instance in shown["instances"]}
    assert {"tokenizer-0", "prefill-0", "decode-0", "detokenizer-0"} <= set(found)
    assert found["decode-0"]["engine"]["kv_blocks"] == 1000
    assert shown["latency"]["windows"][0]["outcomes"] == {"finished": 1}
    assert shown["latency"]["windows"][0]["ttft"]["count"] == 1


async def test_other_gateways_requests_and_rates_are_shown_and_a_silent_one_is_named(nats_url: str) -> None:
    async with edge(nats_url) as here:
        other, mute = [await here.peers.add("gateway", number) for number in (1, 2)]
        here.running.context.record_end(make_record(request_id="ours"), Outcome.finished("stop"))
        deadline = Deadline.after(60)
        envelope = here.peers.bus.envelope(deadline=deadline)
        report = await here.peers.bus.ask(inbox("gateway", GATEWAY), ConsoleRequest(), envelope, deadline)
        assert isinstance(report, ConsoleReport)
        theirs = replace(report, live=3, ended=tuple(replace(row, id="theirs") for row in report.ended))
        other.answers, mute.answers = lambda _: theirs, lambda _: None
        await here.running.knows("gateway", 2)
        requests = (await call(here.client, "/console/requests")).body
        pipeline = (await call(here.client, "/console/pipeline")).body
    assert {request["id"] for request in requests["ended"]} == {"ours", "theirs"}
    assert (requests["live"], requests["silent"]) == (3, ["gateway-2"])
    assert pipeline["latency"]["windows"][1]["outcomes"] == {"finished": 2}


@pytest.mark.thorough
async def test_so_many_running_requests_are_shown_and_all_are_counted(nats_url: str) -> None:
    async with edge(nats_url) as here:
        calls = [here.begin(CHAT, HELLO) for _ in range(MAX_SHOWN_LIVE + 1)]
        await until(lambda: here.running.registry.live_count == MAX_SHOWN_LIVE + 1)
        shown = (await call(here.client, "/console/requests")).body
        for each in calls:
            each.cancel()
        await asyncio.wait(calls)
        await here.idle()
    assert (shown["live"], len(shown["running"])) == (MAX_SHOWN_LIVE + 1, MAX_SHOWN_LIVE)


async def test_a_flood_of_requests_hides_neither_the_slow_nor_the_failed_ones(nats_url: str) -> None:
    lost = Outcome.of(Unavailable("no decode worker is left", hop="decode"))
    async with edge(nats_url) as here:
        context = here.running.context
        context.record_end(
            make_record(request_id="slow", ttft_us=9_000_000, total_us=9_100_000), Outcome.finished("stop")
        )
        failure = make_record(request_id="failed", outcome="failed", finish="", error=lost.error.code)  # type: ignore[union-attr]  # it has one
        context.record_end(failure, lost)
        for number in range(2 * MAX_ENDED_REQUESTS):
            context.ended_requests.add(make_record(request_id=f"other-{number}"))
        shown = (await call(here.client, "/console/requests")).body["ended"]
    views = {request["id"]: request["views"] for request in shown}
    assert views["slow"] == ["slow_start", "slow"]
    assert views["failed"] == ["failed"]
    assert sum("latest" in each for each in views.values()) == MAX_SHOWN_LATEST


async def test_the_version_has_the_digest_of_the_bus_and_what_is_served(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await call(here.client, "/version")
    assert reply.body["protocol"] == f"{schema_digest():08x}"
    assert reply.body["models"] == [MODEL]
    assert re.fullmatch(r"\d+\.\d+.*", reply.body["version"])


async def test_a_head_has_the_headers_alone(nats_url: str) -> None:
    async with edge(nats_url) as here, http_client(here.running.http.address) as client:
        reply = await call(client, "/", method="HEAD")
    assert (reply.status, reply.body) == (200, "")


@pytest.mark.thorough(but="/")
@pytest.mark.parametrize("path", ["/", "/docs", "/console/files/penstock.svg"])
async def test_a_page_is_compressed_for_who_takes_that_and_not_sent_again(nats_url: str, path: str) -> None:
    async with edge(nats_url) as here, aiohttp.ClientSession(auto_decompress=False) as client:
        url = f"http://{here.running.http.address}{path}"
        answers = {}
        for coding in ("gzip, br", "gzip;q=0", "identity", "GZIP;q=0.5"):
            async with client.get(url, headers={"Accept-Encoding": coding}) as response:
                answers[coding] = await response.read(), response.headers
        tag = answers["identity"][1]["ETag"]
        known = []
        for told in (tag, f'"other", {tag.removeprefix("W/")}', '"other"'):
            async with client.get(url, headers={"If-None-Match": told}) as response:
                known.append((response.status, len(await response.read()) > 0))
    plain = answers["identity"][0]
    assert answers["gzip;q=0"][0] == plain
    for coding in ("gzip, br", "GZIP;q=0.5"):
        body, headers = answers[coding]
        assert (headers["Content-Encoding"], headers["Vary"], headers["ETag"]) == (
            "gzip",
            "Accept-Encoding",
            tag,
        )
        assert gzip.decompress(body) == plain
    assert known == [(304, False), (304, False), (200, True)]
