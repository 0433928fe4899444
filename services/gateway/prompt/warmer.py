"""Warm a prompt while its passages are found: the worker that is likely to get it computes what is known.

A hint that nobody waits for and that changes no answer: blocks are named by all that their KV depends on, so
that a wrong guess is never used. First the head, which stands before any passage; then, where the retriever
looks more closely at what it has found, the prompt as it would be if that changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import structlog

from services.gateway.fleet.best_route import BestRoute
from services.gateway.fleet.model_identity import ModelIdentity, with_adapter
from services.gateway.fleet.routing import Need, RoutingDecision
from services.gateway.prompt.admission_gate import AdmissionGate
from services.gateway.prompt.likely_route import likely_route
from services.gateway.prompt.preprocessor import Preprocessor, Prompt
from services.gateway.request.request import Request
from services.gateway.request.retrieval_use import WARM_LIKELY, WARM_OFF
from services.gateway.request_scope import RequestScope
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.bus.subjects import inbox
from shared.degradation import DegradationLevel
from shared.errors import EngineFault, PenstockError, error_from_code
from shared.messages import WARM_EPOCH, Lost, ScoredPassage, Warm, pack_hashes, pack_ids
from shared.sampling.parameters import NO_LOGPROBS
from shared.tasks import cancel_until_done
from shared.telemetry import metrics

log = structlog.get_logger()

HEAD_PROBES = ("a", "0")
"""Two passages that begin differently: what their prompts have in common stands before every passage."""
USUAL_PASSAGE_TOKENS = 96
"""The tokens of a passage in a guess at the length of the prompt, which decides what computes it."""


class Warmer:
    """The warming of one request's prompt; `begin` and `stop` enclose retrieval, and nothing waits for it."""

    def __init__(self, scope: RequestScope, gate: AdmissionGate, preprocessor: Preprocessor) -> None:
        self._scope = scope
        self._context = scope.context
        self._config = scope.config
        self._gate = gate
        self._request_id = scope.request_id
        self._request = scope.request
        self._state = scope.state
        self._preprocessor = preprocessor
        self._crash_record = scope.crash_record
        self._budget = scope.budget
        self._model: ModelIdentity
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self._warmed_at: tuple[str, str] | None = None
        """The instance that warms it, as (role, instance)."""
        self._asked: set[tuple[str, str]] = set()
        """The instances that were ever asked to warm it."""
        self._warmed: tuple[bytes, ...] = ()
        """The names of the blocks that were asked for last."""

    @property
    def wants_first(self) -> bool:
        """Whether to hear of passages before they have their last order."""
        return self._begun and self._config.warm_while_retrieving == WARM_LIKELY

    def begin(self, model: ModelIdentity) -> None:
        """Retrieval begins. `model`: as it was asked for; with passages it is taken with another adapter."""
        config, request = self._config, self._request
        calm = self._scope.level_of(model) is DegradationLevel.NONE
        scored = request.sampling.prompt_logprobs != NO_LOGPROBS  # then all of it is computed, cached or not
        if config.warm_while_retrieving == WARM_OFF or scored or not calm:
            return
        self._begun = True
        self._model = with_adapter(
            model, config.retrieval_adapter, self._context.fleet.instances, request.tenant
        )
        head_bytes = request.prompt_bytes - len(request.question.encode())
        if head_bytes >= config.warm_min_tokens:  # else it is too short, whatever its tokens are
            self._start(self._warm_head)

    def on_found_first(self, epoch: int, passages: tuple[ScoredPassage, ...], sender: str) -> None:
        """A retriever has these, and looks at them more closely."""
        if not self.wants_first or not self._state.waits_for_retriever(sender, epoch):
            metrics.STALE_MESSAGES.inc()
        elif passages:
            self._start(partial(self._warm_likely, passages))

    async def stop(self) -> None:
        """Retrieval has ended: nothing more is asked for; what has been asked for goes on."""
        if self._task is not None:
            await cancel_until_done(self._task)

    def confirm_prompt(self, prompt: Prompt) -> None:
        """Stop the warming of another prompt than this one, which it has become."""
        if prompt.block_hashes[: len(self._warmed)] != self._warmed:
            self._cancel()

    def routed(self, route: RoutingDecision) -> None:
        """Stop warming elsewhere; where it was warmed the prompt takes the place of that."""
        if self._warmed_at != (route.prompt_role, route.instance_of(route.prompt_role)):
            self._cancel()
        self._warmed_at = None

    def drop(self) -> None:
        """Another model is to answer: nothing of this is of any use."""
        if self._task is not None:
            self._task.cancel()
        self._cancel()

    def on_lost(self, lost: Lost, sender: str) -> None:
        """An engine failed over what was only to be warmed: a strike, as that of a route would be."""
        if not any(sender in ("", instance) for _, instance in self._asked):
            metrics.STALE_MESSAGES.inc()
        elif isinstance(error_from_code(lost.code, lost.message), EngineFault):
            self._context.poison_requests.record_fault(self._crash_record, WARM_EPOCH)

    # ---- inside ---------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start `work` in place of what was begun before."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._context.tasks.start(f"warm-{self._request_id}", self._try(work))

    async def _try(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except PenstockError as error:
            _count("failed")
            log.info("not_warmed", request_id=self._request_id, error=str(error))

    async def _warm_head(self) -> None:
        # Nothing is to be left out of a probe.
        asked = replace(self._request, trimming=self._request.trimming.of_chat)
        one, other = [await self._read(asked, (ScoredPassage("", text, 0.0),)) for text in HEAD_PROBES]
        pairs = zip(one.block_hashes, other.block_hashes, strict=False)
        blocks = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        passages_tokens = USUAL_PASSAGE_TOKENS * self._request.retrieval.passages
        await self._warm(one, blocks, blocks * HASH_BLOCK_TOKENS + passages_tokens)

    async def _warm_likely(self, passages: tuple[ScoredPassage, ...]) -> None:
        prompt = await self._read(self._request, passages)
        await self._warm(prompt, len(prompt.block_hashes), len(prompt.token_ids))

    async def _read(self, request: Request, passages: tuple[ScoredPassage, ...]) -> Prompt:
        room_tokens = self._gate.room_tokens(self._model, request.sampling.max_tokens)
        return await self._preprocessor.tokenize_prompt(
            request, passages, self._layout, self._model, room_tokens=room_tokens
        )

    @property
    def _layout(self) -> str:
        return self._context.served.usual_layout(self._model)

    async def _warm(self, prompt: Prompt, blocks: int, expected_tokens: int) -> None:
        """Have the first `blocks` of `prompt` computed where a prompt of so many tokens would be."""
        hashes = prompt.block_hashes[:blocks]
        need = Need(hashes, expected_tokens, self._request.sampling.max_tokens)
        scope = self._scope
        most_local_tokens = scope.config.local_prefill_tokens
        likely = likely_route(
            scope.context,
            scope.request_id,
            self._model,
            need,
            scope.rotation,
            most_local_tokens,
            self._budget.first_token.remaining_s(),
        )
        why_not = self._why_not(likely, hashes)
        if likely is None or why_not:
            _count(why_not)
            return
        worker = likely.prompt_worker
        beat = worker.heartbeat
        target = (beat.role, beat.instance)
        if self._warmed_at not in (None, target):
            self._cancel()
        self._warmed_at = target
        self._asked.add(target)
        self._warmed = hashes
        self._state.hold_at(*target)
        self._crash_record.begin_warm(worker.view)
        ids = prompt.token_ids[: blocks * HASH_BLOCK_TOKENS]
        self._state.record_warmed(len(ids))
        warm = Warm(pack_ids(ids), pack_hashes(hashes), self._context.instance, self._model.adapter)
        bus = self._context.bus
        envelope = bus.envelope(
            self._request_id, WARM_EPOCH, self._budget.first_token, self._context.instance
        )
        await bus.publish(inbox(*target), warm, envelope)
        _count("asked")

    def _why_not(self, likely: BestRoute | None, hashes: Sequence[bytes]) -> str:
        """Why nothing is to be warmed there, "" where it is."""
        if likely is None or likely.prompt_worker.heartbeat.worker.layout != self._layout:
            return "nobody"
        if likely.prefix.is_fetched:  # that is sooner than to compute it, and takes no cores
            return "fetched"
        beat = likely.prompt_worker.heartbeat
        missing_tokens = HASH_BLOCK_TOKENS * (len(hashes) - likely.prompt_worker.overlap(hashes))
        if missing_tokens < self._config.warm_min_tokens:
            return "short"
        if beat.worker.queued_tokens or (beat.live and beat.role == "decode"):
            return "busy"
        if self._crash_record.strikes:  # it may have been this prompt; it is not to take one down more
            return "suspect"
        return ""

    def _cancel(self) -> None:
        """Stop computing what nobody needs any more; what has been computed stays in the cache."""
        if self._warmed_at is None:
            return
        holder, self._warmed_at = self._warmed_at, None
        self._state.let_go(*holder)
        work = self._context.canceller.cancel_holders(self._request_id, WARM_EPOCH, [holder], "replaced")
        self._context.tasks.start(f"cancel-{self._request_id}", work)


def _count(result: str) -> None:
    metrics.WARM_HINTS.labels(result=result).inc()
