"""Have the next turn of an agent computed while its tool runs: the prompt so far with its answer.

The worker that would get it computes it when it has nothing else to do. The decode worker has the KV of the
answer as it was drawn; a prefill worker has not, and a chat template may write the answer otherwise. Nobody
waits for this, and no answer depends on it: blocks are named by all that their KV depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from services.gateway.fleet.best_route import BestRoute
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Need, cheapest_instance, load_cost
from services.gateway.fleet.sent_load import LoadedView
from services.gateway.prompt.likely_route import likely_route
from services.gateway.prompt.next_turn import common_blocks, next_prompts
from services.gateway.prompt.preprocessor import tokenize_message
from services.gateway.regions.regions import preference
from services.gateway.request.request import Request
from services.gateway.request_scope import RequestScope
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.degradation import DegradationLevel
from shared.errors import PenstockError
from shared.messages import (
    WARM_EPOCH,
    ChatTurn,
    Tokenized,
    Warm,
    pack_hashes,
    pack_ids,
    unpack_hashes,
    unpack_ids,
)
from shared.telemetry import metrics

log = structlog.get_logger()

TOKENIZE_S = 2.0
"""The longest time for the ids of a prompt that nobody has asked for yet."""
USUAL_PAUSE_S = 20.0
"""The time in which the next call is expected where nobody knows better."""
MAX_WARM_S = 120.0
"""A worker forgets after this what it found no time for, however late the next call is expected."""
LEAST_KNOWN_SHARE = 0.5
"""A worker that would have to compute more of the prompt than this is left alone, unless it is the likely
one."""


class NextTurnWarmer:
    """The next turn of one request, which has ended. `answer_ids` are its tokens, `answer` what they say."""

    def __init__(self, scope: RequestScope, model: ModelIdentity) -> None:
        self._scope = scope
        self._context = scope.context
        self._config = scope.config
        self._request_id = f"{scope.request_id}.next"
        self._request = scope.request
        self._model = model
        self._rotation = scope.rotation
        self._layout = self._context.served.usual_layout(model)

    async def warm(self, answer: ChatTurn, answer_ids: Sequence[int], pause_s: float | None) -> None:
        """Ask for what the next prompt begins with; `pause_s`: until it is expected, None for nobody
        knows."""
        try:
            result = await self._warm(answer, answer_ids, USUAL_PAUSE_S if pause_s is None else pause_s)
        except PenstockError as error:
            result = "failed"
            log.info("next_turn_not_warmed", request_id=self._request_id, error=str(error))
        metrics.NEXT_TURNS.labels(result=result).inc()

    async def _warm(self, answer: ChatTurn, answer_ids: Sequence[int], pause_s: float) -> str:
        """Return what became of it, in a word."""
        if self._scope.level_of(self._model) is not DegradationLevel.NONE:
            return "pressed"
        prompts = next_prompts(self._request, answer, answer_ids)
        too_long = any(each.prompt_bytes > self._context.prompt_limits.max_text_bytes for each in prompts)
        if not prompts or too_long:
            return "unknown"
        read = [await self._tokenize(prompt) for prompt in prompts]
        if None in read:
            return "nobody"
        names = [unpack_hashes(each.block_hashes) for each in read if each is not None]
        blocks = common_blocks(names[0], names[-1])
        first = read[0]
        if first is None or not blocks:
            return "short"
        ids = unpack_ids(first.token_ids)[: blocks * HASH_BLOCK_TOKENS]
        hashes = tuple(names[0][:blocks])
        workers = self._workers(hashes)
        for worker in workers:
            await self._ask(worker, ids, hashes, min(MAX_WARM_S, 2 * pause_s + TOKENIZE_S))
        return "asked" if workers else "short"

    async def _tokenize(self, prompt: Request) -> Tokenized | None:
        """Return the ids and hashes of a prompt; None where no tokenizer has an answer to it."""
        context = self._context
        views = context.served.serving("tokenizer", self._model)
        near = preference(context.regions)(views)
        instance = cheapest_instance(near, load_cost, self._rotation)
        if not instance:
            return None
        message = replace(
            tokenize_message(prompt, ()),
            layout=self._layout,
            tenant=prompt.cache_scope,
            adapter=self._model.adapter.digest,
            context_tokens=context.served.longest_context(self._model),
        )
        end = Deadline.after(TOKENIZE_S)
        envelope = context.bus.envelope(self._request_id, 1, end, context.instance)
        answer = await context.bus.ask(inbox("tokenizer", instance), message, envelope, end)
        return answer if isinstance(answer, Tokenized) else None

    def _workers(self, hashes: tuple[bytes, ...]) -> list[LoadedView]:
        """Return who is to compute it: the worker that would get the prompt now and, where that is a decode
        worker, the prefill worker that would if it were busy then, as far as that has most of it."""
        hints, sessions = self._request.agent, self._context.agent_sessions
        appended = 0 if hints is None else sessions.appended_tokens(self._request.tenant, hints)
        need = Need(hashes, len(hashes) * HASH_BLOCK_TOKENS + appended, self._request.sampling.max_tokens)
        likely, second = (
            likely_route(
                self._context, self._request_id, self._model, need, self._rotation, most_local_tokens
            )
            for most_local_tokens in (self._config.local_prefill_tokens, 0)
        )
        chosen = [] if likely is None else [likely]
        is_other = second is not None and _instance(second) not in map(_instance, chosen)
        if second is not None and is_other and _knows_most(second.prompt_worker, hashes):
            chosen.append(second)
        return [route.prompt_worker for route in chosen if self._has_work(route, hashes)]

    def _has_work(self, route: BestRoute, hashes: tuple[bytes, ...]) -> bool:
        """Whether its worker lacks a block and would not fetch it: what nobody waits for costs nothing,
        however little it is."""
        worker = route.prompt_worker
        is_alike = worker.heartbeat.worker.layout == self._layout
        return is_alike and not route.prefix.is_fetched and worker.overlap(hashes) < len(hashes)

    async def _ask(
        self, worker: LoadedView, ids: Sequence[int], hashes: tuple[bytes, ...], seconds: float
    ) -> None:
        context = self._context
        warm = Warm(pack_ids(ids), pack_hashes(hashes), context.instance, self._model.adapter, patient=True)
        envelope = context.bus.envelope(
            self._request_id, WARM_EPOCH, Deadline.after(seconds), context.instance
        )
        target = inbox(worker.heartbeat.role, worker.heartbeat.instance)
        await context.bus.publish(target, warm, envelope)


def _instance(route: BestRoute) -> tuple[str, str]:
    beat = route.prompt_worker.heartbeat
    return beat.role, beat.instance


def _knows_most(worker: LoadedView, hashes: tuple[bytes, ...]) -> bool:
    return worker.overlap(hashes) >= LEAST_KNOWN_SHARE * len(hashes)
