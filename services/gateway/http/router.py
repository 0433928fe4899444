"""Find the page for a path, and say which pages of other origins may ask (CORS)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog
from aiohttp import web

from services.gateway.config import GatewayConfig
from services.gateway.http.callers import Callers
from services.gateway.http.completion_calls import CompletionCalls
from services.gateway.http.completions.answer import Answer
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.chat import ChatShape, read_chat
from services.gateway.http.completions.error_object import NoSuchPath, WrongMethod
from services.gateway.http.completions.text_completion import TextShape, read_text_completion
from services.gateway.http.pages import Pages
from services.gateway.http.rerank_pages import RerankPages
from services.gateway.http.responses.response_answer import ResponseAnswer
from services.gateway.http.responses.responses import read_response
from services.gateway.http.text_pages import TextPages
from services.gateway.http.vector_store_pages import VectorStorePages
from services.gateway.scope.arrival import note_arrival
from shared.errors import InternalError, Overloaded, PenstockError
from shared.telemetry import metrics

log = structlog.get_logger()

PREFLIGHT_MAX_AGE_S = 600
PLACE_RETRY_MS = 1000
HEALTH_PATHS = frozenset({"/health", "/healthz", "/ready", "/metrics"})
"""The pages that are shown when all connections of clients are taken."""

Handler = Callable[..., Awaitable[web.StreamResponse]]


class HttpRouter:
    def __init__(
        self,
        completions: CompletionCalls,
        text_pages: TextPages,
        rerank_pages: RerankPages,
        vector_stores: VectorStorePages,
        pages: Pages,
        config: GatewayConfig,
    ) -> None:
        self._completions = completions
        self._callers = Callers(config)
        self._max_connections = config.http_max_connections
        self._max_body_bytes = config.max_request_bytes
        self._routes: Sequence[tuple[str, re.Pattern[str], Handler]] = [
            ("POST", re.compile("/v1/chat/completions"), self._chat),
            ("POST", re.compile("/v1/completions"), self._complete),
            ("POST", re.compile("/v1/responses"), self._respond),
            ("POST", re.compile("/v1/embeddings"), text_pages.embeddings),
            ("POST", re.compile("/(?:(v[12])/)?rerank"), rerank_pages.rerank),
            ("POST", re.compile("/v1/vector_stores/([^/]+)/search"), vector_stores.search),
            ("POST", re.compile("(?:/v1)?/tokenize"), text_pages.tokenize),
            ("POST", re.compile("(?:/v1)?/detokenize"), text_pages.detokenize),
            ("GET", re.compile("/v1/models"), pages.models),
            ("GET", re.compile("/v1/models/(.+)"), pages.model),
            ("POST", re.compile("/v1/requests/([^/]+)/cancel"), pages.cancel),
            ("GET", re.compile("/healthz?"), pages.health),
            ("GET", re.compile("/ready"), pages.ready),
            ("GET", re.compile("/metrics"), pages.metrics),
        ]

    async def answer(self, request: web.BaseRequest, *, for_health: bool = False) -> web.StreamResponse:
        """Every answer but that to a broken head, which the library gives.

        `for_health`: the connection is beyond those that clients may have, and shows pages of health alone.
        """
        note_arrival()
        call = HttpCall(request, self._max_body_bytes, self._cors_headers(request))
        try:
            self._callers.check(request)
            self._check_place(request.path, for_health=for_health)
            response = await self._dispatch(call, request)
        except PenstockError as error:
            response = call.error(error)
        except Exception as error:  # a bug: its client hears no more than that
            log.exception("http_call_failed", path=request.path)
            response = call.error(InternalError(f"the gateway failed: {type(error).__name__}", hop="gateway"))
        await call.flush(response)
        return response

    async def _dispatch(self, call: HttpCall, request: web.BaseRequest) -> web.StreamResponse:
        fitting = [(m, h, found) for m, path, h in self._routes if (found := path.fullmatch(request.path))]
        method = "GET" if request.method == "HEAD" else request.method
        for allowed, handler, found in fitting:
            if allowed == method:
                return await handler(call, *found.groups())
        if not fitting:
            return call.error(NoSuchPath(f"there is no {request.path[:80]} here: see /v1/models"))
        allowed = ", ".join(method for method, _, _ in fitting)
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

    # ---- pages of other origins -------------------------------------------------------------------------

    def _cors_headers(self, request: web.BaseRequest) -> dict[str, str]:
        """Nothing for an origin that is none of the configuration's: its browser keeps the answer from it."""
        origin = request.headers.get("Origin", "")
        if not self._callers.may_read(origin):
            return {}
        exposed = "x-request-id, retry-after, retry-after-ms"
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
