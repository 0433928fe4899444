"""The loop of a simulated world: time that jumps, an order that the seed decides, nothing real, no circle."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shared.seams.clock import SYSTEM_CLOCK
from shared.seams.threads import THREADS
from tests.simulation import simulated_loop
from tests.simulation.simulated_loop import Livelock, NothingToWaitFor, RealWorldTouched
from tests.simulation.world import World

REPOSITORY = Path(__file__).resolve().parents[2]
DAY_S = 86_400.0


async def test_a_day_passes_at_once() -> None:
    """Another loop runs around this one: the world needs none."""

    async def main(world: World) -> float:
        began_s = SYSTEM_CLOCK.monotonic_s()
        async with asyncio.timeout(2 * DAY_S):
            await asyncio.sleep(DAY_S)
        return SYSTEM_CLOCK.monotonic_s() - began_s

    def run() -> float:
        with World(1) as world:
            return world.run(main(world), limit_s=3 * DAY_S)

    real_s = time.process_time()
    assert await asyncio.to_thread(run) == pytest.approx(DAY_S)
    assert time.process_time() - real_s < DAY_S


def test_a_timer_never_comes_before_its_time() -> None:
    """Not by a rounding error either: who sleeps until a deadline may count on it."""

    async def main(world: World) -> None:
        for number in range(200):
            until_s = SYSTEM_CLOCK.monotonic_s() + 0.1 * number / 7
            await asyncio.sleep(until_s - SYSTEM_CLOCK.monotonic_s())
            assert SYSTEM_CLOCK.monotonic_s() >= until_s

    with World(1) as world:
        node = world.add_node("a", drift_ppb=-123_457)
        world.run(ended(world.start(node, main(world), "sleep")))


async def ended(*tasks: asyncio.Task[Any]) -> list[Any]:
    return [await task for task in tasks]


def order_of(seed: int, nodes: int = 3) -> list[str]:
    seen: list[str] = []

    async def work(name: str) -> None:
        for number in range(4):
            seen.append(f"{name}{number}")
            await asyncio.sleep(0)

    with World(seed) as world:
        tasks = [world.start(world.add_node(name), work(name), name) for name in "abc"[:nodes]]
        world.run(ended(*tasks))
    return seen


def test_the_order_of_nodes_is_the_seeds_and_that_within_one_is_asyncios() -> None:
    orders = [order_of(seed) for seed in range(8)]
    assert orders == [order_of(seed) for seed in range(8)]
    assert len({tuple(order) for order in orders}) > 4
    for order in orders:
        for name in "abc":
            assert [one for one in order if one[0] == name] == [f"{name}{number}" for number in range(4)]


def test_two_timers_of_one_moment_end_in_an_order_that_the_seed_decides() -> None:
    def order(seed: int) -> list[int]:
        seen: list[int] = []

        async def work(number: int) -> None:
            await asyncio.sleep(1.0)
            seen.append(number)

        with World(seed) as world:
            world.run(_all_of([work(number) for number in range(5)]))
        return seen

    assert len({tuple(order(seed)) for seed in range(8)}) > 4


async def _all_of(works: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works)


# ---- the real world ----


@pytest.mark.parametrize(
    ("asked", "call"),
    [
        ("create_connection", lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 1)),
        ("create_server", lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 0)),
        ("getaddrinfo", lambda loop: loop.getaddrinfo("localhost", 1)),
        ("add_reader", lambda loop: loop.add_reader(0, print)),
        ("add_signal_handler", lambda loop: loop.add_signal_handler(signal.SIGTERM, print)),
        ("subprocess_exec", lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true")),
    ],
)
def test_what_leaves_the_process_is_refused_by_name(asked: str, call: Callable[[Any], Any]) -> None:
    async def main() -> None:
        call(asyncio.get_running_loop())

    with World(1) as world:
        node = world.add_node("gateway-0")
        task = world.start(node, main(), "edge")
        with pytest.raises(RealWorldTouched, match=f"gateway-0 asked its event loop for {asked}"):
            world.run(ended(task))


def test_a_pool_of_real_threads_is_refused() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, os.getpid)

    with World(1) as world, pytest.raises(RealWorldTouched, match="real threads"):
        world.run(main())


# ---- threads ----


def test_a_job_takes_the_time_that_it_says_and_the_loop_goes_on_meanwhile() -> None:
    async def main(world: World) -> list[float]:
        began_s, seen = SYSTEM_CLOCK.monotonic_s(), list[float]()

        def job() -> float:
            job_began_s = SYSTEM_CLOCK.monotonic_s()
            world.spend_us(2e6)
            return SYSTEM_CLOCK.monotonic_s() - job_began_s

        working = asyncio.ensure_future(asyncio.to_thread(job))
        await asyncio.sleep(1.0)
        seen.append(SYSTEM_CLOCK.monotonic_s() - began_s)
        assert not working.done()
        assert await working == pytest.approx(2.0)
        seen.append(SYSTEM_CLOCK.monotonic_s() - began_s)
        return seen

    with World(1) as world:
        assert world.run(main(world)) == [pytest.approx(1.0), pytest.approx(2.0, abs=0.001)]


def test_a_pool_works_in_turn_with_as_many_threads_as_it_has() -> None:
    async def main(world: World, threads: int) -> float:
        pool, loop, order = THREADS.pool(threads, "p"), asyncio.get_running_loop(), list[int]()

        def job(number: int) -> None:
            order.append(number)
            world.spend_us(1e6)

        began_s = SYSTEM_CLOCK.monotonic_s()
        await asyncio.gather(*(loop.run_in_executor(pool, job, number) for number in range(4)))
        assert threads > 1 or order == [0, 1, 2, 3]
        return SYSTEM_CLOCK.monotonic_s() - began_s

    with World(1) as world:
        assert world.run(main(world, 1)) == pytest.approx(4.0, abs=0.01)
        assert world.run(main(world, 2)) == pytest.approx(2.0, abs=0.01)


def test_what_a_job_tells_the_loop_comes_when_it_has_come_so_far() -> None:
    async def main(world: World) -> list[float]:
        loop, began_s, told = asyncio.get_running_loop(), SYSTEM_CLOCK.monotonic_s(), list[float]()

        def job() -> None:
            for _ in range(3):
                world.spend_us(1e6)
                loop.call_soon_threadsafe(lambda: told.append(SYSTEM_CLOCK.monotonic_s() - began_s))

        await asyncio.to_thread(job)
        return told

    with World(1) as world:
        told = world.run(main(world))
    assert told == [pytest.approx(second, abs=0.001) for second in (1.0, 2.0, 3.0)]


def test_a_job_has_no_running_loop_and_its_failure_is_its_callers() -> None:
    with World(1) as world, pytest.raises(RuntimeError, match="no running event loop"):
        world.run(asyncio.to_thread(asyncio.get_running_loop))


def test_a_pool_that_is_shut_down_is_waited_for() -> None:
    async def main(world: World) -> None:
        pool, loop = THREADS.pool(1, "p"), asyncio.get_running_loop()
        first, second = (loop.run_in_executor(pool, world.spend_us, 1e6) for _ in range(2))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        assert first.done()
        await asyncio.sleep(0)
        assert second.cancelled()

    with World(1) as world:
        world.run(main(world))


def test_to_wait_for_a_job_without_leaving_the_loop_is_refused() -> None:
    async def main() -> None:
        THREADS.pool(1, "p").submit(os.getpid).result()

    with World(1) as world, pytest.raises(RuntimeError, match="a call that blocks"):
        world.run(main())


# ---- what never ends ----


def test_a_circle_at_one_moment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_loop, "MAX_CALLS_AT_ONE_INSTANT", 3_000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - it waits for nothing
            await asyncio.sleep(0)

    with World(1) as world:
        task = world.start(world.add_node("decode-0"), spin(), "spinner")
        with pytest.raises(Livelock, match=r"3001 calls at .* spinner of decode-0 1000 times"):
            world.run(ended(task))


def test_so_many_calls_at_one_moment_are_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_loop, "MAX_CALLS_AT_ONE_INSTANT", 3_000)

    async def spin() -> None:
        for _ in range(2_900):
            await asyncio.sleep(0)
        await asyncio.sleep(1e-9)
        for _ in range(2_900):
            await asyncio.sleep(0)

    with World(1) as world:
        world.run(spin())


def test_who_waits_for_nothing_is_named() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with World(1) as world:
        task = world.start(world.add_node("prefill-0"), main(), "waiter")

        async def forever() -> None:
            await task

        with pytest.raises(NothingToWaitFor, match=r"waiter of prefill-0 \(running\)"):
            world.loop.run_until_complete(forever())


def test_what_a_callback_raises_ends_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1.0)

    with World(1) as world:
        with pytest.raises(ZeroDivisionError):
            world.run(main())
        world.run(asyncio.sleep(1.0))


def test_what_takes_longer_than_its_limit_is_ended() -> None:
    with World(1) as world, pytest.raises(TimeoutError):
        world.run(asyncio.sleep(2.0), limit_s=1.0)


# ---- the same again ----

TRACED = """
import asyncio
from shared.seams.chance import CHANCE
from tests.simulation.world import World

async def work(name):
    for number in range(20):
        sleeps = {asyncio.ensure_future(asyncio.sleep(CHANCE.bits(4) / 8)) for _ in range(9)}
        done, _ = await asyncio.wait(sleeps)
        for one in done:
            await asyncio.to_thread(one.result)
        for word in {"a", "b", "c"} - {"d"}:
            name += word[:0]
    return CHANCE.hex_digits(8)

async def all_of(tasks):
    return [await task for task in tasks]

with World(SEED) as world:
    tasks = [world.start(world.add_node(f"n{i}"), work(f"n{i}"), f"t{i}") for i in range(4)]
    drawn = world.run(all_of(tasks))
print(world.trace.calls, world.trace.hexdigest(), *drawn)
"""


def traced(seed: int, hash_seed: str) -> str:
    code = TRACED.replace("SEED", str(seed))
    path = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'protos/python'}"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    ).stdout


def test_one_seed_is_one_trace_whatever_python_hashes_by() -> None:
    first = traced(1, "1")
    assert int(first.split()[0]) > 1_000
    assert [traced(1, "2"), traced(1, "random")] == [first, first]
    assert traced(2, "1") != first
