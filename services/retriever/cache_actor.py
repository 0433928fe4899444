"""The actor of the response cache: answers lookups beside whatever is being searched.

The audit does not count lookups: one holds a place among at most MAX_WAITING and nothing else, for the
quarter of a second that its deadline is away at most, and nobody cancels it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from services.retriever.question_batch import next_batch
from services.retriever.response_cache import KeptEntry, ResponseCache, check_key, check_response
from services.retriever.similar_questions import SimilarQuestions
from shared.actor import BusActor
from shared.bus import Delivery
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import DeadlineExpired, TooLarge, UnknownMessage
from shared.fair_cache import FairCache
from shared.messages import KeepResponse, LookUpResponse, ResponseFound, ResponseMissing
from shared.process.service import Service
from shared.retrieval.encoders.embedder import DIMENSIONS, EmbeddedQuestions
from shared.retrieval.encoders.vectors import Vectors
from shared.seams.threads import THREADS
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import metrics

log = structlog.get_logger()

HOP = "retriever"
CACHE_MESSAGES = (LookUpResponse, KeepResponse)
"""The messages to a retriever that go to this actor."""
MAX_WAITING = 64
"""Lookups whose questions wait to be embedded; of more, one of the tenant with most is a miss at once."""
MAX_KEPT_VECTORS = 1024
"""The most vectors of questions that were missed, kept for when their answers come: 1.5 kB each, shared out
by tenant."""

EmbedQuestions = Callable[[Sequence[str], Sequence[str]], EmbeddedQuestions]
"""Takes questions and their tenants. Runs in the actor's own thread."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingLookup:
    """It was not found as it is; its question is to be compared."""

    delivery: Delivery
    lookup: LookUpResponse
    end: Deadline

    @property
    def tenant(self) -> str:
        return self.lookup.key.tenant

    @property
    def question_bytes(self) -> int:
        return len(self.lookup.key.question.encode(errors="surrogatepass"))


class CacheActor(BusActor):
    """Owns the kept answers. A crash costs them, and no question that is being searched for."""

    def __init__(
        self,
        service: Service[RetrieverConfig],
        embed: EmbedQuestions,
        corpora: Corpora,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__("response-cache", service)
        self._config = config = service.config
        self._embed = embed
        self._corpora = corpora
        self._questions = SimilarQuestions(config.cache_entries, DIMENSIONS)
        self._cache = ResponseCache(
            config.cache_mb << 20, config.cache_entries, config.cache_ttl_s, clock, self._questions.discard
        )
        self._searched = corpora.states()
        self._waiting: deque[WaitingLookup] = deque()
        self._vectors: FairCache[bytes, Vectors] = FairCache(MAX_KEPT_VECTORS)
        self._work: asyncio.Task[None] | None = None
        self._thread = THREADS.pool(1, "response-cache")

    # ---- messages -------------------------------------------------------------------------------

    async def on_message(self, delivery: Delivery) -> None:
        self._follow_indexes()
        match delivery.message:
            case LookUpResponse() as lookup:
                await self._look_up(delivery, lookup)
            case KeepResponse() as keep:
                self._keep(keep)
            case other:
                raise UnknownMessage(f"a response cache has no use for {type(other).__name__}")

    def _follow_indexes(self) -> None:
        """Drop answers from indexes that are not searched any more."""
        if (searched := self._corpora.states()) != self._searched:
            self._searched = searched
            self._cache.drop_generations(searched)

    def _generation(self, lookup: LookUpResponse) -> str:
        return self._corpora.state_of(lookup.corpus, lookup.key.tenant)

    async def _look_up(self, delivery: Delivery, lookup: LookUpResponse) -> None:
        end = self.bus.deadline_of(delivery.envelope) or Deadline.after(self._config.default_budget_s)
        if end.expired():
            raise _late()
        check_key(lookup.key)
        entry = self._cache.find(lookup.key, self._generation(lookup), lookup.max_age_ms / 1e3)
        if entry is not None:
            await self._give(delivery, entry, 1.0)
        elif lookup.key.question:
            await self._wait(WaitingLookup(delivery, lookup, end))
        else:
            await self._miss(delivery, lookup)

    async def _wait(self, newcomer: WaitingLookup) -> None:
        """Wait to be compared. Where too many do, the latest lookup of the tenant with most is a miss."""
        self._waiting.append(newcomer)
        if len(self._waiting) <= MAX_WAITING:
            return
        waiting = Counter(each.tenant for each in self._waiting)
        largest = max(waiting, key=lambda tenant: (waiting[tenant], tenant == newcomer.tenant))
        one_too_many = next(each for each in reversed(self._waiting) if each.tenant == largest)
        self._waiting.remove(one_too_many)
        await self._miss(one_too_many.delivery, one_too_many.lookup)

    async def _give(self, delivery: Delivery, entry: KeptEntry, similarity: float) -> None:
        metrics.RESPONSE_CACHE_LOOKUPS.labels(result="exact" if similarity == 1.0 else "semantic").inc()
        age_ms = round(self._cache.age_s(entry) * 1e3)
        await self.bus.answer(delivery.envelope, ResponseFound(entry.response, age_ms, similarity), hop=HOP)

    async def _miss(self, delivery: Delivery, lookup: LookUpResponse) -> None:
        metrics.RESPONSE_CACHE_LOOKUPS.labels(result="miss").inc()
        await self.bus.answer(delivery.envelope, ResponseMissing(self._generation(lookup)), hop=HOP)

    def _keep(self, keep: KeepResponse) -> None:
        check_key(keep.key)
        check_response(keep.response)
        if keep.retrieves and (not keep.generation or keep.generation not in self._searched):
            metrics.RESPONSE_CACHE_STORES.labels(result="stale").inc()
            return
        vector = self._vectors.pop(keep.key.tenant, keep.key.exact)
        generation = keep.generation if keep.retrieves else ""
        more_bytes = 0 if vector is None else self._questions.bytes_per_row
        try:
            entry = self._cache.put(keep.key, keep.response, generation, more_bytes)
        except TooLarge as error:
            log.info("answer_not_kept", error=str(error))
            metrics.RESPONSE_CACHE_STORES.labels(result="too_large").inc()
            return
        if vector is not None:
            self._questions.add(entry, vector)
        metrics.RESPONSE_CACHE_STORES.labels(result="kept").inc()

    # ---- questions that are compared --------------------------------------------------------------

    async def turn(self) -> bool:
        if self._work is None and self._waiting:
            self._work = start_task(self._compare(), name="compare")
            self._work.add_done_callback(self._on_done)
        return False

    def _on_done(self, work: asyncio.Task[None]) -> None:
        """Handle the end of a comparison; lookups of one that was cut short are told at their deadlines."""
        self._work = None
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("compare_failed", exc_info=error)
        self.wake()

    async def _compare(self) -> None:
        """Compare a batch of the lookups that wait."""
        for late in [each for each in self._waiting if each.end.expired()]:
            self._waiting.remove(late)
            await self.refuse(late.delivery, _late())
        batch = next_batch(self._waiting, self._config.batch, self._config.batch_bytes)
        if not batch:
            return
        for each in batch:
            self._waiting.remove(each)
        loop, keys = asyncio.get_running_loop(), [each.lookup.key for each in batch]
        questions, tenants = [key.question for key in keys], [key.tenant for key in keys]
        try:
            embedded = await loop.run_in_executor(self._thread, self._embed, questions, tenants)
        except Exception:  # the encoder's: every lookup is a miss, and the next ones are tried again
            log.exception("embed_failed", questions=len(batch))
            for each in batch:
                await self._miss(each.delivery, each.lookup)
            return
        self._follow_indexes()
        for each, vector, truncated in zip(batch, embedded.vectors, embedded.truncated, strict=True):
            await self._compare_one(each, None if truncated else vector)

    async def _compare_one(self, waiting: WaitingLookup, vector: Vectors | None) -> None:
        """`vector` is None for a question that is longer than what is compared."""
        lookup, key = waiting.lookup, waiting.lookup.key
        if vector is not None:
            least = lookup.min_similarity or self._config.cache_min_similarity
            found = self._questions.nearest(key.tenant, key.near, key.question, vector, least)
            for similarity, entry in found:
                if self._cache.is_good(entry, self._generation(lookup), lookup.max_age_ms / 1e3):
                    await self._give(waiting.delivery, entry, similarity)
                    return
            self._vectors.put(key.tenant, key.exact, vector.copy())  # the array of its batch is not kept
        await self._miss(waiting.delivery, lookup)

    async def on_stop(self) -> None:
        if self._work is not None:
            await cancel_until_done(self._work)
        for each in self._waiting:
            await self._miss(each.delivery, each.lookup)
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _late() -> DeadlineExpired:
    metrics.RESPONSE_CACHE_LOOKUPS.labels(result="late").inc()
    return DeadlineExpired("there was no time left to look for an earlier answer", hop=HOP)
