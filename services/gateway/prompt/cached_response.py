"""One request and the answers that are known already: looked up beside its preparation, kept after its end.

The retriever that is asked has the answers of its tenant and model; one that is gone or slow is a miss.
Nothing is held for a lookup: it ends with its own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import structlog

from services.gateway.answer.answer_format import PLAIN_ANSWER, AnswerFormat
from services.gateway.fleet.model_identity import ModelIdentity, with_adapter
from services.gateway.fleet.routing import leave_out
from services.gateway.prompt.response_key import response_key
from services.gateway.request.request import Request
from services.gateway.request_scope import RequestScope
from services.gateway.scope.session_state import SessionState
from shared.blocks.block_hash import fleet_key_bytes
from shared.bus.subjects import inbox
from shared.cache_modes import SEMANTIC
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import (
    MAX_KEPT_BYTES,
    MAX_KEPT_TOKENS,
    CitedSentence,
    KeepResponse,
    KeptResponse,
    LookUpResponse,
    ResponseFound,
    ResponseKey,
    ResponseMissing,
    ScoredPassage,
    Spans,
    TrimmedPart,
    pack_ids,
    passage_bytes,
)
from shared.messages.packing import ID_BYTES
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import metrics

log = structlog.get_logger()

T = TypeVar("T")

LOOKUP_S = 0.25
"""A lookup is of no use to anybody after this, whatever its request still waits for."""
KEPT_FINISHES = ("stop", "stop_string", "length")


@dataclass(frozen=True, slots=True)
class MissedLookup:
    """A lookup that found nothing: where the answer may be kept when it is there."""

    retriever: str
    key: ResponseKey
    generation: str


class CachedResponse:
    def __init__(self, scope: RequestScope) -> None:
        self._context = scope.context
        self._config = scope.config
        self._request_id = scope.request_id
        self._request = scope.request
        self._missed: MissedLookup | None = None
        self._passages: tuple[ScoredPassage, ...] = ()
        self._prompt_places: tuple[int, ...] = ()
        self._answer_format = PLAIN_ANSWER
        self._retrieval_query = ""
        self._passage_spans: tuple[Spans, ...] = ()
        self._trimmed: tuple[TrimmedPart, ...] = ()

    def set_request(self, request: Request) -> None:
        """Take the request with all that it left open: an answer depends on that."""
        self._request = request

    async def look_up_beside(self, model: ModelIdentity, work: Coroutine[Any, Any, T]) -> ResponseFound | T:
        """Return what is found, or else what `work` returns, which goes on beside the lookup; a find cancels
        it.

        When the work is done first, the lookup has `cache_wait_ms` more, or `semantic_cache_wait_ms` where
        the question is to be compared.
        """
        if not self._request.cache.wanted:
            return await work
        config = self._config
        semantic = self._request.cache.mode == SEMANTIC
        wait_s = (config.semantic_cache_wait_ms if semantic else config.cache_wait_ms) / 1e3
        looking = start_task(self._look_up(model), name=f"look-up-{self._request_id}")
        working = start_task(work, name=f"prepare-{self._request_id}")
        try:
            await asyncio.wait({looking, working}, return_when=asyncio.FIRST_COMPLETED)
            if working.done() and not working.cancelled() and working.exception() is None:
                await asyncio.wait({looking}, timeout=wait_s)
            found = looking.result() if looking.done() else None
            metrics.RESPONSE_CACHE_ASKS.labels(result=self._result(found)).inc()
            return found if found is not None else await working
        finally:
            await cancel_until_done(looking, working)

    def record_prompt(
        self,
        passages: tuple[ScoredPassage, ...],
        prompt_places: tuple[int, ...],
        answer_format: AnswerFormat,
        *,
        passage_spans: tuple[Spans, ...] = (),
        trimmed: tuple[TrimmedPart, ...] = (),
        degraded: str,
        retriever: str,
        retrieval_query: str,
    ) -> None:
        """Note what the answer is going to be made of.

        `degraded`: what it is to lack. `retriever` found the passages: the index of another one may be of
        another generation than that which the lookup told of.
        """
        self._passages, self._prompt_places = passages, prompt_places
        self._answer_format, self._retrieval_query = answer_format, retrieval_query
        self._passage_spans, self._trimmed = passage_spans, trimmed
        if degraded or (self._request.retrieval.passages and retriever != self._retriever):
            self._missed = None

    @property
    def keeps(self) -> bool:
        """Whether the answer is to be kept."""
        return self._missed is not None

    def keep(self, state: SessionState, cited: tuple[CitedSentence, ...]) -> None:
        """The answer that finished, with what supports it, where one was looked for and not found. Nobody
        waits for it."""
        missed, text = self._missed, state.log.kept_text
        tool_format = self._answer_format.tool_format
        if missed is None or text is None or state.finish not in KEPT_FINISHES:
            return
        ids, passages = state.log.ids, self._passages
        size = len(text.encode()) + len(self._retrieval_query.encode()) + sum(map(passage_bytes, passages))
        if len(ids) > MAX_KEPT_TOKENS or size > MAX_KEPT_BYTES:
            return
        kept = KeptResponse(
            request_id=self._request_id,
            model=state.model,
            seed=self._request.sampling.seed,
            prompt_tokens=state.log.prompt_tokens,
            token_ids=pack_ids(ids),
            text=text,
            finish=state.finish,
            tool_format="" if tool_format is None else tool_format.name,
            passages=passages,
            prompt_places=self._prompt_places,
            retrieval_query=self._retrieval_query,
            cited=cited,
            thinking=self._answer_format.thinking,
            passage_spans=self._passage_spans if any(self._passage_spans) else (),
            trimmed=self._trimmed,
        )
        message = KeepResponse(missed.key, kept, bool(self._request.retrieval.passages), missed.generation)
        self._context.tasks.start(f"keep-{self._request_id}", self._send(missed.retriever, message))

    # ---- inside ---------------------------------------------------------------------------------------

    @property
    def _retriever(self) -> str:
        return "" if self._missed is None else self._missed.retriever

    async def _look_up(self, model: ModelIdentity) -> ResponseFound | None:
        request, context = self._request, self._context
        models: tuple[ModelIdentity, ...] = (model,)
        if request.retrieval.passages:
            adapter = self._config.retrieval_adapter
            models = (model, with_adapter(model, adapter, context.fleet.instances, request.tenant))
        rewriter = context.question_rewriter.identity
        key = response_key(request, models, fleet_key_bytes(context.config.fleet_key), rewriter)
        retriever = self._retriever_of(key)
        if not retriever:
            return None
        use = request.cache
        message = LookUpResponse(
            key,
            bool(request.retrieval.passages),
            use.max_age_ms,
            use.min_similarity,
            corpus=request.retrieval.corpus,
        )
        end = Deadline.after(LOOKUP_S)
        envelope = context.bus.envelope(f"{self._request_id}.cache", 1, end, context.instance)
        try:
            answer = await context.bus.ask(inbox("retriever", retriever), message, envelope, end)
        except PenstockError as error:
            log.info("cache_not_asked", request_id=self._request_id, instance=retriever, error=str(error))
            return None
        if isinstance(answer, ResponseFound) and is_usable(answer, context.config.max_buffered_tokens):
            return answer
        if isinstance(answer, ResponseMissing):
            self._missed = MissedLookup(retriever, key, answer.generation)
        return None

    def _retriever_of(self, key: ResponseKey) -> str:
        """The one that questions like this one are kept by, as long as the same ones are there: in the
        gateway's own region, where it has one."""
        views = self._context.fleet.instances("retriever")
        trusted = leave_out(views, self._context.breakers.shunned(views, self._request_id))
        regions = self._context.regions
        kept_by = trusted if regions is None else regions.in_own(trusted)
        names = [view.heartbeat.instance for view in kept_by]
        return max(names, key=lambda name: blake2b(name.encode(), key=key.near).digest(), default="")

    def _result(self, found: ResponseFound | None) -> str:
        if found is not None:
            return "exact" if found.similarity >= 1.0 else "semantic"
        return "none" if self._missed is None else "miss"

    async def _send(self, retriever: str, message: KeepResponse) -> None:
        envelope = self._context.bus.envelope(f"{self._request_id}.cache", 1, None, self._context.instance)
        try:
            await self._context.bus.publish(inbox("retriever", retriever), message, envelope)
        except PenstockError as error:
            log.info("answer_not_kept", request_id=self._request_id, instance=retriever, error=str(error))


def is_usable(found: ResponseFound, max_buffered_tokens: int) -> bool:
    """Whether a client can be given all of an answer at once, with where its passages stood."""
    kept = found.response
    num_tokens = len(kept.token_ids) // ID_BYTES
    known = len(kept.passages) == len(kept.prompt_places)
    known = known and len(kept.passage_spans) in (0, len(kept.passages))
    return num_tokens <= max_buffered_tokens and known
