"""Random programs of several clients deliver the same on a real nats-server and in memory."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.simulation.bus import ServerSettings
from tests.simulation.buses import EitherBus, RealBus, memory_bus
from tests.simulation.clients import CONNECT, raw

CLIENTS = 3
TOKENS = ("a", "b", "c")
WHO = st.integers(0, CLIENTS - 1)


def subjects(*odd: str) -> st.SearchStrategy[str]:
    tokens = st.sampled_from([*TOKENS, *TOKENS, *odd])
    return st.lists(tokens, min_size=1, max_size=3).map(".".join).filter(bool)


@dataclass(frozen=True, slots=True)
class Subscribe:
    client: int
    pattern: str
    queue: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """`which` counts from the oldest subscription of a program; `limit` 0 is at once."""

    which: int
    limit: int


@dataclass(frozen=True, slots=True)
class Publish:
    client: int
    subject: str
    reply: str
    times: int


Step = Subscribe | Unsubscribe | Publish
SUBSCRIBE = st.builds(Subscribe, WHO, subjects("*", "*", ">"), st.sampled_from(["", "", "q", "r"]))
UNSUBSCRIBE = st.builds(Unsubscribe, st.integers(0, 5), st.integers(0, 3))
PUBLISH = st.builds(
    Publish, WHO, subjects("", "*", ">", "a*"), st.sampled_from(["", "in.0", "in.1"]), st.integers(1, 3)
)
PROGRAMS = st.lists(st.one_of(SUBSCRIBE, SUBSCRIBE, PUBLISH, PUBLISH, UNSUBSCRIBE), max_size=14)

ALONE_AND_IN_A_GROUP: list[Step] = [
    *(Subscribe(0, "a", ""), Subscribe(0, "a", "q"), Subscribe(2, "a", "q")),
    Publish(0, "a", "", 3),
]
"""Chance decides who of the group hears a message, and so how many one client hears."""

Alone = dict[tuple[int, bytes], list[bytes]]


@dataclass(frozen=True)
class Outcome:
    """What one step made clients hear: each subscription alone in its order, each group whoever of it, and
    what is said to a client itself."""

    alone: Alone
    grouped: Counter[tuple[bytes, bytes]]
    told: Counter[tuple[int, bytes]]


@dataclass
class Program:
    """The subscriptions that steps have made, by the number that is their id on the wire too."""

    made: list[Subscribe] = field(default_factory=list)

    def said(self, step: Step) -> tuple[int, bytes]:
        """Return which client says what."""
        match step:
            case Subscribe(client, pattern, queue):
                self.made.append(step)
                return client, f"SUB {pattern} {queue} {len(self.made)}\r\n".encode()
            case Publish(client, subject, reply, times):
                return client, f"PUB {subject} {reply} 1\r\nx\r\n".encode() * times
            case Unsubscribe(which, limit):
                if which >= len(self.made):
                    return 0, b"UNSUB 999\r\n"
                one = self.made[which]
                limit = 0 if one.queue else limit  # whoever of a group uses its limit up is left to chance
                return one.client, f"UNSUB {which + 1} {limit or ''}\r\n".encode()

    def outcome(self, heard: dict[int, list[bytes]]) -> Outcome:
        alone: defaultdict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        grouped: Counter[tuple[bytes, bytes]] = Counter()
        told: Counter[tuple[int, bytes]] = Counter()
        for client, said in heard.items():
            lines = iter(said)
            for line in lines:
                words = line.split()
                if words and words[0] == b"MSG":
                    one = self.made[int(words[2]) - 1]
                    told_as = b" ".join([words[1], *words[3:], next(lines)])  # with what it carries
                    if one.queue:
                        grouped[one.queue.encode(), told_as] += 1
                    else:
                        alone[client, words[2]].append(told_as)
                elif words and words[0] == b"HMSG":  # to any of its subscriptions that fit
                    told[client, b" ".join([words[1], *words[3:]])] += 1
                else:
                    told[client, line] += 1
        return Outcome(dict(alone), grouped, told)


async def outcomes(bus: EitherBus, steps: Sequence[Step]) -> list[Outcome]:
    """Run a program, each step to its end before the next one."""
    program, found = Program(), []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw(bus.url, **CONNECT)) for _ in range(CLIENTS)]
        for step in steps:
            who, said = program.said(step)
            clients[who].say(said)
            heard = {who: await clients[who].pong()}
            heard |= {n: await client.pong() for n, client in enumerate(clients) if n != who}
            found.append(program.outcome(heard))
    return found


async def on_both(real: RealBus, steps: Sequence[Step]) -> tuple[list[Outcome], list[Outcome]]:
    expected = await outcomes(real, steps)
    async with memory_bus(ServerSettings()) as memory:
        await memory.start()
        got = await outcomes(memory, steps)
        await memory.kill()
    return expected, got


def test_random_programs_deliver_the_same_on_both() -> None:
    with asyncio.Runner() as runner:
        real = RealBus(ServerSettings())
        runner.run(real.start())

        @example(ALONE_AND_IN_A_GROUP)
        @settings(max_examples=30)
        @given(PROGRAMS)
        def delivers_the_same(steps: list[Step]) -> None:
            expected, got = runner.run(on_both(real, steps))
            assert got == expected

        try:
            delivers_the_same()
        finally:
            runner.run(real.stop())
