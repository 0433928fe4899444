"""A fleet whose processes end and are started again as a launcher does it, and which is watched meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shared.engine import Engine
from shared.errors import PenstockError
from shared.kv.receiving.credit import CreditPool
from shared.kv.receiving.receiver import KvReceiver
from shared.messages import Held
from shared.process.service import Service
from shared.retrieval.encoders.embedder import Embedder
from shared.worker.config import EngineServiceConfig
from tests.simulation.fleet import Fleet
from tests.simulation.node import Node, NodeState
from tests.simulation.simulated_embedder import SimulatedEmbedder
from tests.simulation.simulated_grammars import SimulatedTrials
from tests.simulation.step_profile import USUAL
from tests.simulation.swarm.full_disk import DiskFile
from tests.simulation.swarm.keys import KeyFile
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.plan import FaultKind, Plan, PlannedNode
from tests.simulation.swarm.record import Record
from tests.simulation.swarm.tenancy import Tenancy
from tests.simulation.world import World

PoolBuffer = Callable[[int], memoryview]
POLL_S = 0.02
RESTART_S = 0.5
"""A process that ends with an error is started again after so much."""
MAX_READY_CALLS = 10_000
"""The most that may be ready at a time in a node that runs."""
MAX_UNSENT_BYTES = 16 << 20
"""The most that may wait at one end of a connection."""
SLOW_SEARCH = 100.0
"""An embedder that searches slowly takes so many times as long."""
RESETTLED: dict[str, dict[str, Any]] = {
    "prefill": {"kv_blocks": 64, "max_sequences": 3, "max_batch_tokens": 64},
    "decode": {"kv_blocks": 64, "max_sequences": 3, "max_batch_tokens": 64},
    "gateway": {"local_prefill_tokens": 64, "max_replacements": 8},
}
"""The settings of a process that comes back with others, by its role."""


class NarrowReceiver(KvReceiver):
    """One that lets a single cell be on its way."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._grants.credit = CreditPool(self._memory.cell_bytes)


class SwarmFleet(Fleet):
    """`up`: who should be there, gateways too. `afflicted`: what lasts at which node now."""

    def __init__(self, plan: Plan, place: Place, world: World) -> None:
        world.rare = plan.rare
        if plan.answers_wait:
            world.always.add("an answer waits for room")
        if plan.narrow:
            world.always.add("the first window has one cell")
        self.record = Record(world, str(place.own))
        self.tenancy = Tenancy(self.record)
        self.keys = KeyFile(place.keys)
        self.afflicted: Counter[tuple[FaultKind, str]] = Counter()
        super().__init__(world, place.model, self._planned_settings(plan, place))
        self.up: dict[str, PlannedNode] = {node.name: node for node in plan.nodes}
        self.up |= {name: PlannedNode(name, 0.0, 0) for name in plan.gateways}
        self._engines: list[tuple[Node, Engine]] = []
        self._receivers: list[tuple[Node, KvReceiver]] = []
        self._narrow = plan.narrow
        self.steps_ahead = plan.steps_ahead
        self.profile = USUAL.times_as_slow(plan.slowness)

    def _planned_settings(self, plan: Plan, place: Place) -> dict[str, dict[str, Any]]:
        engine: dict[str, Any] = {
            "kv_blocks": plan.kv_blocks,
            "max_sequences": plan.max_sequences,
            "max_batch_tokens": plan.batch_tokens,
        }
        if plan.offloads:
            engine |= {"offload_dir": str(place.offload), "offload_disk_mb": 1}
        gateway: dict[str, Any] = {"local_prefill_tokens": plan.local_prefill_tokens}
        if plan.keyed:
            gateway["api_keys"] = str(self.keys.path)
        retriever = dict(place.retriever) if plan.names("retriever") else {}
        return {"prefill": engine, "decode": engine, "gateway": gateway, "retriever": retriever}

    def resettle(self, name: str) -> None:
        """The next life of a process has other settings."""
        self._settings[name] = RESETTLED.get(name.rpartition("-")[0], {})

    # ---- what it stands in for ----------------------------------------------------------------------

    def _suffers(self, kind: FaultKind) -> bool:
        """Whether the node that asks has this now."""
        return self.afflicted[kind, self.world.loop.node.name] > 0

    def build_engine(
        self,
        config: EngineServiceConfig,
        model_dir: Path,
        model_name: str,
        pool_buffer: PoolBuffer | None = None,
        **named: object,
    ) -> Engine:
        if self._suffers(FaultKind.NO_MEMORY):
            pool_buffer = _no_memory
        engine = super().build_engine(config, model_dir, model_name, pool_buffer, **named)
        self._engines.append((self.world.loop.node, engine))
        return engine

    def kv_receiver(self, *args: Any, **named: Any) -> KvReceiver:
        receiver = NarrowReceiver(*args, **named) if self._narrow else super().kv_receiver(*args, **named)
        self._receivers.append((self.world.loop.node, receiver))
        return receiver

    def load_embedder(self, **_: object) -> Embedder:
        def spend(us: float) -> None:
            self.world.spend_us(us * (SLOW_SEARCH if self._suffers(FaultKind.SLOW_SEARCH) else 1.0))

        return SimulatedEmbedder(spend).as_embedder()

    def grammar_trials(self, module: str) -> SimulatedTrials:
        return SimulatedTrials(module, self.world.spend_us, lambda: self._suffers(FaultKind.NO_TRIALS))

    def temporary_file(self, **how: Any) -> DiskFile:
        """Stand in for the `TemporaryFile` of KV on disk."""
        return DiskFile(lambda: self._suffers(FaultKind.DISK_FULL), **how)

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

    def serves(self, gateway: str) -> bool:
        """Whether there is a gateway of this name that takes calls."""
        return self._serving(gateway) is not None

    def _serving(self, gateway: str) -> Service[Any] | None:
        service = self.services.get(gateway)
        lives = not self.is_down(gateway) and self.world.nodes[gateway].state is NodeState.RUNNING
        return service if service is not None and lives and service.state == "ready" else None

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
        """Whether each gateway sees everybody ready."""
        gateways = {name for name in self.up if name.startswith("gateway-")}
        serving = [self._serving(name) for name in sorted(gateways)]
        for service in serving:
            if service is None:
                return False
            beats = [view.heartbeat for view in service.fleet.all()]
            if not self.up.keys() - gateways <= {beat.instance for beat in beats if beat.state == "ready"}:
                return False
        return True

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

    async def check_leases(self, gateway: str) -> None:
        """Look whether anybody holds something for a gateway that has been gone for longer than a lease."""
        try:
            held = await self.held([name for name in self.up if not self.is_down(name)])
        except PenstockError as error:
            self.record.note("world", f"nobody can be asked what is held ({error})")
            return
        left = [one for one in held if one.request_id.startswith(f"{gateway}.")]
        if left:
            self.record.breaks("what is held for who is gone ends with its lease", gateway, f"{left}")

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

    def check_books(self) -> None:
        """Look at what engines and receivers of KV count."""
        living = [(name, engine.check) for name, engine in self.living_engines()]
        living += [(node.name, one.check) for node, one in self._receivers if node.state is NodeState.RUNNING]
        for name, check in living:
            try:
                check()
            except PenstockError as error:
                self.record.breaks("books are right", name, str(error))


def _no_memory(nbytes: int) -> memoryview:
    raise MemoryError(f"{nbytes} bytes are refused")
