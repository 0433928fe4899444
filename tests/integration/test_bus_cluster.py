"""Several NATS servers as one bus: what the page on more than one machine counts on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.cli.fleet.secrets import CONFIG_NAME, CREDENTIALS_NAME, LISTEN, SERVER, write_fleet_secrets
from services.launcher.network.ports import free_ports
from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.subjects import inbox
from shared.errors import Unavailable
from shared.messages import Cancel
from tests.support.nats_cluster import NatsCluster
from tests.support.wait import until

DECODE = inbox("decode", "decode-a")
CHUNK = memoryview(bytes(1 << 19))
HELD_CHUNKS = 40
"""More than the sockets between a client and a server that hangs have room for."""
NOBODY_THERE = "nats://127.0.0.1:1"


@dataclass(slots=True)
class Peers:
    """A gateway and what it says to a decode worker, each at a server of the cluster."""

    cluster: NatsCluster
    secrets: Path
    buses: dict[str, Bus] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    def credentials(self, role: str) -> Credentials | None:
        return load_credentials(str(self.secrets / role / CREDENTIALS_NAME))

    async def at(self, gateway: int, decode: int) -> None:
        """Connect both; they learn of the other servers there."""
        for role, number in (("gateway", gateway), ("decode", decode)):
            self.buses[role] = await Bus.connect(
                self.cluster.servers[number].url,
                name=role,
                credentials=self.credentials(role),
                sender=f"{role}-a",
            )

        def receive(delivery: Delivery) -> None:
            assert isinstance(delivery.message, Cancel)
            self.heard.append(delivery.message.reason)

        await self.buses["decode"].serve(DECODE, receive)

    def server_of(self, role: str) -> int:
        """Return the number of the server that it is connected to, -1 for none."""
        url = self.buses[role]._connection.client.connected_url
        ports = [server.port for server in self.cluster.servers]
        return ports.index(url.port) if url is not None and url.port is not None else -1

    async def hear(self, what: str) -> None:
        """Wait until the worker hears what the gateway says from now on."""

        async def arrives() -> bool:
            with contextlib.suppress(Unavailable):
                await self.buses["gateway"].publish(DECODE, Cancel(what))
            return what in self.heard

        await until(arrives)


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Peers]:
    """At three servers, each with the users that `penstock secrets new` makes."""
    write_fleet_secrets(tmp_path)
    users = (tmp_path / SERVER / CONFIG_NAME).read_text().removeprefix(LISTEN)
    async with NatsCluster(users=users).running() as cluster:
        await cluster.until_whole()
        peers = Peers(cluster, tmp_path)
        yield peers
        for bus in peers.buses.values():
            await bus.close()


async def test_who_loses_its_server_goes_on_through_another(peers: Peers) -> None:
    """Also that the servers pass on what is said at one to who listens at the other."""
    await peers.at(0, 1)
    await peers.hear("across")
    await peers.cluster.servers[0].kill()
    await until(lambda: peers.buses["gateway"].reconnects)
    await peers.hear("after the loss")


@pytest.mark.thorough
async def test_a_server_of_several_that_is_not_there_keeps_nobody_from_starting(peers: Peers) -> None:
    url = ",".join([NOBODY_THERE, peers.cluster.url, f"nats://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"])
    bus = await Bus.connect(url, name="gateway", credentials=peers.credentials("gateway"))
    await bus.close()


async def test_a_server_that_hangs_is_left_while_it_hangs(peers: Peers) -> None:
    await peers.at(0, 1)
    with peers.cluster.servers[0].paused():
        await until(lambda: peers.buses["gateway"].reconnects)
        assert peers.server_of("gateway") > 0
        await peers.hear("while it hangs")


@pytest.mark.thorough
async def test_bytes_that_a_server_does_not_take_keep_nobody_at_it(peers: Peers) -> None:
    bulk = await BulkConnection.connect(
        peers.cluster.servers[0].url, name="prefill", credentials=peers.credentials("prefill")
    )
    back = asyncio.Event()
    bulk.on_reconnect(back.set)

    async def fill() -> None:
        with contextlib.suppress(Unavailable):
            for _ in range(HELD_CHUNKS):
                await bulk.send("penstock.nobody", b"", [CHUNK])

    try:
        with peers.cluster.servers[0].paused():
            filling = asyncio.create_task(fill())
            async with asyncio.timeout(20):
                await back.wait()
            await filling
    finally:
        await bulk.close()


@pytest.mark.thorough(but="False")
@pytest.mark.parametrize("silently", [False, True])
async def test_a_server_that_has_lost_the_others_is_left(peers: Peers, silently: bool) -> None:
    await peers.at(0, 1)
    peers.cluster.cut_off(0, silently=silently)
    await until(lambda: peers.server_of("gateway") > 0, timeout_s=60)
    await peers.hear("past the cut")
    assert peers.server_of("decode") == 1  # the larger part stays where it is


@pytest.mark.thorough
async def test_who_is_at_the_last_server_stays_there(peers: Peers) -> None:
    await peers.at(0, 0)
    for number in (1, 2):
        await peers.cluster.servers[number].kill()
    watch = peers.buses["gateway"]._connection.client._cluster
    await until(lambda: watch.is_cut_off)
    await peers.hear("alone")
    assert peers.buses["gateway"].reconnects == 0


async def test_who_is_put_out_comes_back_to_the_server_that_knows_the_new_password(peers: Peers) -> None:
    await peers.at(0, 1)
    known = peers.credentials("gateway")
    assert known is not None
    Credentials(known.user, "renewed").write(Path(known.file))
    peers.cluster.servers[0].reload(known.password, "renewed")
    await until(lambda: peers.buses["gateway"].reconnects)
    assert peers.server_of("gateway") == 0
    await peers.hear("with the new password")


@pytest.mark.thorough
async def test_a_password_that_one_server_does_not_know_yet_is_shown_to_the_others(peers: Peers) -> None:
    known = peers.credentials("gateway")
    assert known is not None
    renewed = Credentials(known.user, "renewed")
    peers.cluster.servers[2].reload(known.password, renewed.password)
    bus = await Bus.connect(peers.cluster.url, name="gateway", credentials=renewed)
    await bus.close()
    with pytest.raises(Unavailable, match="refuses the user gateway"):
        await Bus.connect(peers.cluster.url, name="gateway", credentials=Credentials(known.user, "wrong"))
