"""Limits of API keys over several real gateways on a real bus: together the limit, whoever comes and goes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from services.gateway.keys.key_account import KeyAccount, keeper_of
from shared.bus import Bus
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import ProtocolError
from shared.messages import BeginKeyUses, KeyKeptElsewhere, KeyUsesBegun, LeaveKey, Message, Reserve
from tests.integration.gateway_peers import Fleet, Running, ask, fleet, gateway_named, heartbeat
from tests.integration.test_gateway_api_keys import Client, write
from tests.support.client import Answer
from tests.support.clock import FakeClock
from tests.support.http import call, http_client
from tests.support.wait import until

LIMIT = 10
PATIENCE_S = 20.0
"""A loaded machine may take so long for an answer."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.keys.key_desk.ASK_S", PATIENCE_S)
    monkeypatch.setattr("services.gateway.keys.key_desk.ADMIT_S", PATIENCE_S)


@dataclass(slots=True, eq=False)
class Member:
    """One gateway of several."""

    running: Running
    beats: HeartbeatPublisher
    stack: AsyncExitStack

    async def die(self) -> None:
        """Go silent; what it has live stays where it is."""
        task = self.beats._task
        assert task is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.beats._task = self.beats._last = None

    def live_again(self) -> None:
        """It was only silent."""
        self.beats.start()


@dataclass(slots=True, eq=False)
class Gateways:
    """Gateways that share the limits of one key and a clock that stands still."""

    nats_url: str
    peers: Fleet
    clock: FakeClock
    client: Client
    api_keys: str
    members: dict[str, Member] = field(default_factory=dict)
    lost: list[Member] = field(default_factory=list)
    ever: dict[str, Member] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    incarnations: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    async def add(self, name: str, api_keys: str = "") -> None:
        stack = AsyncExitStack()
        options = {"api_keys": api_keys or self.api_keys}
        incarnation = next(self.incarnations)
        running = await stack.enter_async_context(
            gateway_named(self.nats_url, name, self.clock, options, incarnation)
        )
        bus = await Bus.connect(self.nats_url, name=name, sender=name)
        stack.push_async_callback(bus.close)
        beats = HeartbeatPublisher(
            bus, "gateway", name, partial(heartbeat, "gateway", name, incarnation=incarnation)
        )
        beats.start()
        stack.push_async_callback(beats.stop)
        await running.knows("gateway", len(self.members) + 1)
        self.ever[name] = self.members[name] = Member(running, beats, stack)
        for one in self.members.values():
            await one.running.knows("gateway", len(self.members))
            await one.running.knows("tokenizer", 1)

    async def remove(self, name: str) -> None:
        await self.members.pop(name).stack.aclose()
        for one in self.members.values():
            await one.running.knows("gateway", len(self.members))

    async def lose(self, name: str) -> None:
        """It goes silent and is given up by all."""
        lost = self.members.pop(name)
        self.lost.append(lost)
        await lost.die()
        for one in self.members.values():
            await one.running.knows("gateway", len(self.members))

    async def doubt(self, name: str) -> Member:
        """It goes silent, all others take it for dead, and it is not: it is the one that is returned."""
        await self.lose(name)
        return self.lost.pop()

    async def hear_again(self, name: str, member: Member) -> None:
        """One that was taken for dead is heard again, after so long that it hears the others too."""
        self.members[name] = member
        member.live_again()
        for one in self.members.values():
            await one.running.knows("gateway", len(self.members))
        self.clock.advance(1.0)

    @property
    def keeper(self) -> str:
        return keeper_of(self.client.key.hash, self.members)

    @property
    def other(self) -> str:
        """One that does not count the key."""
        return next(name for name in self.members if name != self.keeper)

    def account(self, name: str) -> KeyAccount:
        account = self.members[name].running.key_gate.keys.find_account(self.client.key.hash)
        assert account is not None
        return account

    def outweighing(self) -> str:
        """A name of a gateway that would count the key."""
        for number in self.numbers:
            name = f"gateway-new-{number}"
            if keeper_of(self.client.key.hash, [*self.members, name]) == name:
                return name
        raise AssertionError("there is always one more")

    async def tokenizes(self, name: str, body: object = None) -> int:
        """The status of a call that counts as one request."""
        async with http_client(self.ever[name].running.http.address) as http:
            authorization = f"Bearer {self.client.secret}"
            reply = await call(
                http, "/tokenize", {"prompt": "ab"} if body is None else body, authorization=authorization
            )
        if reply.status == 429:
            assert "has requests_per_min = 10 and has used them up" in str(reply.body)
        return reply.status

    async def takes(self, *names: str) -> list[bool]:
        """Whether each of these calls is taken, one after another."""
        statuses = [await self.tokenizes(name) for name in names]
        assert set(statuses) <= {200, 429}
        return [status == 200 for status in statuses]

    async def begins(self, name: str) -> asyncio.Task[Answer]:
        """A request there that has come as far as decode."""
        seen = len(self.peers["decode-0"].of(Reserve))
        task = asyncio.create_task(self.client.ask(self.members[name].running, ask("hi", max_tokens=8)))
        await until(lambda: task.done() or len(self.peers["decode-0"].of(Reserve)) > seen)
        return task

    async def refused(self, name: str) -> str:
        """The sentence of a request that is refused there."""
        task = await self.begins(name)
        assert task.done()
        return task.result().details

    async def ends(self, task: asyncio.Task[Answer]) -> None:
        """The request's client goes."""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def gateways(nats_url: str, file: Path, count: int = 2, **limits: int) -> AsyncIterator[Gateways]:
    client = Client("web", "acme", **limits)
    async with fleet(nats_url) as peers:
        several = Gateways(nats_url, peers, FakeClock(), client, write(file, client))
        try:
            for number in range(count):
                await several.add(f"gateway-{number}")
            yield several
        finally:
            for one in (*several.members.values(), *several.lost):
                await one.stack.aclose()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


# ---- rates ------------------------------------------------------------------------------------------


async def test_gateways_together_take_as_many_requests_a_minute_as_the_key_has(
    nats_url: str, keys: Path
) -> None:
    async with gateways(nats_url, keys, 3, requests_per_min=LIMIT) as three:
        names = list(three.members) * 5
        assert await three.takes(*names) == [True] * LIMIT + [False] * (len(names) - LIMIT)
        three.clock.advance(60.0 / LIMIT)
        assert await three.takes(three.other, three.keeper) == [True, False]


@pytest.mark.thorough
async def test_calls_at_once_at_all_gateways_are_taken_as_often_as_the_key_has(
    nats_url: str, keys: Path
) -> None:
    async with gateways(nats_url, keys, 3, requests_per_min=LIMIT) as three:
        found = await asyncio.gather(*(three.takes(name) for name in list(three.members) * 8))
    assert sum(taken for (taken,) in found) == LIMIT


@pytest.mark.thorough(but="other")
@pytest.mark.parametrize("first", ["keeper", "other"])
async def test_one_gateway_may_take_all_and_then_no_other_has_any(
    nats_url: str, keys: Path, first: str
) -> None:
    async with gateways(nats_url, keys, requests_per_min=LIMIT) as two:
        one, second = (two.keeper, two.other) if first == "keeper" else (two.other, two.keeper)
        assert await two.takes(*[one] * LIMIT, second, one) == [True] * LIMIT + [False, False]


async def test_tokens_are_counted_together_and_what_is_not_used_is_there_for_all(
    nats_url: str, keys: Path
) -> None:
    async with gateways(nats_url, keys, tokens_per_min=20) as two:
        live = await two.begins(two.other)  # 2 of its prompt and 8 that it may draw
        again = await two.begins(two.keeper)
        assert "has tokens_per_min = 20 and has used them up" in await two.refused(two.other)
        await two.ends(live)
        ledger = two.account(two.keeper).ledger
        await until(lambda: ledger.levels()[1] >= 8.0)
        assert ledger.levels()[1] < 10.0  # its prompt was computed
        await two.ends(again)


async def test_calls_that_are_refused_for_what_they_ask_count_at_all_gateways(
    nats_url: str, keys: Path
) -> None:
    async with gateways(nats_url, keys, requests_per_min=LIMIT) as two:
        for _ in range(LIMIT):
            assert await two.tokenizes(two.other, {"prompt": 5}) == 400
        await until(lambda: two.account(two.other).uncounted == 0 and not two.account(two.other).telling)
        assert await two.takes(two.keeper, two.other) == [False, False]
        assert await two.tokenizes(two.other, {"prompt": 5}) == 429  # nothing of it is read


# ---- concurrency ------------------------------------------------------------------------------------


async def test_as_many_are_live_at_all_gateways_as_the_key_may_have(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, 3, concurrency=2) as three:
        first, second = await three.begins(three.other), await three.begins(three.keeper)
        for name in three.members:
            assert "has concurrency = 2 and that many requests are live" in await three.refused(name)
        await three.ends(first)
        await until(lambda: three.account(three.keeper).ledger.live == 1)
        third = await three.begins(three.keeper)
        assert not third.done()
        for task in (second, third):
            await three.ends(task)


async def test_a_gateway_that_dies_gives_back_what_it_had_live(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, concurrency=1) as two:
        live, keeper = await two.begins(two.other), two.keeper
        assert "concurrency = 1" in await two.refused(keeper)
        await two.lose(two.other)
        again = await two.begins(keeper)
        assert not again.done()
        await two.ends(again)
        await two.ends(live)


@pytest.mark.thorough
async def test_what_is_live_elsewhere_counts_when_its_keeper_has_died(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, concurrency=1) as two:
        live, survivor = await two.begins(two.other), two.other
        await two.lose(two.keeper)
        assert "concurrency = 1" in await two.refused(survivor)
        await two.ends(live)
        await until(lambda: two.account(survivor).ledger.live == 0)
        again = await two.begins(survivor)
        assert not again.done()
        await two.ends(again)


async def test_an_end_that_was_lost_is_found_before_a_limit_is_taken_for_reached(
    nats_url: str, keys: Path
) -> None:
    async with gateways(nats_url, keys, concurrency=1) as two:
        account = two.account(two.keeper)
        live = await two.begins(two.other)
        await two.ends(live)
        await until(lambda: account.ledger.live == 0)
        account.ledger.replace_uses(two.other, [77])  # it ended, and nobody was told
        two.clock.advance(1.0)
        again = await two.begins(two.other)
        assert not again.done()
        await two.ends(again)


# ---- who comes and goes -----------------------------------------------------------------------------


async def test_a_gateway_that_comes_goes_on_from_what_is_left(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, 1, requests_per_min=LIMIT, concurrency=5) as several:
        first = several.keeper
        assert await several.takes(*[first] * 6) == [True] * 6
        live = await several.begins(first)
        await several.add(newcomer := several.outweighing())
        assert await several.takes(newcomer, first, newcomer, first) == [True, True, True, False]
        assert several.account(newcomer).kept
        assert not several.account(first).kept
        assert several.account(newcomer).ledger.live == 1
        await several.ends(live)
        await until(lambda: several.account(newcomer).ledger.live == 0)


async def test_a_gateway_that_leaves_tells_what_is_left(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, requests_per_min=LIMIT) as two:
        leaving = two.keeper
        assert await two.takes(*[leaving] * 6) == [True] * 6
        await two.members[leaving].running.key_gate.keeper.leave()
        await until(lambda: two.account(two.other).ledger.levels()[0] < LIMIT)
        await two.remove(leaving)
        (left,) = two.members
        assert await two.takes(*[left] * 5) == [True] * 4 + [False]


async def test_a_key_whose_keeper_died_goes_on_from_nothing_of_the_minute(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, requests_per_min=LIMIT) as two:
        assert await two.takes(two.other) == [True]
        await two.lose(two.keeper)
        (left,) = two.members
        assert await two.takes(left) == [False]
        two.clock.advance(2 * 60.0 / LIMIT)
        assert await two.takes(left, left, left) == [True, True, False]


@pytest.mark.thorough
async def test_a_keeper_that_died_and_is_back_goes_on_from_nothing_too(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, requests_per_min=LIMIT) as two:
        name = two.keeper
        assert await two.takes(name) == [True]
        await two.lose(name)
        await two.lost.pop().stack.aclose()
        await two.add(name)
        assert await two.takes(name, two.other) == [False, False]


async def test_a_keeper_that_was_wrongly_taken_for_dead_goes_on_from_what_is_left(
    nats_url: str, keys: Path
) -> None:
    """LIMIT a minute is one in six seconds: what three gateways take is what one would have given."""
    async with gateways(nats_url, keys, 3, requests_per_min=LIMIT) as three:
        name = three.keeper
        assert await three.takes(*[name, three.other] * 3) == [True] * 6
        doubted = await three.doubt(name)
        three.clock.advance(12.5)
        assert await three.takes(*[three.keeper, three.other, three.keeper]) == [True, True, False]
        await three.hear_again(name, doubted)
        # Ten less six, two more in twelve seconds, two of them taken: four; and the rest of a seventh.
        assert await three.takes(*[three.other, name] * 3) == [True] * 4 + [False] * 2
        three.clock.advance(60.0)
        assert await three.takes(*[three.other, name] * 6) == [True] * LIMIT + [False] * 2


@pytest.mark.thorough
async def test_of_two_that_were_taken_for_dead_nothing_is_sure(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, 3, requests_per_min=LIMIT) as three:
        name = three.keeper
        assert await three.takes(name) == [True]
        doubted = await three.doubt(name)
        await three.lose(three.keeper)
        await three.hear_again(name, doubted)
        assert await three.takes(name, three.other) == [False, False]


async def test_a_keeper_that_was_held_up_hears_the_others_again(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, concurrency=1) as two:
        live = await two.begins(two.other)
        keeper = two.members[two.keeper].running.key_gate.keeper
        assert keeper.counts(two.account(two.keeper))
        two.clock.advance(0.51)
        assert not keeper.counts(two.account(two.keeper))
        assert "concurrency = 1" in await two.refused(two.keeper)
        await two.ends(live)


async def test_a_gateway_whose_file_has_not_the_key_is_named(
    nats_url: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.keys.key_desk.ADMIT_S", 2.0)
    async with gateways(nats_url, keys, 1, requests_per_min=LIMIT) as several:
        stranger = Client("other", "acme")
        other_file = write(keys.with_name("other.toml"), stranger)
        (first,) = several.members
        await several.add(newcomer := several.outweighing(), other_file)
        said = await several.refused(first)
        assert f"{newcomer}, which counts this key, has no such key in its file" in said


async def test_a_key_without_limits_is_asked_of_nobody(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys) as two:
        assert await two.takes(two.other, two.keeper) == [True, True]
        assert not two.account(two.keeper).heard
        assert not two.account(two.other).rival


# ---- what is no message of a gateway ------------------------------------------------------------------


async def told(several: Gateways, sender: str, message: Message) -> Message:
    bus = await Bus.connect(several.nats_url, name="sender", sender=sender)
    try:
        deadline = Deadline.after(PATIENCE_S)
        to = inbox("gateway", several.keeper)
        return await bus.ask(to, message, bus.envelope(deadline=deadline), deadline)
    finally:
        await bus.close()


@pytest.mark.thorough(but="(1,)-(-1,) | (1, 2)-(1,)")
@pytest.mark.parametrize(("uses", "tokens"), [((), ()), ((1,), ()), ((1,), (-1,)), ((1, 2), (1,))], ids=str)
async def test_uses_that_are_none_are_refused(
    nats_url: str, keys: Path, uses: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    async with gateways(nats_url, keys, 1, concurrency=1) as one:
        with pytest.raises(ProtocolError):
            await told(one, "gateway-x", BeginKeyUses(one.client.key.hash, uses, tokens))
        assert one.account(one.keeper).ledger.live == 0


async def test_a_key_that_is_in_no_file_is_counted_nowhere(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, 1, concurrency=1) as one:
        ask_for = BeginKeyUses("sha256:none", (1,), (1,))
        assert await told(one, "gateway-x", ask_for) == KeyKeptElsewhere(unknown=True)
        known = BeginKeyUses(one.client.key.hash, (1,), (1,))

        async def begun() -> bool:
            return await told(one, "gateway-x", known) == KeyUsesBegun()

        await until(begun)  # when it has listened for others


async def test_what_is_left_is_a_number(nats_url: str, keys: Path) -> None:
    async with gateways(nats_url, keys, 1, requests_per_min=LIMIT) as one:
        with pytest.raises(ProtocolError):
            await told(one, "gateway-x", LeaveKey(one.client.key.hash, float("nan"), 0.0))


# ---- everything at once -------------------------------------------------------------------------------


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("seed", range(4))
async def test_whoever_comes_and_dies_meanwhile_no_more_is_taken_than_the_key_has(
    nats_url: str, keys: Path, seed: int
) -> None:
    """Calls go on at all gateways while others come and die; on a clock that stands still."""
    rng = random.Random(seed)
    async with gateways(nats_url, keys, 3, requests_per_min=LIMIT) as several:
        taken: list[bool] = []
        over = asyncio.Event()

        async def calls() -> None:
            while not over.is_set():
                names = list(several.members)
                found = await asyncio.gather(*(several.tokenizes(rng.choice(names)) for _ in range(4)))
                taken.extend(status == 200 for status in found)

        calling = asyncio.create_task(calls())
        try:
            for _ in range(2):
                await several.add(several.outweighing())
                await several.lose(rng.choice(list(several.members)))
        finally:
            over.set()
            await calling
        assert 0 < sum(taken) <= LIMIT
        several.clock.advance(61.0)
        again = [await several.tokenizes(rng.choice(list(several.members))) for _ in range(LIMIT + 5)]
        assert again.count(200) == LIMIT
