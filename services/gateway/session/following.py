"""Follow the computation of another request that asks for the same: its prompt, its tokens, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import replace

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.answer_citing import AnswerCiting
from services.gateway.prompt.preparation import PreparedPrompt, choice_event
from services.gateway.request.request import Request
from services.gateway.request_scope import RequestScope
from services.gateway.scope.prompt_logprobs_buffer import PromptLogprobsBuffer
from services.gateway.scope.session_state import RequestPhase
from services.gateway.scope.text_row import TextRow
from services.gateway.scope.token_log import Arrival, TokenLog
from services.gateway.session.coalescing_key import coalescing_key
from services.gateway.session.computation import Computation, ComputationEnd
from services.gateway.session.running_computations import RunningComputations
from services.gateway.session.shared_work import SharedWork
from services.gateway.session.text_intake import TextIntake
from shared.errors import Cancelled, DeadlineExpired, GatewayStopping, Overloaded
from shared.sampling.parameters import NO_LOGPROBS
from shared.telemetry import metrics

log = structlog.get_logger()

OWNERS_END = (Cancelled, DeadlineExpired, GatewayStopping, Overloaded)
"""The ends of a computation that are its owner's own: who follows has another deadline, or another client."""


class Following:
    """One request that has no computation of its own, as long as others compute the same.

    `prompt`: what it is, once its client has been told.
    """

    def __init__(
        self,
        scope: RequestScope,
        intake: TextIntake,
        citing: AnswerCiting,
        request: Request,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self.prompt: PreparedPrompt | None = None
        self.on_fault = on_fault
        self._scope = scope
        self._state = scope.state
        self._intake = intake
        self._citing = citing
        self._request = request
        self._shared_with = ""
        self._ended: asyncio.Future[ComputationEnd] | None = None

    async def follow_others(
        self, model: ModelIdentity, running: RunningComputations, work: SharedWork
    ) -> None:
        """Return with all of the answer, or when this request is to compute the rest: then others may follow
        it. Raises why there is no answer, as the computation has it."""
        key, earlier = coalescing_key(self._request, model), None
        while (computation := self._find(running, key)) is not None:
            end = await self._follow(computation)
            self._state.finish = self._state.finish or end.finish
            if self._state.finish:
                self._citing.take_earlier(end.sentences)
                self._state.record_cached(end.cached_tokens)
                return
            if end.error is not None and not isinstance(end.error, OWNERS_END):
                raise end.error
            self._scope.timeline.end_sharing("" if end.error is None else end.error.code)
            if end.alone:
                return
            earlier = computation
        work.begin(key, None if self.prompt is None else earlier)

    def _find(self, running: RunningComputations, key: Hashable) -> Computation | None:
        if self._request.resumable:  # a decode worker hands a stream over once
            return None
        wants_logprobs = self._request.sampling.logprobs != NO_LOGPROBS
        first_token = self._scope.budget.first_token
        return running.find(key, first_token, self.next_position, logprobs=wants_logprobs)

    async def _follow(self, computation: Computation) -> ComputationEnd:
        self._ended = asyncio.get_running_loop().create_future()
        self._shared_with = computation.request_id
        self._state.begin_sharing(computation.request_id)
        metrics.COALESCED_REQUESTS.labels(model=self._state.model).inc()
        log.info("request_coalesced", request_id=self._scope.request_id, with_request=computation.request_id)
        try:
            computation.add(self)
            return await self._ended
        finally:
            self._state.inherited_tokens += computation.remove(self)

    def take_prompt(self) -> PreparedPrompt | None:
        """Return the prompt whose answer is to be computed here from where it has come, None where nothing
        has been told of one."""
        if self.prompt is not None:
            self._scope.allowance.count_prompt(len(self.prompt.token_ids))
            self._state.begin_phase(RequestPhase.ROUTE)
        return self.prompt

    @property
    def next_position(self) -> int | None:
        return None if self.prompt is None else self._state.log.next_position

    # ---- what is heard of it: nothing here waits ------------------------------------------------------

    def on_prompt(self, prompt: PreparedPrompt) -> None:
        if self.prompt is not None:
            if self.prompt.token_ids != prompt.token_ids:  # other passages were found since
                self.on_end(ComputationEnd(alone=True))
            return
        own = replace(
            self._request,
            sampling=replace(prompt.request.sampling, seed=self._request.sampling.seed),
            shown_ids=prompt.request.shown_ids,
        )
        told = pb.PromptInfo()
        told.CopyFrom(prompt.told)
        told.request_id = self._scope.request_id
        told.resume_token = self._scope.resume_token
        told.coalesced_with = self._shared_with
        told.ClearField("model_choice")
        if (choice := choice_event(self._request)) is not None:
            told.model_choice.CopyFrom(choice)
        self.prompt = replace(prompt, request=own, told=told)
        self._state.begin_phase(RequestPhase.SHARED, prompt.model.served_name)
        self._state.begin_log(TokenLog(len(prompt.token_ids)), PromptLogprobsBuffer())
        self._scope.response.read_answer(prompt.answer_format)
        self._scope.response.put_prompt(told)

    def on_row(self, row: TextRow, now_s: float) -> None:
        arrival = self._state.log.arrival(row.position, len(row.token_ids))
        if arrival is Arrival.GAP:
            self.on_end(ComputationEnd(alone=True))
        elif arrival is Arrival.NEXT and not self._state.finish:
            self._state.share_row(row.token_ids, row.text, row.finish)
            self._intake.relay_shared_row(row, now_s)

    def on_end(self, end: ComputationEnd) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(end)
