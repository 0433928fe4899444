"""The session: the supervisor of one request, from its admission to its one terminal event.

The pipeline streams by itself; the session relays what comes, and when a part fails, stalls or is
lost it routes the request anew with everything generated so far. What arrives for the client is taken in
synchronously (`intake`), so a token waits for nothing but its client.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.context import SessionContext
from services.gateway.fleet.poison_requests import poison_request_error
from services.gateway.fleet.request_client import InstanceGone
from services.gateway.keys.allowance import Allowance
from services.gateway.prompt.admission_gate import AdmissionGate
from services.gateway.prompt.answer_citing import AnswerCiting, citation_event
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
from services.gateway.scope.answer_usefulness import AnswerUsefulness
from services.gateway.scope.budget import Budget
from services.gateway.scope.call_identity import CallIdentity
from services.gateway.scope.outcome import Outcome
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
from shared.errors import (
    Cancelled,
    DeadlineExpired,
    EngineFault,
    GatewayStopping,
    InternalError,
    PenstockError,
    StaleEpoch,
    StreamTakenOver,
    Unavailable,
    error_from_code,
)
from shared.flags.guard import RequestTimes
from shared.messages import WARM_EPOCH, HandOver, HandOverDone, Lost, Successor
from shared.roles import ROUTED_ROLES
from shared.sampling.parameters import NO_LOGPROBS
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import metrics

log = structlog.get_logger()

MOVED = (StreamTakenOver, GatewayStopping)
"""The ends of a stream here that is no end of it: another gateway goes on."""
LATE_S = 0.05
"""Clocks differ: a worker may see a deadline pass this much before the gateway does. Nor can anybody try
again in what is left then, so that a failure that comes so late is the deadline's."""


class Session:
    """One request. `run_request` is its life; the other public methods only note what happened."""

    def __init__(
        self,
        context: SessionContext,
        gate: AdmissionGate,
        chooser: ModelChooser,
        request_id: str,
        request: Request,
        budget: Budget,
        allowance: Allowance,
        rotation: int,
        identity: CallIdentity,
        running: RunningComputations,
    ) -> None:
        self._scope = scope = RequestScope.open(
            context, request_id, request, budget, allowance, rotation, identity
        )
        self.request_id = request_id
        self.request = request
        self.state = scope.state
        self.response = scope.response
        self.timeline = scope.timeline
        self.latencies = context.latencies
        self._context = context
        self._gate = gate
        self._chooser = chooser
        self._poison_requests = context.poison_requests
        self.budget = budget
        self._crash_record = scope.crash_record
        self._interruption = Interruption()
        self._watch = RouteWatch(scope)
        self._holders = RouteHolders(scope)
        self._agent_turn = AgentTurn(scope)
        self._running = running
        self._work = SharedWork(scope, running, self._interruption)
        self.intake = TextIntake(scope, self._watch, self._interruption, self._work)
        marker = context.useful_marker
        self.usefulness = None if marker is None else AnswerUsefulness(marker, scope.timeline, scope.response)
        self._outcome: Outcome | None = None
        self._call_ended = False
        self._reported = False
        self._begin_model()

    def _begin_model(self) -> None:
        """Make the parts that prepare the request for its model."""
        scope = self._scope
        self._cached = CachedResponse(scope)
        self._citing = AnswerCiting(scope)
        self._preprocessor = Preprocessor(scope)
        self.warmer = Warmer(scope, self._gate, self._preprocessor)
        self._successors: SuccessorSearch | None = None  # from when it can be routed on
        self._escalated: Request | None = None  # for the model that answers anew
        self.intake.confidence = None

    # ---- what comes in: synchronous, never waits ---------------------------------------------------

    def on_lost(self, epoch: int, lost: Lost, sender: str) -> None:
        """A holder cannot go on with this request."""
        if epoch == WARM_EPOCH:
            self.warmer.on_lost(lost, sender)
            return
        if epoch != self.state.epoch:
            metrics.STALE_MESSAGES.inc()
            return
        if sender and sender == self.state.successor:
            # Its decode worker goes on, or says that it has left it to one that is lost.
            log.info("successor_lost", request_id=self.request_id, epoch=epoch, why=lost.code)
            self.state.let_go("decode", self.state.drop_successor())
            return
        if not self.state.is_from(sender, *ROUTED_ROLES):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_lost").inc()
            return
        hop = "bus" if lost.code == "gap" else lost.hop  # what did not come is nobody's fault
        trouble = error_from_code(lost.code, lost.message, hop=hop)
        if isinstance(trouble, StreamTakenOver):
            self._interruption.interrupt(trouble)
        elif isinstance(trouble, EngineFault) and self._poison_requests.record_fault(
            self._crash_record, epoch
        ):
            self.end_as_poison_request(hop)  # before it is routed once more
        else:
            self._watch.fail_route(trouble)

    async def find_successor(self, epoch: int, asked: HandOver, sender: str) -> Successor:
        """The decode worker `sender` leaves, or is hard pressed: find another one. Raises what
        `SuccessorSearch.find` does."""
        if self._successors is None:
            raise StaleEpoch("the request is not decoded anywhere", hop="gateway")
        return await self._successors.find(epoch, asked, sender, self._deadline)

    def on_handed_over(self, epoch: int, handed: HandOverDone, sender: str) -> None:
        """The decode worker `sender` has left, and another one goes on."""
        if self._successors is not None and self._successors.take_over(epoch, handed, sender):
            return
        metrics.STALE_MESSAGES.inc()
        if epoch == self.state.epoch and self.state.is_from(sender, "decode"):
            self._watch.fail_route(Unavailable("its decode worker left it to one that is lost", hop="decode"))

    def on_instance_lost(self, role: str, instance: str) -> None:
        """An instance of the fleet is gone, whether this request used it or not."""
        self._scope.request_client.stop_asking(role, instance)
        if self.state.needs(role, instance):
            self._watch.fail_route(InstanceGone(f"{instance} is gone", hop=role))

    def end_as_poison_request(self, hop: str) -> None:
        """The request took engines down."""
        log.warning("request_convicted", request_id=self.request_id, epoch=self.state.epoch)
        self._interruption.interrupt(poison_request_error(hop))

    def on_fault(self, error: Exception) -> None:
        """End the request: what came for it cannot be taken in, by a bug here or at a worker."""
        log.error("intake_failed", request_id=self.request_id, exc_info=error)
        self._interruption.interrupt(_gateway_failed(error))

    def cancel_request(self, why: str) -> None:
        """Stop: the client is gone, or the gateway shuts down. A client whose time is up has expired. What
        others share goes on for them."""
        if self.budget.total.expired():
            self._interruption.interrupt(self.state.expired())
        else:
            self._work.leave(Cancelled(why, hop="gateway"))

    def end_for_shutdown(self) -> None:
        """The gateway ends. A stream that can be resumed goes on at another one."""
        if self.request.resumable and self.state.running:
            stopping = "this gateway stops: resume the stream at another one"
            self._interruption.interrupt(GatewayStopping(stopping, hop="gateway"))
        else:
            self.cancel_request("the gateway shuts down: send the request again")

    def on_call_ended(self) -> None:
        """gRPC is done with the call."""
        self._call_ended = True
        self._report()

    # ---- the life of the request -------------------------------------------------------------------

    async def run_request(self) -> None:
        """Ends with exactly one outcome in the response buffer and nothing held anywhere."""
        # This outcome stands when the process ends before the drain does.
        outcome = Outcome.of(Cancelled("the gateway was stopped: send the request again", hop="gateway"))
        try:
            outcome = await self._supervise()
        finally:
            self._work.end(outcome, self._citing.sentences)
            self._end(outcome)
            if outcome.finish:
                self._cached.keep(self.state, self._citing.sentences)
            self._poison_requests.close_record(self._crash_record)
            if self.state.epoch:
                self._context.admission_queue.record_end()
            try:
                await self._holders.cancel_at_end(outcome)
            finally:
                self._outcome = outcome
                self._report()

    async def _supervise(self) -> Outcome:
        """The work is a task of its own: nothing on its way can keep a cancel or a deadline from it."""
        work = start_task(self._drive_request(), name=f"drive-{self.request_id}")
        ends: list[asyncio.Future[Any]] = [work, self._interruption.came]
        try:
            while not work.done() and self._interruption.error is None:
                deadline = self._deadline
                if deadline.expired():
                    late = "inter-token" if self.state.log.ids and deadline < self.budget.total else ""
                    self._interruption.interrupt(self.state.expired(late))
                else:
                    # The first token brings a deadline that may be earlier; later ones only move it on.
                    begun = [] if self.intake.begun.done() else [self.intake.begun]
                    await asyncio.wait(
                        [*ends, *begun], timeout=deadline.remaining_s(), return_when=asyncio.FIRST_COMPLETED
                    )
        finally:
            await cancel_until_done(work)
        interrupted = self._interruption.error
        return self._outcome_of(work) if interrupted is None else Outcome.of(interrupted)

    @property
    def _deadline(self) -> Deadline:
        return self._watch.deadline

    def _outcome_of(self, work: asyncio.Task[str]) -> Outcome:
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if error is None:
            return Outcome.ended(work.result(), self.request.sampling)
        if isinstance(error, Unavailable) and self._deadline.remaining_s() < LATE_S:
            return Outcome.of(self.state.expired())
        if isinstance(error, PenstockError):
            return Outcome.of(self.request.tool_use.blame(error))
        log.error("session_failed", request_id=self.request_id, exc_info=error)
        return Outcome.of(_gateway_failed(error))

    async def _drive_request(self) -> str:
        """The walk of the request, by one model after another; returns the word it finished with."""
        while True:
            try:
                finish = await self._drive_model()
            except PenstockError as error:
                if not self._fall_back(error):
                    raise
            else:
                if self._escalated is None:
                    return finish
                self._leave_model(self._escalated, UNSURE)

    def _fall_back(self, error: PenstockError) -> bool:
        """Take another model after `error`, if the request allows one and its client has no token yet."""
        state, scope = self.state, self._scope
        over = bool(state.log.ids) or self._interruption.error is not None
        if over or not scope.request.may_fall_back or self._deadline.remaining_s() < LATE_S:
            return False
        request = self._chooser.choose_next(scope.request, self.budget, error, routed=state.epoch > 0)
        if request is None:
            return False
        self._leave_model(request, error.code)
        return True

    def _leave_model(self, request: Request, why: str) -> None:
        """Go on with `request`, which is for another model: nothing of this one has gone out."""
        log.info("model_passed_over", request_id=self.request_id, model=self._scope.request.model, why=why)
        self.warmer.drop()
        if self.state.route is not None:
            self._holders.cancel_route(why)
        self.state.leave_model()
        self.response.take_back_prompt()
        self.timeline.mark_phase("route.model")
        self._scope, self.request = replace(self._scope, request=request), request
        self._begin_model()

    def _release(self) -> None:
        """Let the client have what was held for it."""
        if self.intake.confidence is not None:
            self.timeline.mark_held()
            self.response.release()

    def _escalation(self) -> Request | None:
        """Return the request for the model that answers anew, where this one's answer is not sure enough."""
        cascade, confidence = self._scope.request.cascade, self.intake.confidence
        if cascade is None or confidence is None or not confidence.is_below(cascade.min_logprob):
            return None
        return self._chooser.escalate(self._scope.request, self.budget)

    async def _drive_model(self) -> str:
        """The walk of the request by the model that it is for now."""
        prompt = await self._prepare_prompt()
        self._work.put_prompt(prompt)
        if prompt is None:
            return self.state.finish
        self._agent_turn.record_prompt(prompt)
        self.request = prompt.request
        if self._scope.request.cascade is not None:
            self.response.hold()
            hidden = self._scope.request.sampling.logprobs == NO_LOGPROBS
            self.intake.confidence = AnswerConfidence(hidden)
        router = Router(self._scope, prompt, self._holders)
        self._successors = SuccessorSearch(self._scope, prompt, router.trials, router.expected)
        try:
            while True:
                await self._poison_requests.take_turn(self._crash_record)
                await router.route_request(self._deadline, self._asked)
                trouble = await self._watch.until_over(router.trials)
                if trouble is None:
                    self._escalated = self._escalation()
                    if self._escalated is None:
                        self._release()
                        await self._cite_answer()
                    return self.state.finish
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
            self._scope, self._gate, self._preprocessor, self.warmer, self._cached, self._citing
        )
        admitted = await preparation.admit_request()
        shares = admitted.request.coalesces and not admitted.request.may_change_model
        followed = await self._follow_others(admitted) if shares else None
        if followed is not None or self.state.finish:
            return followed
        return await preparation.prepare_prompt(admitted)

    async def _follow_others(self, admitted: AdmittedRequest) -> PreparedPrompt | None:
        """Have the answer of a request that is the same and runs, or what is left to be computed here."""
        following = Following(self._scope, self.intake, self._citing, admitted.request, self.on_fault)
        try:
            await following.follow_others(admitted.model, self._running, self._work)
        finally:
            if following.prompt is not None:
                self.request = following.prompt.request
        return None if self.state.finish else following.take_prompt()

    # ---- routed: watched, and routed anew -----------------------------------------------------------

    def _asked(self) -> None:
        route = self.state.route
        if route is None:
            return
        self.timeline.begin_attempt(self.state.epoch, route.instances, route.region)
        self.warmer.routed(route)

    def _begin_replacement(self, trouble: PenstockError) -> bool:
        """Cancel the failed route; True when nothing is left to generate. Progress earns another try."""
        late = isinstance(trouble, DeadlineExpired) and self._deadline.remaining_s() < LATE_S
        if is_final(trouble) or late:
            raise trouble
        self._holders.cancel_route(trouble.code)
        if self.state.complete:
            return True
        if self.state.fruitless >= self._context.config.max_replacements:
            if isinstance(trouble, DeadlineExpired):  # no worker can do it in the time that is left
                raise trouble
            times = self.state.fruitless + 1
            raise Unavailable(f"routed {times} times in vain: {trouble.message}; retry", hop=trouble.hop)
        self.state.count_replacement()
        log.info("request_replaced", request_id=self.request_id, epoch=self.state.epoch, why=str(trouble))
        return False

    async def _cite_answer(self) -> None:
        """Find what supports the answer, while the workers and the place in line are another's already."""
        self._scope.meter.end()
        await self._citing.cite_answer(self._deadline.remaining_s() - LATE_S)

    # ---- the end -----------------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        self.state.end_session()
        self._scope.meter.end()
        # First, so that a client that hears of the end has room for its next request.
        if isinstance(outcome.error, MOVED):
            self._scope.allowance.leave()
        else:
            self._scope.allowance.charge(self.state.used_tokens)
        self.response.put_end(outcome)

    def _report(self) -> None:
        """Report the request once it and its call are over; either may be first."""
        outcome = self._work.left or self._outcome
        if self._call_ended and outcome is not None and not self._reported:
            self._reported = True
            self.timeline.close_timeline()
            record = self._scope.record(self.request, outcome)
            self._context.record_end(record, outcome)
        if self._call_ended and self._outcome is not None and self._outcome.finish:
            if self._work.left is None:
                self._agent_turn.end()
            self._holders.release_stream()

    def usage(self) -> pb.Usage:
        counts = self.timeline.counts
        return pb.Usage(
            prompt_tokens=self.state.log.prompt_tokens,
            completion_tokens=len(self.state.log.ids),
            cached_tokens=self.state.cached_tokens,
            draft_tokens=counts["draft_proposed"],
            accepted_draft_tokens=counts["draft_accepted"],
            ngram_draft_tokens=counts["ngram_proposed"],
            accepted_ngram_draft_tokens=counts["ngram_accepted"],
            replacements=self.state.replacements,
            coalesced_tokens=self.state.shared_tokens,
            reasoning_tokens=self._scope.reasoning_tokens,
        )

    def times(self) -> RequestTimes:
        """Return what is known of its times now."""
        began_s, ttft_us = self.budget.arrived_s, self.timeline.measured_ttft_us
        now_s = SYSTEM_CLOCK.monotonic_s()
        return RequestTimes(
            0.0 if began_s is None else 1000 * (now_s - began_s),
            None if ttft_us is None else ttft_us / 1000,
            len(self.state.log.ids),
        )

    @property
    def other_ids(self) -> tuple[str, ...]:
        """The names of the request beside its own: the client's, and those of the stream that it goes on
        with."""
        resumed = self.request.resumed
        return (
            (self.client_id,) if resumed is None else (self.client_id, resumed.stream_id, resumed.request_id)
        )

    @property
    def client_id(self) -> str:
        """The id that the client gave its call, "" for none."""
        return self._scope.identity.client_id

    def terminal_event(self, outcome: Outcome) -> pb.Terminal:
        """The terminal event, with the timeline closed now: call it when it is about to be written."""
        self.timeline.close_timeline()
        end = outcome.terminal_event(self.usage(), self.timeline.to_event())
        if end.finish_reason == pb.FINISH_REASON_STOP and self.response.has_called:
            end.finish_reason = pb.FINISH_REASON_TOOL_CALLS
        end.citations.extend(map(citation_event, self._citing.sentences))
        return end


def _gateway_failed(error: BaseException) -> InternalError:
    return InternalError(f"the gateway failed: {type(error).__name__}", hop="gateway")
