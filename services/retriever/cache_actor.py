"""The actor of the response cache: answers lookups at once, beside whatever is being searched."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from services.retriever.config import RetrieverConfig
from services.retriever.response_cache import KeptEntry, ResponseCache, check_key, check_response
from shared.actor import BusActor
from shared.bus import Delivery
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import TooLarge, UnknownMessage
from shared.messages import KeepResponse, LookUpResponse, ResponseFound, ResponseMissing
from shared.service import Service
from shared.telemetry import metrics

log = structlog.get_logger()

HOP = "retriever"
CACHE_MESSAGES = (LookUpResponse, KeepResponse)
"""What goes to this actor, of all that a retriever is sent."""


class CacheActor(BusActor):
    """Owns the kept answers. A crash costs them, and no question that is being searched for."""

    def __init__(
        self, service: Service[RetrieverConfig], generation: Callable[[], str], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`generation` names the index that is searched now, "" for none."""
        super().__init__("response-cache", service)
        config = service.config
        self._index_generation = generation
        self._cache = ResponseCache(config.cache_mb << 20, config.cache_entries, config.cache_ttl_s, clock)
        self._generation = generation()

    async def on_message(self, delivery: Delivery) -> None:
        self._follow_index()
        match delivery.message:
            case LookUpResponse() as lookup:
                await self._look_up(delivery, lookup)
            case KeepResponse() as keep:
                self._keep(keep)
            case other:
                raise UnknownMessage(f"a response cache has no use for {type(other).__name__}")

    def _follow_index(self) -> None:
        """What was answered from another index is of no use any more."""
        if (generation := self._index_generation()) != self._generation:
            self._generation = generation
            self._cache.drop_generations(generation)

    async def _look_up(self, delivery: Delivery, lookup: LookUpResponse) -> None:
        end = self.bus.deadline_of(delivery.envelope)
        if end is not None and end.expired():
            metrics.RESPONSE_CACHE_LOOKUPS.labels(result="late").inc()
            end.check(HOP)
        check_key(lookup.key)
        entry = self._cache.find(lookup.key, self._generation, lookup.max_age_ms / 1e3)
        if entry is not None:
            await self._give(delivery, entry, 1.0)
            return
        metrics.RESPONSE_CACHE_LOOKUPS.labels(result="miss").inc()
        await self.bus.answer(delivery.envelope, ResponseMissing(self._generation), hop=HOP)

    async def _give(self, delivery: Delivery, entry: KeptEntry, similarity: float) -> None:
        metrics.RESPONSE_CACHE_LOOKUPS.labels(result="exact" if similarity == 1.0 else "semantic").inc()
        age_ms = round(self._cache.age_s(entry) * 1e3)
        await self.bus.answer(delivery.envelope, ResponseFound(entry.response, age_ms, similarity), hop=HOP)

    def _keep(self, keep: KeepResponse) -> None:
        check_key(keep.key)
        check_response(keep.response)
        if keep.retrieves and keep.generation != self._generation:
            metrics.RESPONSE_CACHE_STORES.labels(result="stale").inc()
            return
        try:
            self._cache.put(keep.key, keep.response, self._generation if keep.retrieves else "")
        except TooLarge as error:
            log.info("answer_not_kept", error=str(error))
            metrics.RESPONSE_CACHE_STORES.labels(result="too_large").inc()
            return
        metrics.RESPONSE_CACHE_STORES.labels(result="kept").inc()
