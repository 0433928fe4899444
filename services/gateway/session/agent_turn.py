"""The part that one request has in the session of its agent. Without hints there is none, and nothing is
done."""

from __future__ import annotations

from services.gateway.prompt.next_turn import answer_turn
from services.gateway.prompt.next_turn_warmer import NextTurnWarmer
from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.request_scope import RequestScope
from shared.telemetry import metrics


class AgentTurn:
    def __init__(self, scope: RequestScope) -> None:
        self._scope = scope
        self._context = scope.context
        self._tenant = scope.request.tenant
        self._hints = scope.request.agent
        self._prepared: PreparedPrompt | None = None
        if self._hints is not None:
            known = self._context.agent_sessions.begin_call(self._tenant, self._hints)
            metrics.AGENT_CALLS.labels(turn="next" if known else "first").inc()

    def record_prompt(self, prepared: PreparedPrompt) -> None:
        """Its prompt is known, and by which model it is answered."""
        if self._hints is not None:
            self._prepared = prepared
            self._context.agent_sessions.record_prompt(self._tenant, self._hints, len(prepared.token_ids))

    def end(self) -> None:
        """Its client has the whole answer: what the next call begins with is computed while its tool runs."""
        hints, prepared, state = self._hints, self._prepared, self._scope.state
        text = state.log.kept_text
        if hints is None or prepared is None or text is None:
            return
        answer = answer_turn(text, prepared.answer_format, self._scope.response.call_ids)
        tools = [call.name for call in answer.tool_calls]
        sessions = self._context.agent_sessions
        sessions.end_call(self._tenant, hints, tools, state.log.next_position)
        if self._scope.config.warm_next_turn and hints.warms_next(has_called=bool(tools)):
            warmer = NextTurnWarmer(self._scope, prepared.model)
            work = warmer.warm(answer, state.log.ids, sessions.pause_s(self._tenant, hints, tools))
            self._context.tasks.start(f"next-turn-{self._scope.request_id}", work)
