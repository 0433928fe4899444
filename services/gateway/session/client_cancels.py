"""Cancelling by id: the request may be another gateway's, and only its own tenant may end it."""

from __future__ import annotations

from services.gateway.context import SessionContext
from services.gateway.session.session_registry import SessionRegistry
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import InvalidRequest
from shared.messages import CancelAck, ClientCancel

FORWARD_TIMEOUT_S = 1.0
MAX_REQUEST_ID_CHARS = 256
"""The longest id of a request that is to be cancelled."""


class ClientCancels:
    def __init__(self, context: SessionContext, registry: SessionRegistry) -> None:
        self._context = context
        self._registry = registry

    async def cancel_request(self, request_id: str, tenant: str) -> bool:
        """Whether there was such a request; raises Unavailable when its gateway does not answer."""
        if not 0 < len(request_id) <= MAX_REQUEST_ID_CHARS:
            raise InvalidRequest("request_id: send the id that PromptInfo told", hop="gateway")
        gateway, _, _ = request_id.rpartition(".")
        if gateway == self._context.instance or self._context.fleet.get("gateway", gateway) is None:
            return self._registry.cancel_session(request_id, tenant)
        deadline = Deadline.after(FORWARD_TIMEOUT_S)
        envelope = self._context.bus.envelope(request_id, deadline=deadline)
        answer = await self._context.bus.ask(
            inbox("gateway", gateway), ClientCancel(tenant), envelope, deadline
        )
        return isinstance(answer, CancelAck) and answer.held
