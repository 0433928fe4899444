"""Several NATS servers as one bus: what the page on more than one machine counts on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.cli.fleet.secrets import CONFIG_NAME, CREDENTIALS_NAME, LISTEN, SERVER, write_fleet_secrets
from services.launcher.ports import free_ports
from shared.bus import Bus, Delivery
from shared.bus.credentials import load_credentials
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.messages import Cancel
from tests.support.wait import until

DECODE = inbox("decode", "decode-a")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two servers, each with the users that `penstock secrets new` makes."""

    servers: tuple[NatsServer, NatsServer]
    secrets: Path

    async def connect(self, role: str, server: NatsServer) -> Bus:
        credentials = load_credentials(str(self.secrets / role / CREDENTIALS_NAME))
        return await Bus.connect(server.url, name=role, credentials=credentials, sender=f"{role}-a")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    write_fleet_secrets(tmp_path)
    users = (tmp_path / SERVER / CONFIG_NAME).read_text().removeprefix(LISTEN)
    ports = free_ports("127.0.0.1", 2)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    first, second = (
        NatsServer(
            extra_config=f"{users}\nserver_name: server-{port}\n"
            f'cluster {{ name: fleet, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
        )
        for port in ports
    )
    try:
        await first.start()
        await second.start()
        yield Cluster((first, second), tmp_path)
    finally:
        await first.stop()
        await second.stop()


async def test_who_loses_its_server_goes_on_through_another(cluster: Cluster) -> None:
    """Also that the servers pass on what is said at one to who listens at the other."""
    got: list[str] = []

    def receive(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Cancel)
        got.append(delivery.message.reason)

    gateway = await cluster.connect("gateway", cluster.servers[0])
    decode = await cluster.connect("decode", cluster.servers[1])
    reconnected: list[None] = []
    gateway.on_reconnect(lambda: reconnected.append(None))
    try:
        await decode.serve(DECODE, receive)

        async def arrives(reason: str) -> bool:
            await gateway.publish(DECODE, Cancel(reason))
            return reason in got

        await until(lambda: arrives("across"))
        await cluster.servers[0].kill()
        await until(lambda: bool(reconnected))
        await until(lambda: arrives("after the loss"))
    finally:
        await gateway.close()
        await decode.close()
