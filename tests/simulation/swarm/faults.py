"""Do what a plan breaks; each fault heals by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.actor.lease import LEASE_S
from tests.simulation.bus.server_connection import ServerConnection
from tests.simulation.node import Node, NodeState
from tests.simulation.swarm.plan import NATS, FaultKind, PlannedFault, PlannedNode
from tests.simulation.swarm.swarm_fleet import SwarmFleet

LONGEST_COUNT_S = 5.0
"""A node that makes fewer calls than a crash waits for crashes after this."""
LIST_OF_FIELDS = 0x99
"""The first byte of each message: msgpack's list of nine."""
SLOW_STALL_S, SLOW_RUN_S = 0.12, 0.01
"""A slow node gets to its work for so long, again and again, after so long a stall."""
LEASE_ROOM_S = 2.0
"""A lease is over, and its blocks are back, so long after its end, where engines take their usual steps."""
DRAIN_LIMIT_S = 25.0
"""A drain may take ten seconds for requests and fifteen to close everything."""


KEYS_SEEN_S = 1.5
"""A change of the file of keys counts after so long."""


def message_name(subject: bytes, payload: bytes) -> str:
    """The name of a message of ours, by its first bytes; that of a KV chunk by where it goes."""
    if subject.startswith(b"penstock.kv."):
        return "KvChunk"
    if len(payload) < 2 or payload[0] != LIST_OF_FIELDS:
        return ""
    length = payload[1] & 0x1F
    return payload[2 : 2 + length].decode(errors="replace")


class Countdowns:
    """Wait for the calls of nodes, one by one: what is done then is done between two calls of one moment."""

    def __init__(self, fleet: SwarmFleet) -> None:
        self._loop = fleet.world.loop
        self._left: dict[Node, tuple[int, Callable[[], None]]] = {}

    def arm(self, node: Node, calls: int, then: Callable[[], None]) -> None:
        self._left[node] = (calls, then)
        self._loop.before_call = self._count

    def disarm(self, node: Node) -> None:
        self._left.pop(node, None)
        if not self._left:
            self._loop.before_call = None

    def _count(self, node: Node) -> None:
        if node not in self._left:
            return
        calls, then = self._left[node]
        self._left[node] = (calls - 1, then)
        if calls <= 0:
            self.disarm(node)
            then()


class PlannedFaults:
    def __init__(self, fleet: SwarmFleet, stalls_s: Callable[[str], float], step_room: float) -> None:
        self._fleet = fleet
        self._lease_over_s = LEASE_S + LEASE_ROOM_S * step_room
        self._record = fleet.record
        self._nodes = fleet.world.nodes
        self._countdowns = Countdowns(fleet)
        self._stalls_s = stalls_s
        self._nats_down = False
        self._kinds: dict[FaultKind, Callable[[PlannedFault], Awaitable[None]]] = {
            FaultKind.CRASH: self._crash,
            FaultKind.PAUSE: self._pause,
            FaultKind.SLOW: self._slow,
            FaultKind.CUT: self._cut,
            FaultKind.PARTITION: self._partition,
            FaultKind.DEAF: self._deaf,
            FaultKind.LATE: self._be_late,
            FaultKind.DROPPED: self._drop,
            FaultKind.CLOCK_SET: self._set_clock,
            FaultKind.DRAIN: self._drain,
            FaultKind.JOIN: self._join,
            FaultKind.NATS_RESTART: self._restart_nats,
            FaultKind.LOST: self._lose,
            FaultKind.RESETTLED: self._resettle,
            FaultKind.NO_MEMORY: self._refuse_memory,
            FaultKind.DISK_FULL: self._last,
            FaultKind.NO_TRIALS: self._last,
            FaultKind.SLOW_SEARCH: self._last,
            FaultKind.KEY_TAKEN: self._take_key,
            FaultKind.KEYS_SPOILT: self._spoil_keys,
        }

    async def happen(self, fault: PlannedFault) -> None:
        """Let it come at its time; return when it is over."""
        await asyncio.sleep(fault.at_s)
        if self._cannot(fault):
            self._record.note(fault.node, f"({fault.kind.value}: not as it is now)")
            return
        self._record.disturbed = True
        self._record.note(fault.node, fault.told())
        await self._kinds[fault.kind](fault)

    def _cannot(self, fault: PlannedFault) -> bool:
        """A fault comes to who runs, and a newcomer where there is none yet."""
        if fault.node == NATS:
            return self._nats_down
        if fault.kind is FaultKind.JOIN:
            return fault.node in self._fleet.up
        node = self._nodes.get(fault.node)
        return node is None or not node.runs

    # ---- of a process -------------------------------------------------------------------------------

    async def _crash(self, fault: PlannedFault) -> None:
        crashed = await self._before_a_call(fault, lambda: self._end(fault.node))
        if fault.seconds > self._lease_over_s:
            await asyncio.sleep(self._lease_over_s)
            await self._fleet.check_leases(fault.node)
            await asyncio.sleep(fault.seconds - self._lease_over_s)
        else:
            await asyncio.sleep(fault.seconds)
        if crashed and self._fleet.is_down(fault.node):
            self._fleet.begin(fault.node)

    def _end(self, name: str) -> None:
        self._record.note(name, "crashes")
        self._fleet.crash(name)

    async def _before_a_call(self, fault: PlannedFault, what: Callable[[], None]) -> bool:
        """Do it before the call of its node that the fault names; return whether it was there."""
        node, done = self._nodes[fault.node], asyncio.Event()

        def do() -> None:
            what()
            done.set()

        self._countdowns.arm(node, fault.calls, do)
        try:
            async with asyncio.timeout(LONGEST_COUNT_S):
                await done.wait()
        except TimeoutError:
            self._countdowns.disarm(node)
            if node.state is NodeState.CRASHED:
                return False
            do()
        return True

    async def _refuse_memory(self, fault: PlannedFault) -> None:
        """It crashes, and each of its next lives gives up as long as this lasts."""
        if not await self._before_a_call(fault, lambda: self._end(fault.node)):
            return
        self._fleet.afflicted[fault.kind, fault.node] += 1
        if self._fleet.is_down(fault.node):
            self._fleet.begin(fault.node)
        await asyncio.sleep(fault.seconds)
        self._fleet.afflicted[fault.kind, fault.node] -= 1

    async def _last(self, fault: PlannedFault) -> None:
        """It lasts, and whoever stands in for a part of the node looks."""
        self._fleet.afflicted[fault.kind, fault.node] += 1
        await asyncio.sleep(fault.seconds)
        self._fleet.afflicted[fault.kind, fault.node] -= 1

    async def _pause(self, fault: PlannedFault) -> None:
        node = self._nodes[fault.node]
        node.pause()
        await asyncio.sleep(fault.seconds)
        node.resume()
        self._record.note(fault.node, "goes on")

    async def _slow(self, fault: PlannedFault) -> None:
        node, left_s = self._nodes[fault.node], fault.seconds
        while left_s > 0:
            node.pause()
            await asyncio.sleep(SLOW_STALL_S)
            node.resume()
            await asyncio.sleep(SLOW_RUN_S)
            left_s -= SLOW_STALL_S + SLOW_RUN_S

    async def _set_clock(self, fault: PlannedFault) -> None:
        self._nodes[fault.node].set_time_of_day(60 * (fault.seconds - 1))

    async def _join(self, fault: PlannedFault) -> None:
        self._fleet.up[fault.node] = PlannedNode(fault.node, 0.0, 0)
        self._fleet.begin(fault.node)

    async def _drain(self, fault: PlannedFault) -> None:
        """Take a process out of the fleet, and bring it back later."""
        node = self._nodes[fault.node]
        if not self._fleet.begin_drain(fault.node):
            return

        async def ended() -> bool:
            return node.state is NodeState.CRASHED

        if not await self._fleet.is_reached(ended, DRAIN_LIMIT_S + self._stalls_s(fault.node)):
            self._record.breaks("a drain ends", fault.node, f"it runs {DRAIN_LIMIT_S} s later")
        await asyncio.sleep(fault.seconds)
        if self._fleet.is_down(fault.node):
            self._fleet.begin(fault.node)

    async def _resettle(self, fault: PlannedFault) -> None:
        self._fleet.resettle(fault.node)
        await self._drain(fault)

    # ---- of its keys --------------------------------------------------------------------------------

    async def _take_key(self, fault: PlannedFault) -> None:
        keys = self._fleet.keys
        keys.take_out(fault.key, self._fleet.world.now_s)
        await asyncio.sleep(fault.seconds)
        keys.put_back(fault.key)
        await asyncio.sleep(KEYS_SEEN_S + self._stalls_s(fault.node))

    async def _spoil_keys(self, fault: PlannedFault) -> None:
        self._record.expected_errors.add("api_keys_unusable")
        self._fleet.keys.spoil()
        await asyncio.sleep(fault.seconds)
        self._fleet.keys.put_right()
        await asyncio.sleep(KEYS_SEEN_S)

    # ---- of the network -----------------------------------------------------------------------------

    async def _cut(self, fault: PlannedFault) -> None:
        await self._before_a_call(fault, lambda: self._fleet.cut(fault.node))

    async def _lose(self, fault: PlannedFault) -> None:
        """The connection breaks on which a message is on its way to whoever it is for."""
        left, lost = fault.calls, asyncio.Event()
        delivered = self._fleet.server.on_delivered

        def look(client: ServerConnection, subject: bytes, payload: bytes) -> None:
            nonlocal left
            if lost.is_set() or message_name(subject, payload) != fault.message:
                return
            left -= 1
            if left < 0:
                lost.set()
                self._record.note(client.name, f"loses {fault.message} with its connection")
                client.lose()

        delivered.append(look)
        try:
            async with asyncio.timeout(fault.seconds):
                await lost.wait()
        except TimeoutError:
            self._record.note(fault.node, f"(no {fault.message} has come)")
        finally:
            delivered.remove(look)

    async def _partition(self, fault: PlannedFault) -> None:
        self._fleet.network.partition(fault.node)
        await asyncio.sleep(fault.seconds)
        self._fleet.network.heal(fault.node)
        self._record.note(fault.node, "is reached again")

    async def _deaf(self, fault: PlannedFault) -> None:
        cables = self._fleet.network.cables(fault.node)
        for cable in cables:
            cable.to_client.hold()
        await asyncio.sleep(fault.seconds)
        for cable in cables:
            cable.to_client.release()
        self._record.note(fault.node, "hears again")

    async def _be_late(self, fault: PlannedFault) -> None:
        """What it says comes after what others say later; it hears all."""
        pipes = [cable.to_server for cable in self._fleet.network.cables(fault.node)]
        for pipe in pipes:
            pipe.hold()
        await asyncio.sleep(fault.seconds)
        for pipe in pipes:
            pipe.release()

    async def _drop(self, fault: PlannedFault) -> None:
        for client in self._fleet.server.clients:
            if client.name.endswith(f"/{fault.node}"):
                client.drop("a fault")

    async def _restart_nats(self, fault: PlannedFault) -> None:
        self._nats_down = True
        await self._fleet.server.kill()
        await asyncio.sleep(fault.seconds)
        await self._fleet.server.start()
        self._record.note(fault.node, "is back")
        self._nats_down = False
