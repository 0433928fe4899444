"""Find the page for a path, and say which pages of other origins may ask (CORS)."""

from __future__ import annotations

import json
from functools import partial

import structlog
from aiohttp import web

from services.gateway.config import GatewayConfig
from services.gateway.http.callers import Callers
from services.gateway.http.completion_calls import CompletionCalls
from services.gateway.http.completions.answer import Answer
from services.gateway.http.completions.body_room import BodyRoom
from services.gateway.http.completions.call import JSON, HttpCall
from services.gateway.http.completions.chat import ChatShape, read_chat
from services.gateway.http.completions.error_object import NoSuchPath, WrongFraming, WrongMethod
from services.gateway.http.completions.text_completion import TextShape, read_text_completion
from services.gateway.http.console.console_pages import ConsolePages
from services.gateway.http.console.site_files import SiteFiles
from services.gateway.http.framing import check_framing
from services.gateway.http.openapi import operations
from services.gateway.http.openapi.document import openapi_document
from services.gateway.http.pages import Pages
from services.gateway.http.rerank_pages import RerankPages
from services.gateway.http.responses.response_answer import ResponseAnswer
from services.gateway.http.responses.responses import read_response
from services.gateway.http.route import Route
from services.gateway.http.text_pages import TextPages
from services.gateway.http.vector_store_pages import VectorStorePages
from services.gateway.scope.arrival import note_arrival
from services.gateway.scope.call_identity import REQUEST_ID, CallIdentity, note_identity
from shared.errors import InternalError, Overloaded, PenstockError
from shared.telemetry import metrics
from shared.telemetry.trace_context import TRACEPARENT

log = structlog.get_logger()

PREFLIGHT_MAX_AGE_S = 600
PLACE_RETRY_MS = 1000
HEALTH_PATHS = frozenset({"/health", "/healthz", "/ready", "/metrics"})
"""The pages that are shown when all connections of clients are taken."""

ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
}
"""Path → its name in metrics, of the pages that take requests."""


class HttpRouter:
    def __init__(
        self,
        completions: CompletionCalls,
        text_pages: TextPages,
        rerank_pages: RerankPages,
        vector_stores: VectorStorePages,
        pages: Pages,
        console: ConsolePages,
        config: GatewayConfig,
        instance: str,
    ) -> None:
        self._site = SiteFiles(needs_keys=bool(config.api_keys))
        self._completions = completions
        self._instance = instance
        self._callers = Callers(config)
        self._max_connections = config.http_max_connections
        self._max_body_bytes = config.max_request_bytes
        self._body_room = BodyRoom(config)
        self.routes = (
            Route("POST", "/v1/chat/completions", self._chat, operations.CHAT),
            Route("POST", "/v1/completions", self._complete, operations.COMPLETE),
            Route("POST", "/v1/responses", self._respond, operations.RESPOND),
            Route("POST", "/v1/embeddings", text_pages.embeddings, operations.EMBED),
            Route("POST", "/v1/rerank", partial(rerank_pages.rerank, version="v1"), operations.RERANK),
            Route("POST", "/v2/rerank", partial(rerank_pages.rerank, version="v2"), operations.RERANK),
            Route("POST", "/rerank", partial(rerank_pages.rerank, version="v1"), operations.RERANK),
            Route("POST", "/v1/vector_stores/{corpus}/search", vector_stores.search, operations.SEARCH),
            Route("POST", "/tokenize", text_pages.tokenize, operations.TOKENIZE),
            Route("POST", "/v1/tokenize", text_pages.tokenize, operations.TOKENIZE),
            Route("POST", "/detokenize", text_pages.detokenize, operations.DETOKENIZE),
            Route("POST", "/v1/detokenize", text_pages.detokenize, operations.DETOKENIZE),
            Route("GET", "/v1/models", pages.models, operations.MODELS),
            Route("GET", "/v1/models/{model}", pages.model, operations.MODEL),
            Route("POST", "/v1/requests/{request_id}/cancel", pages.cancel, operations.CANCEL),
            Route("GET", "/health", pages.health, operations.HEALTH),
            Route("GET", "/healthz", pages.health, operations.HEALTH),
            Route("GET", "/ready", pages.ready, operations.READY),
            Route("GET", "/metrics", pages.metrics, operations.METRICS),
            Route("GET", "/version", pages.version, operations.VERSION),
            Route("GET", "/openapi.json", self._describe, operations.OPENAPI),
            Route("GET", "/docs", self._site.docs, operations.DOCS),
            Route("GET", "/", self._site.console, operations.CONSOLE),
            Route("GET", "/console/access", console.access, operations.ACCESS),
            Route("GET", "/console/pipeline", console.pipeline, operations.PIPELINE),
            Route("GET", "/console/requests", console.requests, operations.REQUESTS),
            Route("GET", "/console/files/{file}", self._site.file, operations.FILE),
        )
        described = ((route.method, route.path, route.operation) for route in self.routes)
        document = openapi_document(
            described, needs_keys=bool(config.api_keys), max_body_bytes=config.max_request_bytes
        )
        self._document = json.dumps(document).encode()

    async def answer(self, request: web.BaseRequest, *, for_health: bool = False) -> web.StreamResponse:
        """Every answer but that to a broken head, which the library gives.

        `for_health`: the connection is beyond those that clients may have, and shows pages of health alone.
        """
        note_arrival()
        headers = {REQUEST_ID: _identified(request).shown_id(self._instance), **self._cors_headers(request)}
        call = HttpCall(request, self._max_body_bytes, self._body_room, headers)
        try:
            check_framing(request)
            self._callers.check(request)
            self._check_place(request.path, for_health=for_health)
            response = await self._dispatch(call, request)
        except WrongFraming as error:
            response = call.error(error)
            response.force_close()  # what follows may be a part of it
        except PenstockError as error:
            response = call.error(error)
        except Exception as error:  # a bug: its client hears no more than that
            log.exception("http_call_failed", path=request.path)
            response = call.error(InternalError(f"the gateway failed: {type(error).__name__}", hop="gateway"))
        await call.flush(response)
        return response

    async def _dispatch(self, call: HttpCall, request: web.BaseRequest) -> web.StreamResponse:
        fitting = [
            (route, found) for route in self.routes if (found := route.pattern.fullmatch(request.path))
        ]
        method = "GET" if request.method == "HEAD" else request.method
        for route, found in fitting:
            if route.method == method:
                return await route.handler(call, *found.groups())
        if not fitting:
            return call.error(NoSuchPath(f"there is no {request.path[:80]} here: see /docs"))
        allowed = ", ".join(route.method for route, _ in fitting)
        if method == "OPTIONS" and self._callers.allows_pages():
            return call.page(b"", "text/plain", 204, self._preflight_headers(request, allowed))
        return call.error(WrongMethod(f"{request.path[:80]} takes {allowed} alone"), {"Allow": allowed})

    def _check_place(self, path: str, *, for_health: bool) -> None:
        """Raises Overloaded for what is no page of health, on a connection beyond those of clients."""
        if not for_health or path in HEALTH_PATHS:
            return
        metrics.SHED.labels(hop="gateway", reason="connections").inc()
        raise Overloaded(
            f"all {self._max_connections} connections of this gateway are in use: retry later, or elsewhere",
            hop="gateway",
            retry_after_ms=PLACE_RETRY_MS,
            reason="connections",
        )

    async def _chat(self, call: HttpCall) -> web.StreamResponse:
        return await self._completions.answer(call, read_chat, partial(Answer, ChatShape()))

    async def _complete(self, call: HttpCall) -> web.StreamResponse:
        return await self._completions.answer(call, read_text_completion, partial(Answer, TextShape()))

    async def _respond(self, call: HttpCall) -> web.StreamResponse:
        return await self._completions.answer(call, read_response, ResponseAnswer)

    async def _describe(self, call: HttpCall) -> web.Response:
        """Show the document of this interface, which says nothing of the fleet."""
        return call.page(self._document, JSON)

    # ---- pages of other origins -------------------------------------------------------------------------

    def _cors_headers(self, request: web.BaseRequest) -> dict[str, str]:
        """Nothing for an origin that is none of the configuration's: its browser keeps the answer from it."""
        origin = request.headers.get("Origin", "")
        if not self._callers.may_read(origin):
            return {}
        exposed = "x-request-id, x-penstock-request-id, retry-after, retry-after-ms"
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": exposed,
            "Vary": "Origin",
        }

    def _preflight_headers(self, request: web.BaseRequest, allowed: str) -> dict[str, str]:
        if not self._cors_headers(request):
            return {}
        return {
            "Access-Control-Allow-Methods": allowed,
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
            "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
        }


def _identified(request: web.BaseRequest) -> CallIdentity:
    """Note how the client names the call, for whatever is made of it."""
    headers = request.headers
    endpoint = ENDPOINTS.get(request.path, "")
    return note_identity(endpoint, headers.getall(REQUEST_ID, []), headers.getall(TRACEPARENT, []))
