"""The things that all sessions of a gateway share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from services.gateway.admission.admission_queue import AdmissionQueue
from services.gateway.admission.agent_sessions import AgentSessions
from services.gateway.admission.answer_lengths import AnswerLengths
from services.gateway.admission.drain_gate import DrainGate
from services.gateway.admission.model_levels import ModelLevels
from services.gateway.admission.pressure import Pressure
from services.gateway.config import GatewayConfig
from services.gateway.flags.flag_keeper import FlagKeeper
from services.gateway.fleet.away_models import AwayModels
from services.gateway.fleet.breakers import Breakers
from services.gateway.fleet.canceller import Canceller
from services.gateway.fleet.model_identity import ModelIdentity, contends
from services.gateway.fleet.poison_requests import PoisonRequests
from services.gateway.fleet.routing import free_slots, leave_out
from services.gateway.fleet.sent_load import LoadedView, SentLoad
from services.gateway.fleet.tenant_jobs import TenantJobCounts, TenantStanding
from services.gateway.question.question_rewriter import QuestionRewriter
from services.gateway.regions.regions import Regions
from services.gateway.request.prompt_limits import PromptLimits
from services.gateway.rows.stream_table import StreamTable, has_stream_table
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.recent_latencies import RecentLatencies
from services.gateway.scope.report import report_end
from services.gateway.scope.request_record import RequestRecord
from services.gateway.served_fleet import ServedFleet
from services.gateway.tracing.collector_access import CollectorAccess, read_sampler
from services.gateway.tracing.ended_requests import EndedRequests
from services.gateway.tracing.span_exporter import SpanExporter
from services.gateway.tracing.text_call_record import TextCallRecord
from services.gateway.tracing.usage_ledger import UsageLedger
from services.gateway.virtual.virtual_models import VirtualModels
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.config.fields import ConfigError
from shared.fairness.share import TenantShare
from shared.tasks import Tasks
from shared.telemetry.trace_sampler import TraceSampler
from shared.telemetry.useful_answer import UsefulMarker


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The things that all sessions of this gateway share; `instance` is the gateway's own id, and
    `own_detokenizer` the detokenizer in its process, "" where there is none."""

    instance: str
    own_detokenizer: str
    config: GatewayConfig
    bus: Bus
    fleet: FleetView
    served: ServedFleet
    canceller: Canceller
    sent_load: SentLoad
    admission_queue: AdmissionQueue
    pressure: Pressure
    degradation: ModelLevels
    breakers: Breakers
    poison_requests: PoisonRequests
    question_rewriter: QuestionRewriter
    latencies: RecentLatencies
    tasks: Tasks
    ended_requests: EndedRequests
    exporter: SpanExporter | None
    away_models: AwayModels
    sampler: TraceSampler
    virtual_models: VirtualModels
    flags: FlagKeeper
    usage: UsageLedger
    agent_sessions: AgentSessions
    answer_lengths: AnswerLengths
    useful_marker: UsefulMarker | None
    regions: Regions | None
    drain_gate: DrainGate
    rows: StreamTable | None

    @property
    def prompt_limits(self) -> PromptLimits:
        """The limits of the NATS server that the gateway is connected to now."""
        return PromptLimits(self.bus.max_payload)

    def record_end(self, record: RequestRecord, outcome: Outcome) -> None:
        """A request is over, and its call with it: it is counted, logged and kept."""
        report_end(record, outcome)
        self.latencies.record_end(record.outcome, record.ttft_us)
        self.ended_requests.add(record)
        self.usage.add(record)
        if record.flags:
            self.flags.record_end(record)
        if self.exporter is not None:
            self.exporter.add(record)

    def record_call(self, record: TextCallRecord) -> None:
        """A call that was no request is over."""
        if self.exporter is not None:
            self.exporter.add(record)

    @classmethod
    def of(
        cls,
        instance: str,
        config: GatewayConfig,
        bus: Bus,
        fleet: FleetView,
        tasks: Tasks,
        own_detokenizer: str = "",
    ) -> SessionContext:
        """Raises ConfigError for a rewriter of questions, a collector, a marker or a file that cannot be
        used."""
        sent_load, breakers, served = SentLoad(), Breakers(instance, fleet), ServedFleet(fleet)
        tenant_jobs = TenantJobCounts()

        def loaded(role: str) -> list[LoadedView]:
            return [sent_load.with_sent(view) for view in fleet.instances(role)]

        def slots(model: ModelIdentity, blocks: int, *, with_guests: bool = False) -> int | None:
            views = served.serving("decode", model)
            trusted = leave_out(views, breakers.shunned(views, ""))
            expected = [sent_load.with_sent(view) for view in trusted]
            return free_slots(expected, model, blocks, with_guests=with_guests)

        def contending(ahead: ModelIdentity, behind: ModelIdentity) -> bool:
            return ahead == behind or contends(ahead, behind, fleet.instances("decode"))

        def standing(model: ModelIdentity, share: TenantShare) -> TenantStanding:
            tenant = share.for_workers(config.fleet_key).tenant
            return tenant_jobs.standing(tenant, served.serving("decode", model))

        queue = AdmissionQueue(
            slots,
            contending,
            tasks.start,
            guest_room=partial(slots, with_guests=True),
            standing=standing,
        )
        pressure = Pressure(queue, loaded)
        canceller = Canceller(bus, instance, config.cancel_ack_s)
        suspects = PoisonRequests()
        collector = CollectorAccess.of(config, os.environ)
        return cls(
            instance=instance,
            own_detokenizer=own_detokenizer,
            config=config,
            bus=bus,
            fleet=fleet,
            served=served,
            canceller=canceller,
            sent_load=sent_load,
            admission_queue=queue,
            pressure=pressure,
            degradation=ModelLevels(),
            breakers=breakers,
            poison_requests=suspects,
            question_rewriter=QuestionRewriter.of(config),
            latencies=RecentLatencies(),
            tasks=tasks,
            ended_requests=EndedRequests(),
            away_models=AwayModels(config.max_sessions),
            exporter=None if collector is None else SpanExporter(collector, instance),
            sampler=read_sampler(config, os.environ),
            virtual_models=VirtualModels.of(config),
            flags=FlagKeeper.of(instance, config, bus, fleet),
            usage=UsageLedger(),
            agent_sessions=AgentSessions(),
            answer_lengths=AnswerLengths(),
            useful_marker=read_useful_marker(config),
            regions=Regions.of(config.region, config.zone, fleet),
            drain_gate=DrainGate(),
            rows=StreamTable() if has_stream_table() else None,
        )


def read_useful_marker(config: GatewayConfig) -> UsefulMarker | None:
    """Return what makes an answer useful, None where nobody wants to know. Raises ConfigError for a pattern
    that is none."""
    if not config.useful_marker:
        return None
    try:
        return UsefulMarker.read(config.useful_marker)
    except ValueError as error:
        raise ConfigError(f"useful_marker: {error}") from error
