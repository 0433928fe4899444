"""A prefill worker fetches a prefix or computes it; the test is the worker that has it, and KV that comes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from services.prefill import prefix_fetches
from services.prefill.fetch_price import FAILED_S, FIRST_ANSWER_S, FIRST_BYTES_PER_S
from services.prefill.prefix_fetches import MAX_FETCH_BYTES
from shared.blocks.prefix_fetch import LEAST_BLOCKS, MARGIN
from shared.deadline import Deadline
from shared.engine import BLOCK_TOKENS
from shared.errors import Overloaded, PenstockError, Unavailable
from shared.messages import (
    NO_FETCHES,
    Accepted,
    Cancel,
    Envelope,
    LendPrefix,
    Message,
    Prefill,
    PrefixLender,
    Tokens,
    pack_hashes,
    pack_ids,
    unpack_hashes,
)
from shared.sampling.parameters import SamplingParams
from tests.support.block_hashes import hashes_of
from tests.support.clock import FakeClock
from tests.support.metric import value
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.played_receiver import PlayedReceiver
from tests.support.sampling import sampling
from tests.support.wait import until
from tests.unit.services.prefill.test_actor import Worker

PROMPT = [at % 90 + 1 for at in range(8 * BLOCK_TOKENS + 3)]
NAMES = hashes_of(PROMPT)
KEY = ("r.prefix", 1)
SLOW = 10.0
"""Tokens per second: whatever comes from elsewhere is there sooner."""
FETCHES = "penstock_prefix_fetches_total"


class AskedBus(NotedBus):
    """Its questions are answered by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_of: list[tuple[str, Message]] = []
        self.answers: list[asyncio.Future[Message]] = []

    async def ask(
        self,
        address: str,
        message: Message,
        _: Envelope,
        _until: Deadline,
        _go_on: object = None,
        *,
        opened: object = None,  # noqa: ARG002 - as the bus has it
    ) -> Message:
        self.asked_of.append((address, message))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


class Fetcher(Worker):
    bus_type = AskedBus

    @property
    def bus_asked(self) -> AskedBus:
        return cast(AskedBus, self.sent)

    async def place_beside(
        self, blocks: int = 8, *, request_id: str = "r", rate: float = SLOW, how: SamplingParams | None = None
    ) -> None:
        """A prompt comes of which prefill-1 has so many blocks, and computes at such a `rate`."""
        lender = PrefixLender("prefill-1", 7, blocks, 0, rate)
        wanted = how or sampling(ignore_eos=True)
        route = ("gateway-0", "detokenizer-0", "decode-0", 0)
        names = pack_hashes(NAMES)
        prefill = Prefill(pack_ids(PROMPT), len(PROMPT), names, wanted, *route, lender=lender)
        await self.handle(self.sent.asked(prefill, request_id, 1))
        assert isinstance(self.sent.to(REPLY).pop(), Accepted)
        await asyncio.sleep(0)

    @property
    def receiver(self) -> PlayedReceiver:
        return cast(PlayedReceiver, self._fetches.receiver)

    @property
    def fetching(self) -> list[str]:
        return [job.request_id for job in self._book.jobs.values() if job.fetching]

    async def answer(self, answer: Message | PenstockError) -> None:
        if isinstance(answer, PenstockError):
            self.bus_asked.answers[-1].set_exception(answer)
        else:
            self.bus_asked.answers[-1].set_result(answer)

    async def expecting(self) -> None:
        """The other worker sends, and this one has made room."""
        await self.place_beside()
        await self.answer(Accepted())
        await self.steps_until(lambda: bool(self.receiver.expected))

    async def steps_until(self, done: Callable[[], bool]) -> None:
        async def step() -> bool:
            await self.step()
            return done()

        await until(step)

    async def computed(self) -> int:
        """Return how many tokens were computed for the first token of the request."""
        await self.until_first_token()
        job = self._book.jobs["r/1"]
        return job.num_tokens - job.cached_tokens

    def marks(self) -> set[str]:
        return {
            mark.phase
            for tokens in self.sent.to("penstock.detokenizer.detokenizer-0")
            if isinstance(tokens, Tokens)
            for row in tokens.marks
            for mark in row
        }


@pytest.fixture
async def worker(llm_dir: Path) -> AsyncIterator[Fetcher]:
    worker = Fetcher(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def test_what_has_come_is_not_computed_and_the_first_token_says_where_it_was(worker: Fetcher) -> None:
    before = value("penstock_prefix_fetched_tokens_total")
    await worker.expecting()
    ((address, request),) = worker.bus_asked.asked_of
    assert address == "penstock.prefill.prefill-1"
    assert isinstance(request, LendPrefix)
    assert (unpack_hashes(request.block_hashes), request.receiver) == (NAMES, "prefill-0")
    worker.receiver.complete(KEY, (), "", 0)
    assert await worker.computed() == 3
    assert {"prefill.queue", "prefill.fetch", "prefill.compute", "count:fetched_tokens"} <= worker.marks()
    assert value("penstock_prefix_fetched_tokens_total") == before + len(NAMES) * BLOCK_TOKENS
    assert worker.fetching == []


@pytest.mark.parametrize(
    "answer",
    [Overloaded("not all there"), Unavailable("nobody listens there")],
    ids=["overloaded", "unavailable"],
)
async def test_a_prefix_that_is_not_to_be_had_is_computed_and_its_lender_left_alone(
    worker: Fetcher, answer: PenstockError
) -> None:
    clock = worker._fetches._prices._clock = FakeClock()
    await worker.place_beside()
    await worker.answer(answer)
    assert await worker.computed() == len(PROMPT)
    worker._mirror.clear()  # or it would know all of it by now
    for seconds, asked in ((0.0, 1), (FAILED_S + 0.1, 2)):
        clock.advance(seconds)
        await worker.place_beside(request_id=f"after-{seconds}")
        assert len(worker.bus_asked.asked_of) == asked


async def test_a_transfer_that_fails_leaves_its_blocks_to_nobody_until_it_is_released(
    worker: Fetcher,
) -> None:
    await worker.expecting()
    worker._fetches.on_failed(KEY, Unavailable("gone"))
    assert await worker.computed() == len(PROMPT)
    assert "r.prefix/1" in worker._driver.engine.held()
    worker.receiver.acknowledge_abort(KEY)
    await worker.steps_until(lambda: "r.prefix/1" not in worker._driver.engine.held())


async def test_a_prefix_that_does_not_come_in_time_is_computed(
    worker: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = value(FETCHES, outcome="expired")
    monkeypatch.setattr(prefix_fetches, "MAX_FETCH_S", 0.0)
    await worker.place_beside()
    assert await worker.computed() == len(PROMPT)
    assert value(FETCHES, outcome="expired") == before + 1


@pytest.mark.parametrize("when", ["asked", "reserving", "receiving"])
async def test_a_cancel_ends_the_fetch_wherever_it_is_and_gives_everything_back(
    worker: Fetcher, when: str
) -> None:
    if when == "receiving":
        await worker.expecting()
    else:
        await worker.place_beside()
        if when == "reserving":
            await worker.answer(Accepted())
            await until(lambda: worker._driver._orders)
    await worker.send(Cancel("cancelled"))
    await worker.steps_until(lambda: not worker._fetches._under_way)
    assert worker.receiver.aborted == ([KEY] if when == "receiving" else [])
    if when == "receiving":
        assert worker._driver.engine.held() != {}
        worker.receiver.acknowledge_abort(KEY)
    await worker.steps_until(lambda: not list(worker.held()))


@pytest.mark.parametrize(
    ("rate", "blocks", "asked"),
    [
        (SLOW, LEAST_BLOCKS - 1, False),
        (SLOW, LEAST_BLOCKS, True),
        (1e9, 8, False),  # computing is quicker
        (0.0, 8, False),  # nobody knows how fast it is computed
        (math.nan, 8, False),
        (math.inf, 8, False),
        (SLOW, -1, False),
    ],
)
async def test_a_prefix_is_fetched_where_computing_it_takes_notably_longer(
    worker: Fetcher, rate: float, blocks: int, asked: bool
) -> None:
    await worker.place_beside(blocks, rate=rate)
    assert (len(worker.bus_asked.asked_of) == 1) is asked
    assert worker.fetching == ["r"] * asked


async def test_the_margin_is_between_what_is_fetched_and_what_is_computed(worker: Fetcher) -> None:
    engine, tokens = worker._driver.engine, 8 * BLOCK_TOKENS
    fetch_s = worker._fetches._prices.predicted_s("prefill-1", 8 * engine.layout.block_bytes)
    at_the_edge = tokens / (MARGIN * fetch_s)
    await worker.place_beside(request_id="computed", rate=1.01 * at_the_edge)
    await worker.place_beside(request_id="fetched", rate=0.99 * at_the_edge)
    assert worker.fetching == ["fetched"]


async def test_no_more_prefixes_are_fetched_at_a_time_than_the_setting_says(worker: Fetcher) -> None:
    before, limit = value(FETCHES, outcome="busy"), worker._config.prefix_fetches
    for number in range(limit + 1):
        await worker.place_beside(request_id=f"r{number}")
    assert worker.fetching == [f"r{number}" for number in range(limit)]
    assert value(FETCHES, outcome="busy") == before + 1


async def test_the_heartbeat_says_what_a_fetch_costs_while_another_one_would_begin(worker: Fetcher) -> None:
    engine = worker._driver.engine
    told = worker.status().worker.fetch
    assert told.answer_us == round(FIRST_ANSWER_S * 1e6)
    assert told.tokens_per_s == pytest.approx(FIRST_BYTES_PER_S * BLOCK_TOKENS / engine.layout.block_bytes)
    assert told.most_tokens == MAX_FETCH_BYTES // engine.layout.block_bytes * BLOCK_TOKENS
    for number in range(worker._config.prefix_fetches):
        await worker.place_beside(request_id=f"r{number}")
    assert worker.status().worker.fetch == NO_FETCHES


async def test_what_comes_from_elsewhere_does_not_wait_to_be_computed(worker: Fetcher) -> None:
    await worker.place_beside()
    assert worker.status().worker.queued_tokens == len(PROMPT) - 8 * BLOCK_TOKENS
    await worker.answer(Overloaded("not all there"))
    await until(lambda: not worker.fetching)
    assert worker.status().worker.queued_tokens == len(PROMPT)


async def test_a_prompt_whose_prefix_has_come_is_as_short_in_the_queue_as_what_is_left(
    worker: Fetcher,
) -> None:
    await worker.expecting()
    worker.receiver.complete(KEY, (), "", 0)

    async def landed() -> bool:
        await worker._driver.flush_releases()
        return not worker.fetching

    await until(landed)
    assert worker._book.queue.queued_tokens == len(PROMPT) - 8 * BLOCK_TOKENS


async def test_a_prompt_whose_log_probabilities_are_wanted_is_computed(worker: Fetcher) -> None:
    await worker.place_beside(how=sampling(ignore_eos=True, prompt_logprobs=1))
    assert worker.bus_asked.asked_of == []
