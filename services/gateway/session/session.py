"""The session: the supervisor of one request, from its admission to its one terminal event.

The pipeline streams by itself; the session relays what comes, and when a part fails, stalls or is
lost it routes the request anew with everything generated so far. What arrives for the client is taken in
synchronously (`intake`), so a token waits for nothing but its client.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.context import SessionContext
from services.gateway.fleet.poison_requests import poison_request_error
from services.gateway.fleet.request_client import InstanceGone
from services.gateway.keys.allowance import Allowance
from services.gateway.prompt.admission_gate import AdmissionGate
from services.gateway.prompt.answer_citing import citation_event
from services.gateway.prompt.model_chooser import ModelChooser
from services.gateway.prompt.warmer import Warmer
from services.gateway.request.request import Request
from services.gateway.request_scope import RequestScope
from services.gateway.scope.answer_usefulness import AnswerUsefulness
from services.gateway.scope.budget import Budget
from services.gateway.scope.call_identity import CallIdentity
from services.gateway.scope.outcome import Outcome
from services.gateway.session.interruption import Interruption
from services.gateway.session.request_walk import LATE_S, RequestWalk, gateway_failed
from services.gateway.session.route_watch import RouteWatch
from services.gateway.session.running_computations import RunningComputations
from services.gateway.session.shared_work import SharedWork
from services.gateway.session.text_intake import TextIntake
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import (
    Cancelled,
    EngineFault,
    GatewayStopping,
    PenstockError,
    StaleEpoch,
    StreamTakenOver,
    Unavailable,
    error_from_code,
)
from shared.flags.guard import RequestTimes
from shared.messages import WARM_EPOCH, HandOver, HandOverDone, Lost, Successor
from shared.roles import ROUTED_ROLES
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import metrics

log = structlog.get_logger()

MOVED = (StreamTakenOver, GatewayStopping)
"""The ends of a stream here that is no end of it: another gateway goes on."""


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
        self.state = scope.state
        self.response = scope.response
        self.timeline = scope.timeline
        self.latencies = context.latencies
        self._context = context
        self._poison_requests = context.poison_requests
        self.budget = budget
        self._crash_record = scope.crash_record
        self._interruption = Interruption()
        self._watch = RouteWatch(scope)
        self._work = SharedWork(scope, running, self._interruption)
        self.intake = TextIntake(scope, self._watch, self._interruption, self._work)
        self._walk = RequestWalk(
            scope,
            gate,
            chooser,
            running,
            self._watch,
            self._interruption,
            self._work,
            self.intake,
        )
        marker = context.useful_marker
        self.usefulness = None if marker is None else AnswerUsefulness(marker, scope.timeline, scope.response)
        self._outcome: Outcome | None = None
        self._call_ended = False
        self._reported = False

    @property
    def request(self) -> Request:
        """Return what the present model makes of the request."""
        return self._walk.request

    @property
    def warmer(self) -> Warmer:
        """Return that of the present model."""
        return self._walk.warmer

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
        successors = self._walk.successors
        if successors is None:
            raise StaleEpoch("the request is not decoded anywhere", hop="gateway")
        return await successors.find(epoch, asked, sender, self._deadline)

    def on_handed_over(self, epoch: int, handed: HandOverDone, sender: str) -> None:
        """The decode worker `sender` has left, and another one goes on."""
        successors = self._walk.successors
        if successors is not None and successors.take_over(epoch, handed, sender):
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
        """End the request: what came for it cannot be taken in."""
        self._walk.on_fault(error)

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
        walk = self._walk
        try:
            outcome = await self._supervise()
        finally:
            self._work.end(outcome, walk.citing.sentences)
            self._end(outcome)
            if outcome.finish:
                walk.cached.keep(self.state, walk.citing.sentences)
            self._poison_requests.close_record(self._crash_record)
            if self.state.epoch:
                self._context.admission_queue.record_end()
            try:
                await walk.holders.cancel_at_end(outcome)
            finally:
                self._outcome = outcome
                self._report()

    async def _supervise(self) -> Outcome:
        """The work is a task of its own: nothing on its way can keep a cancel or a deadline from it."""
        work = start_task(self._walk.walk(), name=f"walk-{self.request_id}")
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
        return Outcome.of(gateway_failed(error))

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
                self._walk.agent_turn.end()
            self._walk.holders.release_stream()

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
        end.citations.extend(map(citation_event, self._walk.citing.sentences))
        return end
