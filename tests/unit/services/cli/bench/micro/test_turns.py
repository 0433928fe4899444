from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from services.cli.bench.micro import turns
from services.cli.bench.micro.turns import TurnSide, take_turns
from services.cli.bench.run.server_watch import process_cpu_s
from services.cli.bench.targets.target import CallEnded, CallOutcome
from shared.errors import Unavailable


class Clock:
    """A clock that a round moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Recorded:
    """Two sides that say when they work; the second moves the clock by a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.worked: list[tuple[str, int]] = []

    def sides(self) -> dict[str, TurnSide]:
        async def first(turn: int) -> None:
            self.worked.append(("a", turn))

        async def second(turn: int) -> None:
            self.worked.append(("b", turn))
            self.clock.now_s += 1.0

        return {"a": TurnSide(first), "b": TurnSide(second)}


async def test_rounds_go_on_until_the_time_is_over_and_the_first_does_not_count() -> None:
    recorded = Recorded()
    costs = await take_turns(recorded.sides(), 3.0, recorded.clock)
    assert [len(costs["a"]), len(costs["b"])] == [3, 3]
    assert recorded.worked == [
        ("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3),
    ]  # fmt: skip


async def test_one_round_counts_however_little_time_there_is() -> None:
    recorded = Recorded()
    assert len((await take_turns(recorded.sides(), 1e-9, recorded.clock))["a"]) == 1


async def test_rounds_end_at_their_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_ROUNDS", 4)
    recorded = Recorded()
    assert len((await take_turns(recorded.sides(), 1e9, recorded.clock))["a"]) == 4


async def test_a_side_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_DEADLINE_S", 0.01)

    async def never(_turn: int) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Unavailable, match=r"the slow one has not finished a turn after 0\.01 s"):
        await take_turns({"the slow one": TurnSide(never)}, 1.0)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        asyncio.IncompleteReadError(b"", 1),
        CallEnded(CallOutcome.FAILED, "cut stream"),
    ],
)
async def test_a_side_whose_peer_has_gone_is_named(error: Exception) -> None:
    async def broken(_turn: int) -> None:
        raise error

    with pytest.raises(Unavailable, match="the broken one broke off"):
        await take_turns({"the broken one": TurnSide(broken)}, 1.0)


BURN = """
import sys, threading, time

def burn():
    while time.thread_time() < 0.05:
        pass

thread = threading.Thread(target=burn)
thread.start()
thread.join()
print("burned", flush=True)
sys.stdin.read()
"""
"""A program whose CPU time is mostly that of a thread that has ended."""


async def nothing(_turn: int) -> None:
    pass


def test_the_cpu_time_of_a_side_is_that_of_its_processes_and_of_this_one_where_it_works_here() -> None:
    command = [sys.executable, "-I", "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"burned\n"
        here_s = time.process_time()
        other_s = TurnSide(nothing, (process.pid,), here=False).spent_s()
        both_s = TurnSide(nothing, (process.pid,)).spent_s()
        assert other_s >= 0.05
        assert both_s >= other_s + here_s


async def test_a_side_whose_process_has_ended_is_named() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", "")
    await process.wait()
    with pytest.raises(OSError, match="Invalid argument"):
        process_cpu_s(process.pid)
    with pytest.raises(Unavailable, match="the ended one broke off"):
        await take_turns({"the ended one": TurnSide(nothing, (process.pid,))}, 1.0)
