"""Clients that ask for all kinds of things without a pause, and judge what they get.

An answer is what it was undisturbed, or its call was given up by its client, or it has expired when it was
to, or, where a role had nobody for as long as its client waits, has ended as that. What broke with its
gateway counts as lost, where a gateway was ended meanwhile; a stream that could be gone on with does only
where a decode worker was ended too. Everything else is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from penstock.client import Cancelled, Expired, PenstockError, Shed, StreamLost, Unavailable
from tests.chaos.soak.asks import ASKS, LONG_TOKENS, NUMBERS, Door, Heard, hear, stream_of

HURRIED = "short of time"
NOBODY = "instance is ready"
"""So it is said at a deadline, where a role had nobody until then."""
WEIGHTS = {
    "stream": 6,
    "events": 4,
    "whole": 3,
    "passages": 2,
    "search": 1,
    "long": 1,
    "given up": 2,
    HURRIED: 2,
}
LATE_S = 2.0
"""An end may come so much later than its deadline, on a machine that does much else."""
LONGEST_CALL_S = 150.0
"""A call that lasts longer than its patience and this hangs."""
GATEWAY_GONE_S = 3.0
"""A call that breaks so soon after a gateway was ended may have been its own."""
UNDISTURBED_AT_ONCE = 3
Undisturbed = dict[tuple[str, int], Heard]


@dataclass(slots=True)
class Tally:
    """`wrong` tells of each answer that is none of what it may be; `pauses_s` are by kind of call."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    pauses_s: dict[str, list[float]] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)

    def note(self, kind: str, outcome: str, heard: Heard | None = None) -> None:
        self.outcomes[kind, outcome] += 1
        if heard is not None and heard.times_s:
            self.pauses_s.setdefault(kind, []).append(heard.pause_s)


class Clients:
    """`gone_since(began_s)` returns which roles had an instance ended since then, of what they knew."""

    def __init__(
        self,
        doors: Sequence[Door],
        undisturbed: Undisturbed,
        seed: int,
        count: int,
        gone_since: Callable[[float], set[str]],
    ) -> None:
        self.tally = Tally()
        self.doors = list(doors)
        """The clients that ask; they may be others in the next round."""
        self._undisturbed = undisturbed
        self._drawn = [random.Random(f"{seed}/{number}") for number in range(count)]
        self._gone_since = gone_since
        self._enough = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._enough.clear()
        self._running = [asyncio.create_task(self._ask_on(drawn)) for drawn in self._drawn]

    async def finish(self) -> None:
        """Let every call that has begun come to its end."""
        self._enough.set()
        await asyncio.gather(*self._running)

    async def _ask_on(self, drawn: random.Random) -> None:
        while not self._enough.is_set():
            (kind,) = drawn.choices(list(WEIGHTS), list(WEIGHTS.values()))
            door, number = drawn.choice(self.doors), drawn.randrange(NUMBERS)
            if kind == "given up":
                await self._judge(kind, number, self._give_up(door, number, drawn.random()))
            elif kind == HURRIED:
                await self._judge(kind, number, self._hurry(door, number, 0.1 + drawn.random()))
            else:
                await self._judge(kind, number, self._ask(kind, door, number))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2 * drawn.random()):
                    await self._enough.wait()

    async def _judge(self, kind: str, number: int, call: Awaitable[str]) -> None:
        """Note the outcome that a call returns, or what its error means."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST_CALL_S):
                outcome = await call
        except TimeoutError:
            outcome = self._wrong(kind, number, f"hangs for {LONGEST_CALL_S:g} s")
        except Shed:
            outcome = "shed"
        except (PenstockError, OSError, aiohttp.ClientError) as error:
            gone = self._gone_since(began_s - GATEWAY_GONE_S)
            lost = isinstance(error, StreamLost) or "stream_lost" in str(error)
            # One that had little time may have ended by its deadline while its gateway was gone.
            if "gateway" in gone and (not lost or "decode" in gone or kind == HURRIED):
                outcome = "lost with its gateway"
            else:
                outcome = self._wrong(kind, number, f"{type(error).__name__}: {error}")
        if outcome:
            self.tally.note(kind, outcome)

    def _wrong(self, kind: str, number: int, why: str) -> str:
        sentence = f"{time.strftime('%H:%M:%S')}  {kind} {number}: {why}"[:400]
        print(sentence, file=sys.stderr, flush=True)
        self.tally.wrong.append(sentence)
        return "wrong"

    async def _ask(self, kind: str, door: Door, number: int) -> str:
        heard = Heard()
        await ASKS[kind](door, number, heard)
        self.tally.pauses_s.setdefault(kind, []).append(heard.pause_s)
        wanted = self._undisturbed[kind, number].content
        if why := heard.wrong():
            return self._wrong(kind, number, why)
        if heard.content != wanted:
            return self._wrong(kind, number, difference(heard.content, wanted))
        return "as undisturbed"

    async def _give_up(self, door: Door, number: int, after_s: float) -> str:
        stream = stream_of(door, number, LONG_TOKENS, LONGEST_CALL_S)
        heard = Heard()
        reading = asyncio.create_task(hear(stream, heard))
        await asyncio.wait([reading], timeout=after_s)
        stream.cancel()
        with contextlib.suppress(Cancelled):
            await reading
        return self._begins_alike("given up", number, heard)

    async def _hurry(self, door: Door, number: int, deadline_s: float) -> str:
        heard, began_s = Heard(), time.monotonic()
        outcome = "in time"
        try:
            await hear(stream_of(door, number, LONG_TOKENS, deadline_s), heard)
        except Expired:
            outcome = "expired"
        except Unavailable as error:
            if NOBODY not in error.message:
                raise
            outcome = "nobody in time"
        late_s = time.monotonic() - began_s - deadline_s
        self.tally.late_s.append(late_s)
        if late_s > LATE_S:
            return self._wrong(HURRIED, number, f"ends {late_s:.1f} s late")
        return self._begins_alike(outcome, number, heard)

    def _begins_alike(self, outcome: str, number: int, heard: Heard) -> str:
        """Return the outcome where what was heard is the beginning of what it would have been."""
        wanted = self._undisturbed["long", number]
        if heard.text == wanted.text[: len(heard.text)] and heard.ids == wanted.ids[: len(heard.ids)]:
            return outcome
        return self._wrong(outcome, number, "does not begin as it does undisturbed")


def difference(heard: tuple[object, ...], wanted: tuple[object, ...]) -> str:
    """Say in which part two contents differ, and how."""
    names = ("text", "ids", "finish", "passages")
    for name, mine, other in zip(names, heard, wanted, strict=True):
        if mine != other:
            return f"another {name}: {str(mine)[:80]!r} instead of {str(other)[:80]!r}"
    return "another answer"


async def ask_undisturbed(door: Door) -> Undisturbed:
    """Ask for each thing once."""
    undisturbed: Undisturbed = {(kind, number): Heard() for kind in ASKS for number in range(NUMBERS)}
    left = list(undisturbed.items())

    async def ask_in_turn() -> None:
        while left:
            (kind, number), heard = left.pop(0)
            await ASKS[kind](door, number, heard)
            assert not heard.wrong(), (kind, number, heard)

    await asyncio.gather(*(ask_in_turn() for _ in range(UNDISTURBED_AT_ONCE)))
    return undisturbed
