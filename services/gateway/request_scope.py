"""Hold what the parts of one running request share: made once, by its session, and handed to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from services.gateway.admission.request_meter import RequestMeter
from services.gateway.config import GatewayConfig
from services.gateway.context import SessionContext
from services.gateway.fleet.crash_record import CrashRecord
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.request_client import RequestClient
from services.gateway.keys.allowance import Allowance
from services.gateway.request.request import Request
from services.gateway.request.resume_token import StreamThinking
from services.gateway.scope.budget import Budget
from services.gateway.scope.call_identity import CallIdentity
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.request_record import CHAT, TEXT, RequestRecord
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.response_buffer import ResponseBuffer
from services.gateway.scope.session_state import SessionState
from shared.deadline import SYSTEM_CLOCK
from shared.degradation import DegradationLevel
from shared.fairness.share import TenantShare, answer_scope
from shared.telemetry.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class RequestScope:
    """One request while it runs. `request` is what came in; what its model makes of it is handed on by the
    stages. `rotation` spreads equal choices of instances over the requests of a gateway. `span` is the
    request's own in the trace that its call is a part of. `config` is what is set for this request, with the
    changes that it has. `worker_share` names its tenant and `answer_scope` who shares its KV, as workers know
    them."""

    context: SessionContext
    config: GatewayConfig
    request_id: str
    request: Request
    budget: Budget
    allowance: Allowance
    rotation: int
    state: SessionState
    response: ResponseBuffer
    timeline: RequestTimeline
    request_client: RequestClient
    crash_record: CrashRecord
    meter: RequestMeter
    worker_share: TenantShare
    answer_scope: str
    identity: CallIdentity
    span: TraceContext

    @classmethod
    def open(
        cls,
        context: SessionContext,
        request_id: str,
        request: Request,
        budget: Budget,
        allowance: Allowance,
        rotation: int,
        identity: CallIdentity,
    ) -> Self:
        """A scope in which nothing has happened yet."""
        span = context.sampler.new_span(identity.parent)
        fleet_key = context.config.fleet_key
        share = request.share.for_workers(fleet_key)
        return cls(
            context=context,
            config=context.flags.config_of(request.flags),
            request_id=request_id,
            request=request,
            budget=budget,
            allowance=allowance,
            rotation=rotation,
            state=SessionState(request.sampling.max_tokens),
            response=ResponseBuffer(context.config.max_buffered_tokens),
            timeline=RequestTimeline(request.client_sent_unix_us, began_s=budget.arrived_s),
            request_client=RequestClient(
                context.bus,
                context.instance,
                request_id,
                budget.total,
                trace=span.header,
                tenant=share.tenant,
            ),
            crash_record=context.poison_requests.open_record(request_id),
            meter=context.admission_queue.meter(request.share),
            worker_share=share,
            answer_scope=answer_scope(request.cache_scope, fleet_key),
            identity=identity,
            span=span,
        )

    def level_of(self, model: ModelIdentity) -> DegradationLevel:
        """Return what is left out of the request while that model answers it."""
        pressed = self.context.degradation.of(model)
        return max(pressed, DegradationLevel[self.config.least_degradation.upper()])

    @property
    def resume_token(self) -> str:
        """The secret by which the client goes on with the stream at another gateway, "" where it cannot."""
        request = self.request
        if request.resume_tokens is None:
            return ""
        ends_unix_us = SYSTEM_CLOCK.unix_us() + round(self.budget.total.remaining_s() * 1e6)
        return request.resume_tokens.make(
            self.request_id, ends_unix_us, request.resumed, request.flags, self._thinking
        )

    @property
    def _thinking(self) -> StreamThinking:
        """Return how a gateway that goes on with the stream reads its text, once that is known."""
        if self.request.resumed is not None:
            return self.request.resumed.thinking
        how, until = self.response.answer_format.thinking, self.budget.thinking
        until_us = 0 if until is None else SYSTEM_CLOCK.unix_us() + round(until.remaining_s() * 1e6)
        return StreamThinking(how, tuple(dict(how.marker_ids).values()), max(0, until_us))

    @property
    def reasoning_tokens(self) -> int:
        """The tokens of the answer in which the model thinks, as far as they have come."""
        return self.response.answer_format.count_thinking(self.state.log.ids)

    def record(self, request: Request, outcome: Outcome) -> RequestRecord:
        """Return what there is to tell of the request once its timeline is closed; `request` is what its
        model has made of it."""
        state, timeline, parent = self.state, self.timeline, self.identity.parent
        return RequestRecord(
            request_id=self.request_id,
            client_id=self.identity.client_id,
            span=self.span,
            parent_span_id="" if parent is None else parent.span_id,
            tenant=request.tenant,
            model=state.model,
            endpoint=self.identity.endpoint,
            operation=CHAT if request.chat else TEXT,
            outcome=outcome.word,
            finish=outcome.finish,
            error="" if outcome.error is None else outcome.error.code,
            error_text="" if outcome.error is None else str(outcome.error),
            hop="" if outcome.error is None else outcome.error.hop,
            began_unix_us=timeline.began_unix_us,
            total_us=timeline.measured_total_us,
            ttft_us=timeline.measured_ttft_us,
            prompt_tokens=state.log.prompt_tokens,
            output_tokens=len(state.log.ids),
            cached_tokens=state.cached_tokens,
            replacements=state.replacements,
            max_tokens=request.sampling.max_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            seed=request.sampling.seed,
            phases=tuple(timeline.measured_phases()),
            asked=timeline.asked,
            attempts=timeline.attempts,
            model_choice=request.model_choice,
            coalesced_with=state.coalesced_with,
            coalesced_tokens=state.shared_tokens,
            kept=state.kept,
            flags=request.flags,
            trimmed=state.trimmed,
            expected_tokens=state.expected_tokens,
            most_expected_tokens=state.most_expected_tokens,
            counts=timeline.counts,
            reasoning_tokens=self.reasoning_tokens,
            useful_us=timeline.measured_useful_us,
        )
