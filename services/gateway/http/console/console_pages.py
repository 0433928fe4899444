"""Answer what the console asks: whose the key is, and for operators the pipeline and its requests.

Whoever watches asks again every second, so each answer is made once for all who ask at about the same time.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from services.gateway.context import SessionContext
from services.gateway.http.completions.call import JSON, HttpCall
from services.gateway.http.console.fleet_picture import fleet_picture
from services.gateway.http.console.gateway_reports import gateway_reports
from services.gateway.http.console.kept_value import KeptValue
from services.gateway.http.console.latency_picture import latency_picture
from services.gateway.http.console.request_list import request_list
from services.gateway.http.console.site_files import SITE_HEADERS
from services.gateway.session.ingress import Ingress
from services.gateway.session.session_registry import SessionRegistry
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import PenstockError


class ConsolePages:
    def __init__(
        self,
        ingress: Ingress,
        context: SessionContext,
        registry: SessionRegistry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._ingress = ingress
        self._context = context
        self._needs_keys = bool(context.config.api_keys)
        self._reports = KeptValue(lambda: gateway_reports(context, registry.console_report), clock)
        self._pipeline = KeptValue(self._make_pipeline, clock)
        self._requests = KeptValue(self._make_requests, clock)

    async def access(self, call: HttpCall) -> web.Response:
        """Answer whether there are keys, whose the caller's is, and whether it is an operator's."""
        try:
            key = self._ingress.identify(call.authorization)
        except PenstockError as error:
            return call.error(error)
        body = {"keys": self._needs_keys, "tenant": key.tenant, "operator": key.operator}
        return call.json(body, headers=SITE_HEADERS)

    async def pipeline(self, call: HttpCall) -> web.Response:
        return await self._for_operators(call, self._pipeline)

    async def requests(self, call: HttpCall) -> web.Response:
        return await self._for_operators(call, self._requests)

    async def _for_operators(self, call: HttpCall, answer: KeptValue[bytes]) -> web.Response:
        """They tell of all tenants, so that where there are keys they need an operator's."""
        try:
            self._ingress.identify_operator(call.authorization)
        except PenstockError as error:
            return call.error(error)
        return call.page(await answer.get(), JSON, headers=SITE_HEADERS)

    async def _make_pipeline(self) -> bytes:
        found = await self._reports.get()
        return _as_json(fleet_picture(self._context) | {"latency": latency_picture(found.reports)})

    async def _make_requests(self) -> bytes:
        found = await self._reports.get()
        return _as_json(request_list(found.reports) | {"silent": found.silent})


def _as_json(shown: dict[str, Any]) -> bytes:
    return json.dumps(shown, separators=(",", ":")).encode()
