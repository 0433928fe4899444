"""A world under a seed: nodes, one loop for all of them, and the seams that it stands in for."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from shared.seams.buggify import BUGGIFY
from shared.seams.chance import CHANCE
from shared.seams.clock import SYSTEM_CLOCK
from shared.seams.threads import THREADS
from tests.simulation.node import Node, NodeState
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.simulated_pool import SimulatedPool
from tests.simulation.trace import Trace

Result = TypeVar("Result")

LIMIT_S = 3600.0
"""What is run ends within so much of the world's time."""
TAKEN_SHARE = 0.5
"""The share of points of Buggify that one world takes at all."""
BURIAL_S = 5.0
"""What a crash has left is given up after so much."""
END_S = 60.0
"""What is left at the end of a world is cancelled, and ends within so much."""


class World:
    """`with World(seed) as world:` clocks, chance and pools are those of its nodes, in the whole process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace = Trace()
        self.random = self._random("world")
        self.home = Node("home", self._random("home"), 0)
        self.nodes: dict[str, Node] = {}
        self.loop = SimulatedLoop(self._random("order"), self.home, self.trace)
        self._started: list[asyncio.Task[Any]] = []
        self._lives: dict[str, int] = {}
        self.rare = 0.0
        """How often a rare path is taken that nothing asks for, of those that this seed takes."""
        self.always: set[str] = set()
        """The rare paths that are taken each time."""
        self._seams = ExitStack()

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def __enter__(self) -> Self:
        self._seams.enter_context(SYSTEM_CLOCK.replaced_by(_WorldClock(self.loop)))
        self._seams.enter_context(CHANCE.replaced_by(_WorldChance(self.loop)))
        self._seams.enter_context(THREADS.replaced_by(self._make_pool))
        self._seams.enter_context(BUGGIFY.replaced_by(_WorldRarePaths(self)))
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._seams:
            try:
                if _error is None:
                    self.run(self._cancel_all(), limit_s=END_S)
            finally:
                self._bury()

    # ---- nodes ------------------------------------------------------------------------------------

    def add_node(self, name: str, *, skew_s: float = 0.0, drift_ppb: int = 0) -> Node:
        """Begin a process; one of the same name that has crashed is followed by its next life."""
        before = self.nodes.get(name)
        if before is not None and before.state is not NodeState.CRASHED:
            raise ValueError(f"there is a node {name} that has not crashed")
        life = self._lives[name] = self._lives.get(name, 0) + 1
        node = Node(
            name, self._random(f"{name}/{life}"), self.loop.now_ns, skew_s=skew_s, drift_ppb=drift_ppb
        )
        self.nodes[name] = node
        self.loop.add_node(node)
        return node

    def start(self, node: Node, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Run `work` as a task of `node`. The world keeps it: a loop lets go of what waits for nobody."""
        task = self.loop.create_task(work, name=name, context=node.context.copy())
        self._started.append(task)
        return task

    def call_in(self, node: Node, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call in `node`, `delay_s` of the world's time from now: how a message comes."""
        self.loop.call_in_ns(round(delay_s * 1e9), callback, *args, context=node.context.copy())

    def spend_us(self, microseconds: float) -> None:
        """What runs in a thread of a node takes so long."""
        self.loop.spend_ns(round(microseconds * 1000))

    @property
    def now_s(self) -> float:
        """Seconds since the world began."""
        return self.loop.now_ns / 1e9

    # ---- life -------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, Result], *, limit_s: float = LIMIT_S) -> Result:
        """Run `main`, outside of all nodes, to its end. Raises TimeoutError after `limit_s` of world time,
        and what a callback has raised."""

        async def bounded() -> Result:
            async with asyncio.timeout(limit_s):
                return await main

        collects = gc.isenabled()
        gc.disable()  # a collection may run code, and comes when memory says so
        try:
            return self.loop.run_until_complete(bounded())
        finally:
            if collects:
                gc.enable()

    def _bury(self) -> None:
        """Let go of what crashed, or was left where a run failed: nobody looks, so it may end as it likes."""
        self.loop.set_exception_handler(lambda _loop, _context: None)
        for node in self.loop.nodes:
            node.state = NodeState.RUNNING
            self.loop.put_missed(node)
        left, before = _unended(self.loop.nodes), list[asyncio.Task[Any]]()
        while left != before:
            self.loop.faults.clear()
            with suppress(Exception):
                self.loop.run_until_complete(_cancel(left))
            left, before = _unended(self.loop.nodes), left
        self.loop.faults.clear()
        with suppress(Exception):
            self.loop.run_until_complete(_close(left))
        self.loop.close()

    async def _cancel_all(self) -> None:
        for node in self.loop.nodes:
            node.resume()
        living = [node for node in self.loop.nodes if node.state is not NodeState.CRASHED]
        me = asyncio.current_task()
        tasks = [task for task in _unended(living) if task is not me]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _make_pool(
        self, threads: int, name: str, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
    ) -> Executor:
        """An initializer makes a thread something to its system: there is none."""
        del initializer, initargs
        return SimulatedPool(self.loop, threads, name)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel all, as often as it takes: what ends may begin something, and nothing wakes some any more."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=BURIAL_S)


async def _close(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """End tasks that nothing wakes any more, in the loop: what they do at their end may ask for it."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own
        with suppress(BaseException):
            task.get_coro().close()


def _unended(nodes: Sequence[Node]) -> list[asyncio.Task[Any]]:
    """Return the tasks that have not ended, in the order in which they began."""
    return sorted({task for node in nodes for task in node.tasks if not task.done()}, key=hash)


class _WorldRarePaths:
    """The rare paths of a world: half of them, each now and then, by the chance of the node that asks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken: dict[str, bool] = {}

    def takes(self, point: str, /) -> bool:
        rare = self._world.rare
        if point in self._world.always:
            return True
        if not rare:
            return False
        if point not in self._taken:
            self._taken[point] = Random(f"{self._world.seed}/{point}").random() < TAKEN_SHARE
        return self._taken[point] and self._world.loop.node.random.random() < rare


class _WorldClock:
    """The clocks of the node that asks."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def monotonic_ns(self) -> int:
        return self._loop.node.monotonic_ns(self._loop.now_ns)

    def thread_cpu_ns(self) -> int:
        return self.monotonic_ns()

    def unix_us(self) -> int:
        return self._loop.node.unix_us(self._loop.now_ns)

    def steady_us(self) -> int:
        return self._loop.node.steady_us(self._loop.now_ns)


class _WorldChance:
    """The chance of the node that asks."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def bits(self, count: int, /) -> int:
        return self._loop.node.random.getrandbits(count)

    def hex_digits(self, num_bytes: int, /) -> str:
        return self._loop.node.random.randbytes(num_bytes).hex()

    def one_of(self, letters: str, /) -> str:
        return self._loop.node.random.choice(letters)
