"""The registry of sessions: it opens them, gives each what comes for it, and answers for what they hold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from services.gateway.admission.session_shares import SessionShares
from services.gateway.context import SessionContext
from services.gateway.flags.flag_guards import FlaggedTimes
from services.gateway.flags.flag_keeper import FlagKeeper
from services.gateway.flags.flag_traffic import traffic_since
from services.gateway.keys.allowance import Allowance
from services.gateway.keys.key_gate import KeyGate, KeyMessage
from services.gateway.prompt.admission_gate import AdmissionGate
from services.gateway.prompt.model_chooser import ModelChooser
from services.gateway.request.hardness import Hardness
from services.gateway.request.prompt_limits import PromptLimits
from services.gateway.request.request import Request
from services.gateway.scope.budget import Budget
from services.gateway.scope.call_identity import CallIdentity, call_identity
from services.gateway.scope.live_counts import LiveCounts
from services.gateway.scope.report import flush_tokens
from services.gateway.scope.session_state import RequestPhase
from services.gateway.scope.text_messages import TextMessages
from services.gateway.scope.text_row import TextRow, rows_by_request
from services.gateway.session.console_report import MAX_SHOWN_LIVE, console_report
from services.gateway.session.running_computations import RunningComputations
from services.gateway.session.session import Session
from shared import messages
from shared.bus import Delivery
from shared.bus.heartbeats.repeated_beats import beat_with
from shared.deadline import SYSTEM_CLOCK
from shared.errors import PenstockError, StaleEpoch, Unavailable, UnknownMessage
from shared.messages import (
    AuditReport,
    AuditRequest,
    Drain,
    Envelope,
    GatewayReport,
    Heartbeat,
    Held,
    Lost,
    Message,
    Snapshot,
    SnapshotRequest,
    Text,
)
from shared.telemetry import metrics
from shared.telemetry.labelled import labelled

log = structlog.get_logger()

InboxQuestion = (
    AuditRequest
    | SnapshotRequest
    | messages.UsageRequest
    | messages.ConsoleRequest
    | messages.FlagLogRequest
    | messages.FlagTrafficRequest
)
"""The questions that are answered at once."""


class SessionRegistry:
    """The registry and the dispatcher of the gateway's inbox. A session stays until it holds nothing."""

    def __init__(
        self,
        context: SessionContext,
        key_gate: KeyGate,
        *,
        incarnation: int,
        heartbeat: Callable[[], Heartbeat],
        changed: Callable[[], None],
        begin_drain: Callable[[int], None],
    ) -> None:
        self._context = context
        self._key_gate = key_gate
        self._gate = AdmissionGate(context)
        self._chooser = ModelChooser(context, self._gate)
        self._incarnation = incarnation
        self._heartbeat = heartbeat
        self._changed = changed
        self._begin_drain = begin_drain
        self._live: dict[str, Session] = {}
        self._running = RunningComputations()
        config = context.config
        self._shares = SessionShares(config.max_sessions, shared=bool(config.api_keys))
        self._live_counts = LiveCounts()
        self._turns = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self.drain_gate = context.drain_gate
        self.text_messages = TextMessages(
            context.rows, context.latencies, lambda: context.admission_queue.alone, self._take_rows
        )

    @property
    def prompt_limits(self) -> PromptLimits:
        return self._context.prompt_limits

    @property
    def flags(self) -> FlagKeeper:
        return self._context.flags

    def only_model(self) -> str:
        """Return the model of a request that names none, where one alone is served; else ""."""
        served = {view.heartbeat.model for view in self._context.fleet.instances("decode")}
        return served.pop() if len(served) == 1 else ""

    @property
    def instance(self) -> str:
        """The gateway's own id."""
        return self._context.instance

    def check_size(self, request: Request) -> None:
        """Raise InvalidRequest for a prompt that is too large to be read, by the tokens that it surely has
        where these are more than the model takes."""
        self._gate.check_size(request)

    # ---- opening and ending ------------------------------------------------------------------------

    def check_room(self, tenant: str, count: int) -> None:
        """Raise Overloaded when `count` more of `tenant` have no room, Unavailable while draining."""
        try:
            self.drain_gate.check()
        except Unavailable:
            metrics.SHED.labels(hop="gateway", reason="drain").inc()
            raise
        self._shares.check_room(tenant, count, self._context.admission_queue.seconds_per_end())

    async def estimate_hardness(self, request: Request, budget: Budget) -> Hardness | None:
        """Return how hard the question is, where the choice of a model depends on that; else None."""
        if request.resumed is not None or not self._chooser.concerns(request):
            return None
        return await self._chooser.estimate(request, budget)

    def open_sessions(
        self,
        admitted: Sequence[tuple[Request, Budget, Allowance]],
        hardness: Hardness | None = None,
    ) -> list[Session]:
        """Start a session for each, of which `check_room` has said that there is room; raises Overloaded when
        there is no time for one, and then starts none.

        A session that was started charges the allowance, whatever becomes of it.
        """
        requests = self._admit([(request, budget) for request, budget, _ in admitted], hardness)
        identity = call_identity()
        return [
            self._open_session(
                request, budget, allowance, identity, identity.request_id(self.instance, choice)
            )
            for choice, (request, (_, budget, allowance)) in enumerate(zip(requests, admitted, strict=True))
        ]

    def _admit(self, asked: Sequence[tuple[Request, Budget]], hardness: Hardness | None) -> list[Request]:
        """Return the requests of a call, each for the model that answers it: where that is to be chosen, the
        first one chooses for all. Raises why one is not taken."""
        first, budget = asked[0]
        if first.resumed is not None:  # it has been let in already
            return [request for request, _ in asked]
        if self._chooser.concerns(first):
            chosen = self._chooser.choose(first, budget, hardness)
            return [chosen, *(self._chooser.follow(request, its, chosen) for request, its in asked[1:])]
        for request, its in asked:
            self._gate.check_request(request, its)
        return [request for request, _ in asked]

    def _open_session(
        self,
        request: Request,
        budget: Budget,
        allowance: Allowance,
        identity: CallIdentity,
        request_id: str,
    ) -> Session:
        self._context.pressure.record_budget(request.tenant, budget.first_token_s)
        session = Session(
            self._context,
            self._gate,
            self._chooser,
            request_id,
            request,
            budget,
            allowance,
            next(self._turns),
            identity,
            self._running,
        )
        self._live[request_id] = session
        self._shares.begin(request.tenant)
        self._idle.clear()
        self._context.tasks.start(request_id, self._run_session(session))
        if len(self._live) == 1:  # nobody is placed by how many there are: heartbeats tell it now and then
            self._changed()
        return session

    async def _run_session(self, session: Session) -> None:
        try:
            await session.run_request()
        finally:
            del self._live[session.request_id]
            if self._context.rows is not None:
                self._context.rows.leave(session.request_id)
            self._shares.end(session.request.tenant)
            if not self._live:
                self._idle.set()
                self._changed()

    def live_sessions(self, count: int) -> list[Session]:
        """Return at most so many, those that came first."""
        return list(itertools.islice(self._live.values(), count))

    def flagged_times(self) -> Iterator[FlaggedTimes]:
        """Yield what is known of the live requests that have changes of settings."""
        for session in self._live.values():
            if session.request.flags:
                yield FlaggedTimes(session.request.flags, session.times())

    @property
    def live_count(self) -> int:
        return len(self._live)

    def has_sessions(self) -> bool:
        return bool(self._live)

    async def drain_sessions(self) -> None:
        """Return when the live ones have ended."""
        await self._idle.wait()

    def cancel_session(self, request_id: str, tenant: str) -> bool:
        """End one for a client of `tenant`, or all that the client calls so; whether there is such a
        request."""
        session = self._live.get(request_id)
        named = [session] if session else [s for s in self._live.values() if request_id in s.other_ids]
        own = [session for session in named if session.request.tenant == tenant]
        for session in own:
            session.cancel_request("cancelled by its id")
        return bool(own)

    async def cancel_sessions(self, timeout_s: float) -> None:
        """End what is still live; bounded."""
        for session in list(self._live.values()):
            session.end_for_shutdown()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("sessions_left", count=len(self._live))

    # ---- what comes in -----------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Everything of this gateway's inbox. Synchronous: text goes straight to its session."""
        envelope, message = delivery.envelope, delivery.message
        match message:
            case Text():
                self._fan_out(message, delivery.sender)
            case Lost() | messages.PromptLogprobs() | messages.FoundFirst() | messages.HandOverDone():
                self._deliver(delivery)
            case messages.HandOver() as asked:
                self._context.tasks.start("hand-over", self._answer_hand_over(delivery, asked))
            case messages.ClientCancel(tenant):
                found = self.cancel_session(envelope.request_id, tenant)
                self._answer(envelope, messages.CancelAck(found, ""))
            case _ if isinstance(message, KeyMessage):
                self._key_gate.receive(delivery, message)
            case _ if isinstance(message, InboxQuestion):
                self._answer(envelope, self._report_for(message))
            case messages.AccountRequest() | messages.ChangeFlag() as asked:
                self._context.tasks.start("answer-late", self._answer_late(envelope, asked))
            case Drain(patience_s):
                self._begin_drain(patience_s)
                self._answer(envelope, messages.Accepted())
            case _:
                name = type(message).__name__
                self._answer(envelope, UnknownMessage(f"a gateway does not take {name}"))

    def _deliver(self, delivery: Delivery) -> None:
        epoch, sender = delivery.envelope.epoch, delivery.sender
        session = self._live.get(delivery.envelope.request_id)
        if session is None:
            metrics.STALE_MESSAGES.inc()
            return
        try:
            match delivery.message:
                case Lost() as lost:
                    session.on_lost(epoch, lost, sender)
                case messages.HandOverDone() as handed:
                    session.on_handed_over(epoch, handed, sender)
                case messages.PromptLogprobs() as scores:
                    session.intake.on_prompt_logprobs(epoch, scores, sender)
                    flush_tokens()
                case messages.FoundFirst(passages):
                    session.warmer.on_found_first(epoch, passages, sender)
        except Exception as error:  # noqa: BLE001 - as above
            session.on_fault(error)

    async def _answer_hand_over(self, delivery: Delivery, asked: messages.HandOver) -> None:
        envelope = delivery.envelope
        session = self._live.get(envelope.request_id)
        answer: Message | PenstockError = StaleEpoch("no such request runs here", hop="gateway")
        if session is not None:
            try:
                answer = await session.find_successor(envelope.epoch, asked, delivery.sender)
            except PenstockError as error:
                answer = error
        await self._context.bus.answer(envelope, answer, hop="gateway")

    def on_instance_lost(self, role: str, instance: str, why: str) -> None:
        """A worker died, restarted or went silent."""
        log.info("instance_lost", peer_role=role, peer=instance, why=why)
        poison = self._context.poison_requests.record_death(role, instance) if why == "restarted" else ""
        if poison in self._live:
            self._live[poison].end_as_poison_request(role)
        for session in list(self._live.values()):
            session.on_instance_lost(role, instance)

    def _fan_out(self, text: Text, sender: str) -> None:
        self._take_rows(rows_by_request(text), sender, SYSTEM_CLOCK.monotonic_s())

    def _take_rows(self, rows: Iterable[tuple[str, TextRow]], sender: str, now_s: float) -> None:
        for request_id, row in rows:
            session = self._live.get(request_id)
            if session is None:
                metrics.STALE_MESSAGES.inc()
                continue
            try:
                session.intake.on_text(row, sender, now_s)
            except Exception as error:  # noqa: BLE001 - the row's own, not that of those that came with it
                session.on_fault(error)
        flush_tokens()

    def _answer(self, envelope: Envelope, answer: Message | PenstockError) -> None:
        self._context.tasks.start("answer", self._context.bus.answer(envelope, answer, hop="gateway"))

    # ---- what it tells -----------------------------------------------------------------------------

    def _report_for(self, message: InboxQuestion) -> Message:
        if isinstance(message, AuditRequest):
            return self.audit()
        if isinstance(message, SnapshotRequest):
            return Snapshot(0, b"")
        if isinstance(message, messages.ConsoleRequest):
            return self.console_report()
        if isinstance(message, messages.FlagLogRequest):
            return self.flags.report()
        if isinstance(message, messages.FlagTrafficRequest):
            return traffic_since(self._context.ended_requests, message.since_unix_us)
        usage = self._context.usage
        return messages.UsageReport(self._incarnation, usage.since_unix_us, tuple(usage.rows()))

    def console_report(self) -> messages.ConsoleReport:
        """Return what a console shows of this gateway."""
        return console_report(self._context, len(self._live), self.live_sessions(MAX_SHOWN_LIVE))

    def audit(self) -> AuditReport:
        held = tuple(
            Held(session.request_id, "session", 1, session.state.phase.value)
            for session in self._live.values()
        )
        if not held:  # nobody is there who could have a slot
            held = tuple(self._context.admission_queue.held())
        return AuditReport("gateway", self._context.instance, self._incarnation, held)

    async def _answer_late(
        self, envelope: Envelope, asked: messages.AccountRequest | messages.ChangeFlag
    ) -> None:
        answer: Message | PenstockError
        try:
            if isinstance(asked, messages.AccountRequest):
                answer = await self.account(asked.name)
            else:
                answer = await self.flags.change(asked)
                self._changed()
        except PenstockError as error:
            answer = error
        await self._context.bus.answer(envelope, answer, hop="gateway")

    async def account(self, name: str) -> messages.RequestAccount | messages.NoAccount:
        """Return where the time of a request went, by our id of it or by its client's."""
        ended = self._context.ended_requests
        record = ended.find(name)
        if record is not None:
            return await asyncio.to_thread(ended.account, record)
        live = [s for s in self._live.values() if name in (s.request_id, s.client_id)]
        return messages.NoAccount(live[0].state.phase.value if live else "", ended.kept)

    def status(self) -> Heartbeat:
        queued = sum(
            1
            for session in self._live.values()
            if session.state.phase not in (RequestPhase.DECODE, RequestPhase.SHARED, RequestPhase.ENDED)
        )
        labelled(metrics.QUEUE_DEPTH, "gateway").set(queued)
        self._live_counts.show(session.state for session in self._live.values())
        context = self._context
        report = GatewayReport(
            degradation=int(context.degradation.highest),
            model_levels=context.degradation.report(),
            breakers=context.breakers.report(),
            flags=context.flags.digest,
            wanted_models=context.away_models.wanted,
            regions=() if context.regions is None else context.regions.report(),
        )
        return beat_with(
            self._heartbeat(),
            capacity=context.config.max_sessions,
            live=len(self._live),
            queued=queued,
            gateway=report,
        )
