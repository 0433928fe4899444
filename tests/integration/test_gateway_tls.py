"""TLS of the gRPC edge with real handshakes, and certificates that are renewed while it runs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.micro.edge_clients import GrpcClient, HttpClient, ask_in_thread
from services.gateway.config import GatewayConfig
from services.gateway.edge_certificate import EdgeCertificate, is_loopback
from shared.config.fields import ConfigError
from tests.integration.gateway_peers import Running, ask, fleet, gateway
from tests.support.certificate import Certificate, make_certificate
from tests.support.client import generate
from tests.support.metric import value

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

HANDSHAKE_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make_certificate(folder / name) for name in ("first", "second", "client", "stranger")}


def files(certificate: Certificate) -> dict[str, object]:
    return {"tls_cert": str(certificate.certificate), "tls_key": str(certificate.key)}


def credentials(trusted: Certificate, own: Certificate | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        trusted.certificate.read_bytes(),
        None if own is None else own.key.read_bytes(),
        None if own is None else own.certificate.read_bytes(),
    )


@asynccontextmanager
async def connected(
    running: Running, channel_credentials: grpc.ChannelCredentials
) -> AsyncIterator[grpc.aio.Channel]:
    # A pool of its own: gRPC shares connections of channels that look alike.
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.secure_channel(
        running.server.address, channel_credentials, options=options
    ) as channel:
        yield channel


async def reaches(running: Running, channel_credentials: grpc.ChannelCredentials) -> bool:
    """Whether a new connection comes to stand and carries a call."""
    async with connected(running, channel_credentials) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        try:
            await health.Check(health_pb2.HealthCheckRequest(), timeout=HANDSHAKE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
    return True


async def test_a_stream_comes_over_tls_to_who_trusts_the_certificate(
    nats_url: str, made: dict[str, Certificate]
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, **files(made["first"])) as running:
        async with connected(running, credentials(made["first"])) as channel:
            call = asyncio.create_task(generate(rpc.InferenceStub(channel), ask("hello")))
            envelope, _ = await peers.placed()
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            answer = await call
        assert not await reaches(running, credentials(made["stranger"]))
        plain = await generate(running.stub, ask("hello"))
    assert (answer.outcome, answer.text) == ("finished", "a")
    assert plain.status is grpc.StatusCode.UNAVAILABLE


async def test_with_a_client_ca_only_clients_with_a_certificate_of_it_come_in(
    nats_url: str, made: dict[str, Certificate]
) -> None:
    options = files(made["first"]) | {"tls_client_ca": str(made["client"].certificate)}
    async with gateway(nats_url, **options) as running:
        assert await reaches(running, credentials(made["first"], made["client"]))
        assert not await reaches(running, credentials(made["first"]))
        assert not await reaches(running, credentials(made["first"], made["stranger"]))


def put(source: Path, target: Path) -> None:
    new = target.with_suffix(".new")
    shutil.copy(source, new)
    new.replace(target)


def copied(certificate: Certificate, folder: Path) -> Certificate:
    copy = Certificate(folder / "certificate.pem", folder / "key.pem")
    put(certificate.certificate, copy.certificate)
    put(certificate.key, copy.key)
    return copy


async def test_a_renewed_certificate_counts_from_the_next_connection_on(
    nats_url: str, made: dict[str, Certificate], tmp_path: Path
) -> None:
    used = copied(made["first"], tmp_path)
    async with (
        gateway(nats_url, **files(used)) as running,
        connected(running, credentials(made["first"])) as before,
    ):
        await before.channel_ready()
        copied(made["second"], tmp_path)
        assert await reaches(running, credentials(made["second"]))
        assert not await reaches(running, credentials(made["first"]))
        await health_pb2_grpc.HealthStub(before).Check(health_pb2.HealthCheckRequest())


async def test_while_only_one_of_the_two_files_is_new_the_old_pair_is_in_force(
    nats_url: str, made: dict[str, Certificate], tmp_path: Path
) -> None:
    used = copied(made["first"], tmp_path)
    async with gateway(nats_url, **files(used)) as running:
        put(made["second"].certificate, used.certificate)
        assert await reaches(running, credentials(made["first"]))
        assert value("penstock_tls_stale") == 1
        put(made["second"].key, used.key)
        assert await reaches(running, credentials(made["second"]))
        assert value("penstock_tls_stale") == 0


def refusal(config: GatewayConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        EdgeCertificate.of(config)
    return str(caught.value)


@pytest.mark.parametrize(
    "given", [("tls_cert",), ("tls_key",), ("tls_client_ca",), ("tls_cert", "tls_client_ca")]
)
def test_half_a_configuration_is_refused_with_what_is_missing(given: tuple[str, ...]) -> None:
    sentence = refusal(GatewayConfig(**dict.fromkeys(given, "file")))  # type: ignore[arg-type]  # fields
    assert f"{' and '.join(given)} of the gateway is set and" in sentence
    assert "set tls_cert and tls_key" in sentence


def test_without_any_file_there_is_no_tls() -> None:
    assert EdgeCertificate.of(GatewayConfig()) is None


def test_files_that_make_no_certificate_are_refused_with_their_names(
    made: dict[str, Certificate], tmp_path: Path
) -> None:
    first, missing, garbage = made["first"], tmp_path / "missing.pem", tmp_path / "garbage.pem"
    garbage.write_bytes(b"\x00\xff not PEM")
    locked = tmp_path / "locked.pem"
    command = [
        "openssl",
        "pkey",
        "-in",
        str(first.key),
        "-aes256",
        "-passout",
        "pass:secret",
        "-out",
        str(locked),
    ]
    subprocess.run(command, check=True, capture_output=True)
    good = GatewayConfig(tls_cert=str(first.certificate), tls_key=str(first.key))
    assert EdgeCertificate.of(good) is not None
    for changes, words in (
        ({"tls_cert": str(missing)}, f"tls_cert {missing} cannot be read"),
        ({"tls_key": str(tmp_path)}, f"tls_key {tmp_path} cannot be read"),
        ({"tls_cert": str(garbage)}, f"tls_cert {garbage} and tls_key {first.key} are no certificate"),
        ({"tls_key": str(garbage)}, f"tls_key {garbage} are no certificate and its key"),
        ({"tls_key": str(made["second"].key)}, "are no certificate and its key"),
        ({"tls_key": str(locked)}, "without a passphrase"),
        ({"tls_client_ca": str(garbage)}, f"tls_client_ca {garbage} holds no certificates"),
        ({"tls_client_ca": str(missing)}, f"tls_client_ca {missing} cannot be read"),
    ):
        assert words in refusal(replace(good, **changes))  # type: ignore[arg-type]  # fields of it


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "")),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


async def test_gateways_share_a_port_over_tls_too(nats_url: str, made: dict[str, Certificate]) -> None:
    shared = {**files(made["first"]), "share_ports": True}
    async with fleet(nats_url), AsyncExitStack() as first_alone:
        first = await first_alone.enter_async_context(gateway(nats_url, **shared))
        ports = {
            "grpc_port": int(first.server.address.rpartition(":")[2]),
            "http_port": int(first.http.address.rpartition(":")[2]),
        }
        async with gateway(nats_url, **shared, **ports) as second:
            assert (second.server.address, second.http.address) == (first.server.address, first.http.address)
            await first_alone.aclose()
            assert await reaches(second, credentials(made["first"]))


async def test_a_tls_session_of_the_http_edge_is_gone_on_with_and_a_connection_is_kept(
    nats_url: str, made: dict[str, Certificate]
) -> None:
    certificate = made["first"]
    async with fleet(nats_url), gateway(nats_url, **files(certificate)) as running:
        host, _, port = running.http.address.rpartition(":")
        address = host, int(port)
        asks = 3
        for resumes, keeps, resumed in ((False, False, 0), (True, False, asks - 1), (True, True, 0)):
            client = HttpClient(address, certificate.certificate, resumes=resumes, keeps=keeps)
            await ask_in_thread(client, asks)
            client.close()
            assert client.resumed == resumed


async def test_a_channel_of_the_grpc_edge_is_kept(nats_url: str, made: dict[str, Certificate]) -> None:
    certificate = made["first"]
    async with fleet(nats_url), gateway(nats_url, **files(certificate)) as running:
        for keeps in (False, True):
            client = GrpcClient(running.server.address, certificate.certificate, keeps=keeps)
            await client.ask()
            await client.ask()
            await client.close()
