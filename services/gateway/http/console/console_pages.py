"""Answer what the console asks: whose the key is, and for operators the pipeline and its requests.

Whoever watches asks again every second, so each answer is made once for all who ask within `MADE_FOR_S`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from services.gateway.context import SessionContext
from services.gateway.http.completions.call import JSON, HttpCall
from services.gateway.http.console.fleet_picture import fleet_picture
from services.gateway.http.console.latency_picture import latency_picture
from services.gateway.http.console.request_list import MAX_SHOWN_LIVE, request_list
from services.gateway.http.console.site_files import SITE_HEADERS
from services.gateway.session.ingress import Ingress
from services.gateway.session.session_registry import SessionRegistry
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import PenstockError

MADE_FOR_S = 0.25
"""The time for which an answer is given again: 1000 who watch cost four of them a second."""


class ConsolePages:
    def __init__(
        self,
        ingress: Ingress,
        context: SessionContext,
        registry: SessionRegistry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._ingress = ingress
        self._needs_keys = bool(context.config.api_keys)
        self._pipeline = _KeptAnswer(
            lambda: fleet_picture(context) | {"latency": latency_picture(context.latencies)}, clock
        )
        self._requests = _KeptAnswer(
            lambda: request_list(
                registry.live_count, registry.live_sessions(MAX_SHOWN_LIVE), context.ended_requests
            ),
            clock,
        )

    async def access(self, call: HttpCall) -> web.Response:
        """Answer whether there are keys, whose the caller's is, and whether it is an operator's."""
        try:
            key = self._ingress.identify(call.authorization)
        except PenstockError as error:
            return call.error(error)
        body = {"keys": self._needs_keys, "tenant": key.tenant, "operator": key.operator}
        return call.json(body, headers=SITE_HEADERS)

    async def pipeline(self, call: HttpCall) -> web.Response:
        return self._for_operators(call, self._pipeline)

    async def requests(self, call: HttpCall) -> web.Response:
        return self._for_operators(call, self._requests)

    def _for_operators(self, call: HttpCall, answer: _KeptAnswer) -> web.Response:
        """They tell of all tenants, so that where there are keys they need an operator's."""
        try:
            self._ingress.identify_operator(call.authorization)
        except PenstockError as error:
            return call.error(error)
        return call.page(answer.get(), JSON, headers=SITE_HEADERS)


class _KeptAnswer:
    """An answer that is made anew when the last one is older than `MADE_FOR_S`."""

    def __init__(self, make: Callable[[], dict[str, Any]], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._made: tuple[float, bytes] | None = None

    def get(self) -> bytes:
        now_s = self._clock.monotonic_s()
        if self._made is None or now_s - self._made[0] >= MADE_FOR_S:
            self._made = now_s, json.dumps(self._make(), separators=(",", ":")).encode()
        return self._made[1]
