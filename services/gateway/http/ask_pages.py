"""Pages that ask the fleet for what is no request: a JSON object comes, and JSON goes out at once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from aiohttp import web

from services.gateway.config import GatewayConfig
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.http.fields.penstock_options import FIELD, read_penstock_options
from services.gateway.request.request import MAX_DEADLINE_MS
from services.gateway.scope.arrival import arrived_s
from services.gateway.session.ingress import Ingress
from shared.deadline import Deadline
from shared.errors import Overloaded, PenstockError
from shared.files.api_key_file import ApiKey
from shared.telemetry import metrics

Find = Callable[[ApiKey, JsonFields, Deadline], Coroutine[Any, Any, Any]]
"""A function that finds what the body asks for, as JSON."""


class AskPages:
    def __init__(self, ingress: Ingress, config: GatewayConfig) -> None:
        self._ingress = ingress
        self._config = config

    async def _answer(self, call: HttpCall, find: Find, names: FieldNames = ()) -> web.Response:
        """`names`: what of the contract has another name on this page."""
        key: ApiKey | None = None
        try:
            key = self._ingress.identify(call.authorization)
            self._ingress.check_rate(key)
            body = await _body(call, key)
            return call.json(await find(key, body, self._deadline(body, call.headers)))
        except PenstockError as error:
            self._ingress.count_refused(key, error)
            return call.error(error, names=names)

    def _deadline(self, body: JsonFields, headers: Mapping[str, str]) -> Deadline:
        deadline_ms = read_penstock_options(body, headers).fields.get("deadline_ms")
        if deadline_ms is None:
            return Deadline(arrived_s() + self._config.default_text_deadline_s)
        if not 1 <= deadline_ms <= MAX_DEADLINE_MS:
            problem = f"is {deadline_ms}: send milliseconds from 1 to {MAX_DEADLINE_MS}"
            raise WrongField(f"{FIELD}.deadline_ms", problem)
        return Deadline(arrived_s() + deadline_ms / 1000)


async def _body(call: HttpCall, key: ApiKey) -> JsonFields:
    """Raises what `read_json` raises, and counts what there is no room for."""
    try:
        return await call.read_json(key.tenant)
    except Overloaded as error:
        metrics.SHED.labels(hop="gateway", reason=error.reason).inc()
        raise
