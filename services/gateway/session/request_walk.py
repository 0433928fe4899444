"""Walk a request by one model after another: prepare it, route it, watch it, and route it anew."""

from __future__ import annotations

from dataclasses import replace

import structlog

from services.gateway.prompt.admission_gate import AdmissionGate
from services.gateway.prompt.answer_citing import AnswerCiting
from services.gateway.prompt.cached_response import CachedResponse
from services.gateway.prompt.model_chooser import ModelChooser
from services.gateway.prompt.preparation import AdmittedRequest, Preparation, PreparedPrompt
from services.gateway.prompt.preprocessor import Preprocessor
from services.gateway.prompt.stream_takeover import StreamTakeover
from services.gateway.prompt.warmer import Warmer
from services.gateway.request.model_choice import UNSURE
from services.gateway.request.request import Request
from services.gateway.request.resume_count import count_resumed, failed_resume_counted
from services.gateway.request_scope import RequestScope
from services.gateway.scope.answer_confidence import AnswerConfidence
from services.gateway.scope.session_state import is_final
from services.gateway.session.agent_turn import AgentTurn
from services.gateway.session.following import Following
from services.gateway.session.interruption import Interruption
from services.gateway.session.route_holders import RouteHolders
from services.gateway.session.route_watch import RouteWatch
from services.gateway.session.router import Router
from services.gateway.session.running_computations import RunningComputations
from services.gateway.session.shared_work import SharedWork
from services.gateway.session.successor import SuccessorSearch
from services.gateway.session.text_intake import TextIntake
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import DeadlineExpired, InternalError, PenstockError, Unavailable
from shared.sampling.parameters import NO_LOGPROBS

log = structlog.get_logger()

LATE_S = 0.05
"""Clocks differ: a worker may see a deadline pass this much before the gateway does. Nor can anybody try
again in what is left then, so that a failure that comes so late is the deadline's."""


class RequestWalk:
    """`request` is what the present model makes of it; `cached`, `citing`, `warmer` and `successors` are this
    model's, too."""

    def __init__(
        self,
        scope: RequestScope,
        gate: AdmissionGate,
        chooser: ModelChooser,
        running: RunningComputations,
        watch: RouteWatch,
        interruption: Interruption,
        work: SharedWork,
        intake: TextIntake,
    ) -> None:
        self.holders = RouteHolders(scope)
        self.agent_turn = AgentTurn(scope)
        self._gate = gate
        self._chooser = chooser
        self._running = running
        self._watch = watch
        self._interruption = interruption
        self._work = work
        self._intake = intake
        self._poison_requests = scope.context.poison_requests
        self._budget = scope.budget
        self._state = scope.state
        self._response = scope.response
        self._timeline = scope.timeline
        self._begin_model(scope, scope.request)

    def _begin_model(self, scope: RequestScope, request: Request) -> None:
        """Make the parts that prepare the request for its model."""
        self._scope, self.request = scope, request
        self.cached = CachedResponse(scope)
        self.citing = AnswerCiting(scope)
        self._preprocessor = Preprocessor(scope)
        self.warmer = Warmer(scope, self._gate, self._preprocessor)
        self.successors: SuccessorSearch | None = None  # from when it can be routed on
        self._escalated: Request | None = None  # for the model that answers anew
        self._intake.confidence = None

    async def walk(self) -> str:
        """Return the word that the request finished with. Raises what it failed with."""
        while True:
            try:
                finish = await self._walk_model()
            except PenstockError as error:
                if not self._fall_back(error):
                    raise
            else:
                if self._escalated is None:
                    return finish
                self._leave_model(self._escalated, UNSURE)

    def on_fault(self, error: Exception) -> None:
        """End the request: what came for it cannot be taken in, by a bug here or at a worker."""
        log.error("intake_failed", request_id=self._scope.request_id, exc_info=error)
        self._interruption.interrupt(gateway_failed(error))

    async def _walk_model(self) -> str:
        """Walk the request by the model that it is for now."""
        prompt = await self._prepare_prompt()
        self._work.put_prompt(prompt)
        if prompt is None:
            return self._state.finish
        self.agent_turn.record_prompt(prompt)
        self.request = prompt.request
        if self._scope.request.cascade is not None:
            self._response.hold()
            hidden = self._scope.request.sampling.logprobs == NO_LOGPROBS
            self._intake.confidence = AnswerConfidence(hidden)
        router = Router(self._scope, prompt, self.holders)
        self.successors = SuccessorSearch(self._scope, prompt, router.trials, router.expected)
        try:
            while True:
                await self._poison_requests.take_turn(self._scope.crash_record)
                await router.route_request(self._deadline, self._asked)
                trouble = await self._watch.until_over(router.trials)
                if trouble is None:
                    self._escalated = self._escalation()
                    if self._escalated is None:
                        self._release()
                        await self._cite_answer()
                    return self._state.finish
                router.avoid_failed(trouble)
                if self._begin_replacement(trouble):
                    self._release()
                    return "length"
        finally:
            router.end()

    async def _prepare_prompt(self) -> PreparedPrompt | None:
        """Return what to route; None when the answer is there: an earlier one, or that of another request."""
        resumed = self.request.resumed
        if resumed is not None:
            with failed_resume_counted(resumed):
                prompt = await StreamTakeover(self._scope, resumed).take_over()
            count_resumed()
            self._watch.last_token_s = SYSTEM_CLOCK.monotonic_s()  # the next one is waited for from now on
            return prompt
        preparation = Preparation(
            self._scope, self._gate, self._preprocessor, self.warmer, self.cached, self.citing
        )
        admitted = await preparation.admit_request()
        shares = admitted.request.coalesces and not admitted.request.may_change_model
        followed = await self._follow_others(admitted) if shares else None
        if followed is not None or self._state.finish:
            return followed
        return await preparation.prepare_prompt(admitted)

    async def _follow_others(self, admitted: AdmittedRequest) -> PreparedPrompt | None:
        """Have the answer of a request that is the same and runs, or what is left to be computed here."""
        following = Following(self._scope, self._intake, self.citing, admitted.request, self.on_fault)
        try:
            await following.follow_others(admitted.model, self._running, self._work)
        finally:
            if following.prompt is not None:
                self.request = following.prompt.request
        return None if self._state.finish else following.take_prompt()

    # ---- routed: watched, and routed anew -----------------------------------------------------------

    def _asked(self) -> None:
        route = self._state.route
        if route is None:
            return
        self._timeline.begin_attempt(self._state.epoch, route.instances, route.region)
        self.warmer.routed(route)

    def _begin_replacement(self, trouble: PenstockError) -> bool:
        """Cancel the failed route; True when nothing is left to generate. Progress earns another try."""
        late = isinstance(trouble, DeadlineExpired) and self._deadline.remaining_s() < LATE_S
        if is_final(trouble) or late:
            raise trouble
        self.holders.cancel_route(trouble.code)
        if self._state.complete:
            return True
        if self._state.fruitless >= self._scope.context.config.max_replacements:
            if isinstance(trouble, DeadlineExpired):  # no worker can do it in the time that is left
                raise trouble
            times = self._state.fruitless + 1
            raise Unavailable(f"routed {times} times in vain: {trouble.message}; retry", hop=trouble.hop)
        self._state.count_replacement()
        log.info(
            "request_replaced", request_id=self._scope.request_id, epoch=self._state.epoch, why=str(trouble)
        )
        return False

    async def _cite_answer(self) -> None:
        """Find what supports the answer, while the workers and the place in line are another's already."""
        self._scope.meter.end()
        await self.citing.cite_answer(self._deadline.remaining_s() - LATE_S)

    # ---- from one model to another -------------------------------------------------------------------

    def _fall_back(self, error: PenstockError) -> bool:
        """Take another model after `error`, if the request allows one and its client has no token yet."""
        state, scope = self._state, self._scope
        over = bool(state.log.ids) or self._interruption.error is not None
        if over or not scope.request.may_fall_back or self._deadline.remaining_s() < LATE_S:
            return False
        request = self._chooser.choose_next(scope.request, self._budget, error, routed=state.epoch > 0)
        if request is None:
            return False
        self._leave_model(request, error.code)
        return True

    def _leave_model(self, request: Request, why: str) -> None:
        """Go on with `request`, which is for another model: nothing of this one has gone out."""
        log.info(
            "model_passed_over", request_id=self._scope.request_id, model=self._scope.request.model, why=why
        )
        self.warmer.drop()
        if self._state.route is not None:
            self.holders.cancel_route(why)
        self._state.leave_model()
        self._response.take_back_prompt()
        self._timeline.mark_phase("route.model")
        self._begin_model(replace(self._scope, request=request), request)

    def _release(self) -> None:
        """Let the client have what was held for it."""
        if self._intake.confidence is not None:
            self._timeline.mark_held()
            self._response.release()

    def _escalation(self) -> Request | None:
        """Return the request for the model that answers anew, where this one's answer is not sure enough."""
        cascade, confidence = self._scope.request.cascade, self._intake.confidence
        if cascade is None or confidence is None or not confidence.is_below(cascade.min_logprob):
            return None
        return self._chooser.escalate(self._scope.request, self._budget)

    @property
    def _deadline(self) -> Deadline:
        return self._watch.deadline


def gateway_failed(error: BaseException) -> InternalError:
    return InternalError(f"the gateway failed: {type(error).__name__}", hop="gateway")
