"""Take the stream of another gateway over: a decode worker has what was drawn, and hands it over.

The tokens that the client has become the log of a request of our own, which goes on as one whose route has
failed does. What was drawn beyond them is drawn again, alike. Where a part of the text is what the model
thinks, the text that the client has is read once more, in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.answer_format import AnswerFormat
from services.gateway.fleet.default_sampling import sampling_in_force
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.prompt.request_hashes import RequestHashes
from services.gateway.request.resume_token import ResumeClaim
from services.gateway.request_scope import RequestScope
from services.gateway.scope.session_state import RequestPhase
from services.gateway.scope.token_log import TokenLog
from shared.blocks.block_hash import BlockHasher
from shared.bus.fleet import InstanceView
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError, StreamLost, Unavailable
from shared.fairness.share import tenant_digest
from shared.messages import HandedOver, TakeOver, unpack_ids

log = structlog.get_logger()

TAKE_OVER_S = 1.0
"""The longest wait for what decode workers say of a stream."""
TAKE_OVER_RETRY_MS = 250
LOST = (
    "nobody has this stream any more: it has ended, its gateway has been gone for too long, or its decode "
    "worker is gone too; send the request again"
)


class StreamTakeover:
    def __init__(self, scope: RequestScope, claim: ResumeClaim) -> None:
        self._scope = scope
        self._claim = claim

    async def take_over(self) -> PreparedPrompt:
        """Return the request to route. Raises StreamLost, or Unavailable where a worker does not answer."""
        scope, claim = self._scope, self._claim
        view, stream = await self._find_stream()
        model = replace(ModelIdentity.of(view.heartbeat), adapter=stream.adapter)
        thinking = claim.thinking
        request = replace(
            scope.request, sampling=stream.sampling, open_sampling=(), shown_ids=thinking.shown_ids
        )
        answer_format = AnswerFormat(thinking.how)
        scope.response.read_answer(answer_format)
        ids = tuple(unpack_ids(stream.token_ids))
        prompt_ids, output_ids = ids[: stream.prompt_len], ids[stream.prompt_len :]
        kept = output_ids[: kept_tokens(claim.received_tokens, len(output_ids), finished=stream.finished)]
        scope.state.take_over_stream(
            model.served_name,
            stream.sampling.max_tokens,
            TokenLog(len(prompt_ids), list(kept), taken_over=True, rereads=not answer_format.is_plain),
            len(prompt_ids) + claim.received_tokens,
        )
        scope.timeline.mark_phase("admit")
        log.info("stream_taken_over", request_id=scope.request_id, stream=claim.request_id, tokens=len(kept))
        told = pb.PromptInfo(
            request_id=scope.request_id,
            model=model.served_name,
            prompt_tokens=len(prompt_ids),
            seed=stream.sampling.seed,
            sampling=sampling_in_force(stream.sampling),
            resume_token=scope.resume_token,
        )
        scope.response.put_prompt(told)
        scope.state.begin_phase(RequestPhase.ROUTE)
        layout = scope.context.served.usual_layout(model)
        hasher = BlockHasher.of(scope.context.config.fleet_key)
        hashes = RequestHashes(hasher, layout, request.cache_scope, (), adapter=model.adapter.digest)
        return PreparedPrompt(request, model, prompt_ids, hashes, told, answer_format)

    async def _find_stream(self) -> tuple[InstanceView, HandedOver]:
        """Ask all decode workers at once: the stream may have moved since its token was made."""
        context = self._scope.context
        views = context.fleet.instances("decode")
        ends = self._scope.budget.total.shrink(TAKE_OVER_S)
        answers = await asyncio.gather(*(self._ask(view, ends) for view in views))
        found = [
            (view, answer)
            for view, answer in zip(views, answers, strict=True)
            if isinstance(answer, HandedOver)
        ]
        if found:
            return max(found, key=lambda each: len(each[1].token_ids))
        raise _why_not_found([answer for answer in answers if isinstance(answer, PenstockError)])

    async def _ask(self, view: InstanceView, ends: Deadline) -> HandedOver | PenstockError:
        """Return the worker's answer, or why there is none."""
        context, tenant = self._scope.context, self._scope.request.tenant
        envelope = context.bus.envelope(self._claim.request_id, 0, ends, context.instance)
        message = TakeOver(tenant_digest(tenant, context.config.fleet_key))
        instance = view.heartbeat.instance
        try:
            answer = await context.bus.ask(inbox("decode", instance), message, envelope, ends)
        except PenstockError as error:
            return error
        if isinstance(answer, HandedOver):
            return answer
        return Unavailable(f"{instance} answered with {type(answer).__name__}", hop="decode")


def kept_tokens(received: int, drawn: int, *, finished: bool) -> int:
    """Return how many of the drawn tokens a resumed stream begins with: those that the client has.

    A finished one draws its last token once more, as only that tells how it ended.
    """
    return max(0, min(received, drawn - 1 if finished else drawn))


def _why_not_found(errors: Sequence[PenstockError]) -> PenstockError:
    if all(isinstance(error, StreamLost) for error in errors):
        return StreamLost(LOST, hop="gateway")
    return Unavailable(
        "a decode worker that may have the stream does not answer: resume it again",
        hop="decode",
        retry_after_ms=TAKE_OVER_RETRY_MS,
    )
