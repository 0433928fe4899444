"""A fleet whose processes end and are started again as a launcher does it, and which is watched meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shared.engine import Engine
from shared.errors import PenstockError
from shared.messages import Held
from tests.simulation.fleet import GATEWAY, Fleet
from tests.simulation.node import Node, NodeState
from tests.simulation.swarm.plan import Plan, PlannedNode
from tests.simulation.swarm.record import Record
from tests.simulation.world import World

POLL_S = 0.02
RESTART_S = 0.5
"""A process that ends with an error is started again after so much."""
MAX_READY_CALLS = 10_000
"""The most that may be ready at a time in a node that runs."""
MAX_UNSENT_BYTES = 16 << 20
"""The most that may wait at one end of a connection."""


class SwarmFleet(Fleet):
    """`up`: who should be there. The gateway is one of them."""

    def __init__(self, plan: Plan, model: Path, world: World) -> None:
        engine = {"kv_blocks": plan.kv_blocks, "max_sequences": plan.max_sequences}
        gateway = {"local_prefill_tokens": plan.local_prefill_tokens}
        super().__init__(world, model, {"prefill": engine, "decode": engine, "gateway": gateway})
        self.record = Record(world)
        self.up: dict[str, PlannedNode] = {node.name: node for node in plan.nodes}
        self.up[GATEWAY] = PlannedNode(GATEWAY, 0.0, 0)
        self._engines: list[tuple[Node, Engine]] = []

    def build_engine(self, *args: Any, **named: Any) -> Engine:
        engine = super().build_engine(*args, **named)
        self._engines.append((self.world.loop.node, engine))
        return engine

    # ---- lives ------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Start a process that is down."""
        self.record.note(name, "starts")
        how = self.up[name]
        life = self.start(name, skew_s=how.skew_s, drift_ppb=how.drift_ppb)
        life.add_done_callback(partial(self._ended, self.world.nodes[name]))

    def _ended(self, node: Node, life: asyncio.Task[None]) -> None:
        """The process has come to its end by itself."""
        if life.cancelled() or self.record.closed:
            return
        error = life.exception()
        if error is not None and not isinstance(error, PenstockError | OSError):
            self.record.breaks("no process dies of itself", node.name, repr(error))
        elif error is not None:
            self.record.note(node.name, f"ends with {error!r}")
            self.world.call_in(self.world.home, RESTART_S, self._begin_again, node)
        else:
            self.record.note(node.name, "has ended")
        self._end(node)

    def _begin_again(self, node: Node) -> None:
        """Start a process that had to give up, unless somebody has."""
        if self.world.nodes[node.name] is node:
            self.begin(node.name)

    def crash(self, name: str) -> None:
        self._end(self.world.nodes[name])

    def _end(self, node: Node) -> None:
        if node.state is NodeState.CRASHED:
            return
        super().crash(node.name)

    def begin_drain(self, name: str) -> bool:
        """Tell a process to end as SIGTERM does; return whether it has come so far that it can be told."""
        service = self.services.get(name)
        if service is None or not service.running:
            return False
        self.world.call_in(self.world.nodes[name], 0.0, service.begin_drain)
        return True

    def begin_missing(self) -> None:
        for name in self.up:
            if self.is_down(name):
                self.begin(name)

    def is_down(self, name: str) -> bool:
        node = self.world.nodes.get(name)
        return node is None or node.state is NodeState.CRASHED

    # ---- watched ----------------------------------------------------------------------------------

    @property
    def answers(self) -> bool:
        """Whether there is a gateway that takes calls."""
        return self._watcher() is not None

    async def is_reached(self, what: Callable[[], Awaitable[bool]], limit_s: float) -> bool:
        """Look again and again until it is so; return whether it came so far in time."""
        end_s, wait_s = self.world.now_s + limit_s, POLL_S
        while not await what():
            if self.world.now_s >= end_s:
                return False
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 1.0)
        return True

    async def all_ready(self) -> bool:
        """Whether the gateway sees everybody ready."""
        watcher = self._watcher()
        if watcher is None:
            return False
        seen = {v.heartbeat.instance for v in watcher.fleet.all() if v.heartbeat.state == "ready"}
        return self.up.keys() - {GATEWAY} <= seen

    async def nothing_held(self) -> bool:
        return not await self.all_held()

    async def all_held(self) -> list[Held]:
        """What everybody holds for requests, engines and the gateway too; who does not answer may hold
        anything."""
        try:
            held = await self.held(list(self.up))
        except PenstockError as error:
            return [Held("", f"no answer ({error})", 1, "")]
        engines = [(name, *one) for name, engine in self.living_engines() for one in engine.held().items()]
        return held + [Held(key, f"blocks of {name}", blocks, "") for name, key, blocks in engines]

    def check_bounds(self) -> None:
        """Look at what grows without bound where something is wrong."""
        for node in self.world.nodes.values():
            if node.runs and len(node.ready) > MAX_READY_CALLS:
                self.record.breaks("bounded queues", node.name, f"{len(node.ready)} calls are ready")
        for cable in self.network.cables():
            unsent = max(cable.client.get_write_buffer_size(), cable.server.get_write_buffer_size())
            if unsent > MAX_UNSENT_BYTES:
                self.record.breaks("bounded queues", cable.place, f"{unsent} bytes wait to be sent")

    def living_engines(self) -> Iterator[tuple[str, Engine]]:
        for node, engine in self._engines:
            if node.state is NodeState.RUNNING:
                yield node.name, engine
