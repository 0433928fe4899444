"""The gateway as a process: how it starts, refuses to start, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.launcher.processes.child import Child
from shared.bus.fleet import FleetView
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.degradation import DegradationLevel
from shared.files.api_key_file import ApiKey, KeyLimits, describe_api_key, hash_api_key, new_api_key
from shared.messages import AuditRequest, Envelope
from tests.integration.gateway_peers import GATEWAY, ask, fleet
from tests.support.client import generate
from tests.support.forked import SharedForker
from tests.support.wait import until

START_TIMEOUT_S = 60


@asynccontextmanager
async def process(nats_url: str, **options: str) -> AsyncIterator[Child]:
    environ = {**os.environ, "PENSTOCK_NATS_URL": nats_url, "PENSTOCK_INSTANCE": GATEWAY}
    options = {"http_port": "0", "local_prefill_tokens": "0"} | options  # every prompt to the prefill peer
    environ |= {f"PENSTOCK_GATEWAY_{name.upper()}": value for name, value in options.items()}
    child = await SharedForker("gateway").fork("services.gateway", environ)
    try:
        yield child
    finally:
        if child.process.returncode is None:
            child.process.send_signal(signal.SIGKILL)
        await child.process.wait()
        child.pipe.close()


async def event(child: Child, name: str) -> dict[str, object]:
    """The log line of `name`, once it comes."""
    async with asyncio.timeout(START_TIMEOUT_S):
        async for line in child.output:
            if line.startswith(b"{") and (entry := json.loads(line)).get("event") == name:
                return dict(entry)
    raise AssertionError(f"the process ended before it logged {name}")


async def last_words(child: Child) -> bytes:
    """What it still says until its end."""
    async with asyncio.timeout(START_TIMEOUT_S):
        said = await child.output.read()
        await child.process.wait()
    return said


def write_keys(folder: Path, text: str) -> Path:
    file = folder / "keys.toml"
    file.write_text(text)
    return file


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=START_TIMEOUT_S) as response:
        return str(response.read().decode())


async def test_it_serves_when_the_fleet_is_there_and_drains_on_sigterm(nats_url: str) -> None:
    async with fleet(nats_url) as peers, process(nats_url) as child:
        address = (await event(child, "grpc_listening"))["grpc"]
        await event(child, "ready")
        async with grpc.aio.insecure_channel(str(address)) as channel:
            call = asyncio.create_task(generate(rpc.InferenceStub(channel), ask("hello")))
            envelope, _ = await peers.placed()
            child.process.send_signal(signal.SIGTERM)
            await event(child, "draining")
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            assert (await call).outcome == "finished"
        assert await asyncio.wait_for(child.process.wait(), START_TIMEOUT_S) == 0


async def test_under_pressure_it_logs_its_level_once_and_tells_the_fleet(nats_url: str) -> None:
    view = FleetView()
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, process(nats_url) as child:
        await peers.add("prefill", queued_tokens=25_000, tokens_per_s=1000.0)
        await view.start(peers.bus)
        address = (await event(child, "grpc_listening"))["grpc"]
        await event(child, "ready")
        request = ask("hello")
        request.ttft_deadline_ms = 100_000
        async with grpc.aio.insecure_channel(str(address)) as channel:
            call = rpc.InferenceStub(channel).Generate(request, timeout=200.0)
            logged = await event(child, "degradation")

            def told() -> int:
                gateway = view.get("gateway", GATEWAY)
                return 0 if gateway is None else gateway.heartbeat.gateway.degradation

            await until(lambda: told() == DegradationLevel.SHORT_DRAFTS)
            call.cancel()
        await view.stop()
    assert (logged["was"], logged["now"], logged["pressure"]) == ("none", "short_drafts", 0.25)


async def test_a_wrong_setting_stops_it_with_exit_2_and_its_name(nats_url: str) -> None:
    async with process(nats_url, max_sessions="0") as child:
        errors = await last_words(child)
    assert child.process.returncode == 2
    assert b"MAX_SESSIONS" in errors


async def test_a_file_of_keys_that_cannot_be_used_stops_it_with_exit_2_and_its_line(
    nats_url: str, tmp_path: Path
) -> None:
    file = write_keys(tmp_path, "[[key]]\nname = 'x'\n")
    async with process(nats_url, api_keys=str(file)) as child:
        errors = await last_words(child)
    assert child.process.returncode == 2
    assert f"{file}: key 1 (line 1) has no tenant".encode() in errors


async def test_no_key_is_in_a_log_at_debug_in_a_metric_or_on_the_bus(nats_url: str, tmp_path: Path) -> None:
    key, wrong = new_api_key(), new_api_key()
    entry = ApiKey("web", "acme", hash_api_key(key), KeyLimits(concurrency=1))
    file = write_keys(tmp_path, describe_api_key(entry))
    async with fleet(nats_url) as peers, process(nats_url, api_keys=str(file), log_level="debug") as child:
        address = (await event(child, "grpc_listening"))["grpc"]
        metrics = (await event(child, "ready"))["metrics"]
        async with grpc.aio.insecure_channel(str(address)) as channel:
            stub = rpc.InferenceStub(channel)
            good = (("authorization", f"Bearer {key}"),)
            call = asyncio.create_task(generate(stub, ask("hello"), metadata=good))
            envelope, _ = await peers.placed()
            bad = (("authorization", f"Bearer {wrong}"),)
            refused = [
                await generate(stub, ask("hello"), metadata=good),
                await generate(stub, ask("hello"), metadata=bad),
                await generate(stub, ask("hello"), metadata=bad + good),
            ]
            subject, deadline = inbox("gateway", GATEWAY), Deadline.after(60)
            report = await peers.bus.ask(subject, AuditRequest(), Envelope(), deadline)
            shown = await asyncio.to_thread(page, f"http://{metrics}/metrics")
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            answer = await call
        child.process.send_signal(signal.SIGTERM)
        errors = await last_words(child)
    assert [one.outcome for one in refused] == ["shed", "failed", "failed"]
    assert b"request_refused" in errors
    assert b"request_ended" in errors
    assert 'tenant="acme"' in shown
    told = f"{errors!r}{report}{shown}{answer}{refused}{peers['tokenizer-0'].got}"
    for secret in (key, wrong):
        assert secret.removeprefix("psk_") not in told
        assert hash_api_key(secret).removeprefix("sha256:") not in told


async def test_a_running_gateway_follows_its_file_and_says_what_is_wrong_with_it(
    nats_url: str, tmp_path: Path
) -> None:
    old, new = (ApiKey(name, "acme", hash_api_key(name)) for name in ("old", "new"))
    file = write_keys(tmp_path, describe_api_key(old))
    async with fleet(nats_url), process(nats_url, api_keys=str(file)) as child:
        await event(child, "ready")
        write_keys(tmp_path, describe_api_key(old) * 2)
        said = await event(child, "api_keys_unusable")
        assert (said["level"], said["keys"]) == ("error", 1)
        assert "key 2 (line 5) has the name of key 1 (line 1)" in str(said["error"])
        write_keys(tmp_path, describe_api_key(old) + describe_api_key(new))
        assert (await event(child, "api_keys_loaded"))["keys"] == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_keys_that_travel_in_clear_beyond_this_machine_are_warned_of(
    nats_url: str, tmp_path: Path, host: str
) -> None:
    entry = ApiKey("web", "acme", hash_api_key(new_api_key()))
    file = write_keys(tmp_path, describe_api_key(entry))
    async with fleet(nats_url), process(nats_url, api_keys=str(file), grpc_host=host) as child:
        await event(child, "grpc_listening")
        child.process.send_signal(signal.SIGTERM)
        errors = await last_words(child)
    assert (b"api_keys_in_clear" in errors) == (host == "0.0.0.0")


async def test_a_certificate_without_its_key_stops_it_with_exit_2(nats_url: str, tmp_path: Path) -> None:
    async with process(nats_url, tls_cert=str(tmp_path / "cert.pem")) as child:
        errors = await last_words(child)
    assert child.process.returncode == 2
    assert b"tls_cert of the gateway is set and tls_key is not" in errors


@pytest.mark.parametrize("setting", ["grpc_port", "http_port"])
async def test_a_taken_port_stops_it_with_a_sentence(nats_url: str, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with process(nats_url, **{setting: str(port)}) as child:
            errors = await last_words(child)
    assert child.process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: free it or set another {setting}".encode() in errors
