"""Pages that are no requests: models, version, health and readiness, metrics, cancelling by id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import metadata
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.gateway.asks.text_asks import TextAsks
from services.gateway.fleet.served_models import ServedModel
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.chat import ChatShape
from services.gateway.http.completions.error_object import NoSuchRequest
from services.gateway.http.completions.text_completion import TextShape
from services.gateway.http.responses.response_object import ID_PREFIX as RESPONSE_ID_PREFIX
from services.gateway.request.request import served_model
from services.gateway.session.client_cancels import ClientCancels
from services.gateway.session.ingress import Ingress
from shared.bus.wire_schema import schema_digest
from shared.errors import PenstockError, Unavailable
from shared.telemetry.metrics import RoleMetrics

TEXT = "text/plain; charset=utf-8"
ID_PREFIXES = (ChatShape.id_prefix, TextShape.id_prefix, RESPONSE_ID_PREFIX)
OWNER = "penstock"
PACKAGE_VERSION = metadata.version("penstock")


class Pages:
    """`can_serve`: whether requests are taken and all that they need is there."""

    def __init__(
        self,
        ingress: Ingress,
        client_cancels: ClientCancels,
        text_asks: TextAsks,
        can_serve: Callable[[], bool],
    ) -> None:
        self._ingress = ingress
        self._client_cancels = client_cancels
        self._text_asks = text_asks
        self._can_serve = can_serve
        self._metrics = RoleMetrics("gateway")

    async def health(self, call: HttpCall) -> web.Response:
        """Answer 200: that the gateway answers is the answer."""
        return call.page(b"ok\n", TEXT)

    async def ready(self, call: HttpCall) -> web.Response:
        if self._can_serve():
            return call.page(b"ready\n", TEXT)
        return call.page(b"a role without a ready instance, or draining\n", TEXT, 503)

    async def metrics(self, call: HttpCall) -> web.Response:
        """They name tenants, so that where there are keys they need an operator's."""
        try:
            self._ingress.identify_operator(call.authorization)
        except PenstockError as error:
            return call.error(error)
        return call.page(await asyncio.to_thread(generate_latest, self._metrics), CONTENT_TYPE_LATEST)

    async def version(self, call: HttpCall) -> web.Response:
        """Answer with what this gateway is and what it serves to the key."""
        try:
            key = self._ingress.identify(call.authorization)
        except PenstockError as error:
            return call.error(error)
        served = [model.name for model in self._text_asks.models(key)]
        body = {"version": PACKAGE_VERSION, "protocol": f"{schema_digest():08x}", "models": served}
        return call.json(body)

    async def models(self, call: HttpCall) -> web.Response:
        """List the models, generating ones first: many programs take the first of the list."""
        try:
            key = self._ingress.identify(call.authorization)
        except PenstockError as error:
            return call.error(error)
        models = sorted(self._text_asks.models(key), key=lambda model: model.embeds)
        return call.json({"object": "list", "data": [_model(model) for model in models]})

    async def model(self, call: HttpCall, name: str) -> web.Response:
        try:
            key = self._ingress.identify(call.authorization)
            served = {model.name: model for model in self._text_asks.models(key)}
            if not served:
                raise Unavailable("no model is served now: retry later", hop="decode")
            return call.json(_model(served[served_model(name, set(served))]))
        except PenstockError as error:
            return call.error(error)

    async def cancel(self, call: HttpCall, request_id: str) -> web.Response:
        """Cancel the request with the id of an answer or of the header `x-request-id`."""
        for prefix in ID_PREFIXES:
            request_id = request_id.removeprefix(prefix)
        try:
            key = self._ingress.identify(call.authorization)
            if not await self._client_cancels.cancel_request(request_id, tenant=key.tenant):
                raise NoSuchRequest(f"there is no request {request_id[:80]}, or none any more")
        except PenstockError as error:
            return call.error(error)
        return call.json({"id": request_id, "object": "request.cancelled", "cancelled": True})


def _model(model: ServedModel) -> dict[str, Any]:
    """Others have `max_model_len`, `root` and `parent` too; `embeds` and `penstock` are ours."""
    described = {"id": model.name, "object": "model", "created": 0, "owned_by": OWNER}
    described |= {"root": model.base or model.name, "parent": model.base or None}
    described |= {"max_model_len": model.context_tokens or None, "embeds": model.embeds}
    ours: dict[str, Any] = {"capabilities": list(model.capabilities)}
    if not model.embeds:
        ours["default"] = model.is_default
    if model.targets:
        ours["targets"] = list(model.targets)
    if model.default_sampling:
        held = {each.name: {"value": each.shown, "source": each.source} for each in model.default_sampling}
        ours["default_sampling"] = held
    return described | {"penstock": ours}
