"""Cancelling by id: the request may be another gateway's, and only its own tenant may end it."""

from __future__ import annotations

import asyncio

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
        deadline = Deadline.after(FORWARD_TIMEOUT_S)
        known = self._context.fleet.get("gateway", gateway) is not None
        if known and await self._cancel_at(gateway, request_id, tenant, deadline):
            return True  # else another one may have taken its stream over
        return self._registry.cancel_session(request_id, tenant) or await self._cancel_anywhere(
            request_id, tenant, deadline
        )

    async def _cancel_anywhere(self, request_id: str, tenant: str, deadline: Deadline) -> bool:
        """Ask every other gateway: the id is the client's own, and does not say who has the request."""
        gateways = [view.heartbeat.instance for view in self._context.fleet.instances("gateway")]
        others = [gateway for gateway in gateways if gateway != self._context.instance]
        answers = await asyncio.gather(
            *(self._cancel_at(gateway, request_id, tenant, deadline) for gateway in others),
            return_exceptions=True,
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed and True not in answers:
            raise failed[0]
        return True in answers

    async def _cancel_at(self, gateway: str, request_id: str, tenant: str, deadline: Deadline) -> bool:
        envelope = self._context.bus.envelope(request_id, deadline=deadline)
        answer = await self._context.bus.ask(
            inbox("gateway", gateway), ClientCancel(tenant), envelope, deadline
        )
        return isinstance(answer, CancelAck) and answer.held
