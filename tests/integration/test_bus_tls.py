"""TLS of the bus over a real nats-server, with certificates made here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.bus import Bus, Delivery, connection
from shared.bus.bulk import BulkConnection
from shared.bus.connection import FIRST_CONNECT_S
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.errors import InvalidRequest, Unavailable
from shared.messages import Cancel
from tests.support.certificate import Authority, Certificate, make_certificate
from tests.support.wait import until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

DECODE = inbox("decode", "decode-0")
AUTHORIZATION = "authorization { user: u, password: p }"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
async def server(certificate: Certificate) -> AsyncIterator[NatsServer]:
    server = NatsServer(extra_config=f"{certificate.server_config}\n{AUTHORIZATION}")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def trusted(certificate: Certificate) -> Credentials:
    return Credentials("u", "p", str(certificate.certificate))


class Sink:
    """Takes the bodies of one subject into `memory`."""

    header_bytes = 1

    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(nbytes)
        self.finished = 0

    def open(self, header: bytes, body_bytes: int) -> list[memoryview]:
        del header
        return [memoryview(self.memory)[:body_bytes]]

    def done(self) -> None:
        self.finished += 1

    def lost(self) -> None:
        pass


async def test_messages_pass_and_the_connection_comes_back(server: NatsServer, trusted: Credentials) -> None:
    got: list[Delivery] = []
    bus = await Bus.connect(server.url, name="tls", credentials=trusted)
    try:
        await bus.serve(DECODE, got.append)
        await bus.publish(DECODE, Cancel("stop"))
        await until(lambda: len(got) == 1)
        await server.kill()
        await until(lambda: not bus.connected)
        await server.start()
        await until(lambda: bus.connected)
        await bus.publish(DECODE, Cancel("stop"))
        await until(lambda: len(got) == 2)
    finally:
        await bus.close()


async def test_chunks_land_where_the_sink_says(server: NatsServer, trusted: Credentials) -> None:
    body = bytes(range(256)) * 2048
    sink = Sink(len(body))
    receiver = await BulkConnection.connect(server.url, name="receiver", credentials=trusted)
    sender = await BulkConnection.connect(server.url, name="sender", credentials=trusted)
    try:
        await receiver.serve("penstock.kv.decode-0.1", sink)
        for _ in range(8):
            await sender.send("penstock.kv.decode-0.1", b"h", [memoryview(body)])
        await until(lambda: sink.finished == 8)
        assert sink.memory == body
    finally:
        await sender.close()
        await receiver.close()


async def refused(url: str, credentials: Credentials | None) -> set[str]:
    """What both kinds of connection say, well before they would give up on a server that is not there."""
    sentences = set()
    async with asyncio.timeout(FIRST_CONNECT_S / 2):
        with pytest.raises(Unavailable) as caught:
            await Bus.connect(url, name="careful", credentials=credentials)
        sentences.add(str(caught.value))
        with pytest.raises(Unavailable) as caught:
            await BulkConnection.connect(url, name="careful", credentials=credentials)
        sentences.add(str(caught.value))
    return sentences


async def test_a_server_with_another_certificate_is_not_trusted(server: NatsServer, tmp_path: Path) -> None:
    other = make_certificate(tmp_path)
    (sentence,) = await refused(server.url, Credentials("u", "p", str(other.certificate)))
    assert "cannot be trusted" in sentence
    assert "certificate verify failed" in sentence


async def test_a_server_that_the_system_does_not_know_is_not_trusted(server: NatsServer) -> None:
    (sentence,) = await refused(server.url.replace("nats://", "tls://"), Credentials("u", "p"))
    assert "certificate verify failed" in sentence


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_a_server_without_tls_never_hears_a_password_that_is_meant_for_one_with_it(
    scheme: str, trusted: Credentials
) -> None:
    heard = bytearray()

    async def eavesdrop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n'
        )
        while data := await reader.read(4096):
            heard.extend(data)
        writer.close()

    listener = await asyncio.start_server(eavesdrop, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        credentials = trusted if scheme == "nats" else Credentials("u", "p")
        (sentence,) = await refused(f"{scheme}://127.0.0.1:{port}", credentials)
    assert "it offers no TLS" in sentence
    assert heard == b""


# ---- an authority that signs for the server and for its clients --------------------------------------


@dataclass(frozen=True, slots=True)
class Signed:
    """Certificates that an authority of one's own has signed: for the server, and for a client."""

    ca: str
    server: Certificate
    client: Certificate

    def config(self, *more: str) -> str:
        lines = (f'cert_file: "{self.server.certificate}"', f'key_file: "{self.server.key}"', *more)
        return f"tls {{ {', '.join(lines)} }}\n{AUTHORIZATION}"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    folder = tmp_path_factory.mktemp("authority")
    authority = Authority(make_certificate(folder / "ca"))
    server = authority.sign(folder / "server", "nats", "IP:127.0.0.1")
    return Signed(str(authority.own.certificate), server, authority.sign(folder / "client", "decode-0"))


async def test_a_server_that_wants_to_see_a_certificate_is_shown_that_of_the_file(
    signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_CONNECT_S", 2.0)
    server = NatsServer(extra_config=signed.config(f'ca_file: "{signed.ca}"', "verify: true"))
    await server.start()
    own, none = tmp_path / "own.toml", Credentials("u", "p", signed.ca)
    Credentials("u", "p", signed.ca, str(signed.client.certificate), str(signed.client.key)).write(own)
    try:
        bus = await Bus.connect(server.url, name="shown", credentials=load_credentials(str(own)))
        bulk = await BulkConnection.connect(server.url, name="shown", credentials=load_credentials(str(own)))
        await bulk.close()
        await bus.close()
        with pytest.raises(Unavailable):
            await Bus.connect(server.url, name="bare", credentials=none)
    finally:
        await server.stop()


async def test_a_certificate_of_another_authority_is_trusted_when_the_file_names_that_one(
    signed: Signed, tmp_path: Path
) -> None:
    """The server is restarted with it while we are connected."""
    own = tmp_path / "own.toml"
    Credentials("u", "p", signed.ca).write(own)
    first = NatsServer(extra_config=signed.config())
    await first.start()
    other = make_certificate(tmp_path / "other")
    second = NatsServer(port=first.port, extra_config=f"{other.server_config}\n{AUTHORIZATION}")
    bus = await Bus.connect(first.url, name="tls", credentials=load_credentials(str(own)))
    try:
        await first.kill()
        await second.start()
        await until(lambda: bus._connection.refusals._since_s is not None)
        assert not bus.connected
        Credentials("u", "p", str(other.certificate)).write(own)
        await until(lambda: bus.connected)
    finally:
        await bus.close()
        await first.stop()
        await second.stop()


async def test_certificates_of_our_own_that_cannot_be_used_are_named(signed: Signed, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    Credentials("u", "p", signed.ca, str(signed.client.certificate), str(signed.server.key)).write(own)
    with pytest.raises(InvalidRequest, match=r"decode-0\.pem and its key .*nats\.key cannot be used"):
        load_credentials(str(own))
