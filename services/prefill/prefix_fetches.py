"""Fetch prefixes of prompts from prefill workers that have them, where that is faster than computing them.

    asking → reserving → receiving → (in the prefix cache)

A prompt waits in the queue for its prefix, no longer than it would take to compute that. What comes is in
the prefix cache once all of it is verified, as any other block there; whatever fails meanwhile, the prompt is
computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from services.prefill.driver import PrefillDriver
from services.prefill.fetch_price import FetchPrices
from services.prefill.job import PrefillJob
from shared.blocks.prefix_fetch import LEAST_BLOCKS, MAX_FETCH_S, is_worth_fetching
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.engine import BLOCK_TOKENS, Engine, Reservation
from shared.errors import DeadlineExpired, PenstockError
from shared.kv.both_sides import MakeReceiver
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.transfer_key import TransferKey
from shared.messages import NO_FETCHES, FetchReport, LendPrefix, PrefixLender, pack_hashes
from shared.seams.clock import SYSTEM_CLOCK
from shared.tasks import Tasks, cancel_until_done
from shared.telemetry import metrics
from shared.worker.rate import TokenRate
from shared.worker.wire import sequence_key

log = structlog.get_logger()

MAX_FETCH_BYTES = 512 << 20
"""The most bytes of one fetch; of a longer prefix the first part is fetched."""


def fetch_id(request_id: str) -> str:
    """Return the name that the transfer of a request's prefix has: that of its own KV is another."""
    return f"{request_id}.prefix"


@dataclass(slots=True, eq=False)
class _Fetch:
    """`names` are those of all blocks of the prefix, of which the first `known` are here already."""

    job: PrefillJob
    lender: PrefixLender
    names: list[bytes]
    known: int
    num_bytes: int
    deadline: Deadline
    outcome: str = "cancelled"
    landed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def transfer_key(self) -> TransferKey:
        return fetch_id(self.job.request_id), self.job.epoch

    @property
    def key(self) -> str:
        """The engine's name for it."""
        return sequence_key(*self.transfer_key)


class PrefixFetches:
    """The fetches of a worker, at most `limit` at a time; `rate` is how fast it computes prompts.

    `ended` hears of jobs that wait for theirs no longer, some with less to compute than before.
    `on_complete`, `on_failed` and `on_released` are the receiver's callbacks, from anywhere on the loop.
    """

    def __init__(
        self,
        instance: str,
        limit: int,
        bus: Bus,
        driver: PrefillDriver,
        rate: TokenRate,
        ended: Callable[[PrefillJob], None],
        wake: Callable[[], None],
    ) -> None:
        """`instance` is this worker."""
        self._instance = instance
        self._limit = limit
        self._bus = bus
        self._driver = driver
        self._rate = rate
        self._ended = ended
        self._wake = wake
        self._prices = FetchPrices()
        self._tasks = Tasks()
        self._under_way: dict[TransferKey, tuple[_Fetch, asyncio.Task[None]]] = {}
        self.receiver: KvReceiver

    async def open(self, engine: Engine, make_receiver: MakeReceiver) -> None:
        """Begin to receive into the pool of `engine`."""
        self.receiver = make_receiver(engine, self.on_complete, self.on_failed, self.on_released)
        await self.receiver.start()

    def begin(self, job: PrefillJob, lender: PrefixLender) -> None:
        """Let the job wait for what `lender` has of its prompt, if that is there notably sooner than it is
        computed."""
        fetch = self._worthwhile(job, lender)
        if fetch is None:
            return
        job.fetching, job.coming_tokens = True, (len(fetch.names) - fetch.known) * BLOCK_TOKENS
        began_s = SYSTEM_CLOCK.monotonic_s()
        task = self._tasks.start(f"fetch-{job.request_id}", self._fetch(fetch))
        self._under_way[fetch.transfer_key] = fetch, task
        task.add_done_callback(lambda _: self._end(fetch, began_s))

    def report(self) -> FetchReport:
        """Return what a fetch from a lender costs now; NO_FETCHES where none would begin."""
        speed = self._prices.usual()
        if speed is None or len(self._under_way) >= self._limit:
            return NO_FETCHES
        return FetchReport(
            answer_us=round(speed.answer_s * 1e6),
            tokens_per_s=speed.bytes_per_s * BLOCK_TOKENS / self._block_bytes,
            most_tokens=MAX_FETCH_BYTES // self._block_bytes * BLOCK_TOKENS,
        )

    def cancel(self, job: PrefillJob) -> None:
        """Nobody needs the job's prefix any more."""
        found = self._under_way.get((fetch_id(job.request_id), job.epoch))
        if found is not None:
            found[1].cancel()

    async def close(self) -> None:
        """End all that is under way."""
        await cancel_until_done(*[task for _, task in self._under_way.values()])

    # ---- whether it is worth it ---------------------------------------------------------------------

    def _worthwhile(self, job: PrefillJob, lender: PrefixLender) -> _Fetch | None:
        known = job.cached_tokens // BLOCK_TOKENS
        end = min(
            max(0, lender.blocks), job.max_reusable_blocks, known + MAX_FETCH_BYTES // self._block_bytes
        )
        names = job.spec.block_hashes[:end]
        missing = len(names) - known
        if lender.instance in ("", self._instance) or not self._limit or missing < LEAST_BLOCKS:
            return None
        num_bytes = missing * self._block_bytes
        rate = self._rate.tokens_per_s or lender.tokens_per_s  # workers of one model are mostly alike
        fetch_s = self._prices.predicted_s(lender.instance, num_bytes)
        if not is_worth_fetching(missing, fetch_s, rate):
            self._count("not_worth_it")
            return None
        if len(self._under_way) >= self._limit:
            self._count("busy")
            return None
        limit = job.deadline.shrink(min(missing * BLOCK_TOKENS / rate, MAX_FETCH_S))
        return _Fetch(job, lender, names, known, num_bytes, limit)

    @property
    def _block_bytes(self) -> int:
        """The bytes of a block of all groups of layers."""
        layout = self._driver.engine.layout
        return layout.block_bytes * layout.groups.count

    # ---- one fetch ----------------------------------------------------------------------------------

    async def _fetch(self, fetch: _Fetch) -> None:
        lender = fetch.lender.instance
        try:
            async with fetch.deadline.timeout():
                asked_s = SYSTEM_CLOCK.monotonic_s()
                await self._ask_lender(fetch)
                answer_s = SYSTEM_CLOCK.monotonic_s() - asked_s
                reserved = await self._reserve(fetch)
                expected_s = SYSTEM_CLOCK.monotonic_s()
                await self._receive(fetch, reserved)
                transfer_s = SYSTEM_CLOCK.monotonic_s() - expected_s
                await self._driver.call_soon(lambda engine: engine.take_prefix(fetch.key))
        except (PenstockError, TimeoutError) as error:
            fetch.outcome = error.code if isinstance(error, PenstockError) else DeadlineExpired.code
            self._prices.observe_failure(lender)
            log.info("prefix_not_fetched", request_id=fetch.job.request_id, lender=lender, why=str(error))
        else:
            self._prices.observe(lender, answer_s, fetch.num_bytes, transfer_s)
            self._take(fetch)

    async def _ask_lender(self, fetch: _Fetch) -> None:
        envelope = self._bus.envelope(*fetch.transfer_key, fetch.deadline, fetch.job.gateway)
        request = LendPrefix(pack_hashes(fetch.names), self._instance, fetch.job.share)
        await self._bus.ask(inbox("prefill", fetch.lender.instance), request, envelope, fetch.deadline)

    async def _reserve(self, fetch: _Fetch) -> Reservation:
        """Room for the blocks. Raises Overloaded."""
        job, num_tokens = fetch.job, len(fetch.names) * BLOCK_TOKENS
        try:
            return await self._driver.call_soon(
                lambda engine: engine.reserve(fetch.key, num_tokens, fetch.names, share=job.share)
            )
        except BaseException:
            self._driver.release_later(fetch.key)  # it may be given all the same
            raise

    async def _receive(self, fetch: _Fetch, reserved: Reservation) -> None:
        """Return when all blocks are in their places and verified."""
        try:
            self.receiver.expect_transfer(
                *fetch.transfer_key,
                fetch.job.gateway,
                fetch.lender.instance,
                fetch.lender.incarnation,
                reserved.tables,
                reserved.first_blocks,
                fetch.deadline,
            )
        except PenstockError:
            self._driver.release_later(fetch.key)
            raise
        try:
            await fetch.landed
        except BaseException:
            self.receiver.abort_transfer(
                fetch.transfer_key, "computed instead"
            )  # on_released gives them back
            raise

    def _take(self, fetch: _Fetch) -> None:
        """The prefix cache has all of it now."""
        job, fetch.outcome = fetch.job, "fetched"
        job.cached_tokens, job.coming_tokens = len(fetch.names) * BLOCK_TOKENS, 0
        job.fetched_tokens = job.cached_tokens - fetch.known * BLOCK_TOKENS
        metrics.PREFIX_FETCHED_TOKENS.inc(job.fetched_tokens)

    def _end(self, fetch: _Fetch, began_s: float) -> None:
        """The job waits for it no longer."""
        del self._under_way[fetch.transfer_key]
        self._count(fetch.outcome)
        fetch.job.fetching, fetch.job.coming_tokens = False, 0
        fetch.job.fetch_s = SYSTEM_CLOCK.monotonic_s() - began_s
        self._ended(fetch.job)
        self._wake()

    def _count(self, outcome: str) -> None:
        metrics.PREFIX_FETCHES.labels(outcome=outcome).inc()

    # ---- what the receiver says -----------------------------------------------------------------------

    def on_complete(self, key: TransferKey, _ids: tuple[int, ...], _finish: str, _exposed_us: int) -> None:
        fetch = self._waiting(key)
        if fetch is not None:
            fetch.landed.set_result(None)

    def on_failed(self, key: TransferKey, error: PenstockError) -> None:
        fetch = self._waiting(key)
        if fetch is not None:
            fetch.landed.set_exception(error)

    def on_released(self, key: TransferKey) -> None:
        """No late byte can land in its blocks any more."""
        self._driver.release_later(sequence_key(*key))
        self._wake()

    def _waiting(self, key: TransferKey) -> _Fetch | None:
        found = self._under_way.get(key)
        return None if found is None or found[0].landed.done() else found[0]
