"""The HTTP server: in the gateway's process and loop, beside the gRPC one. Connections are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.gateway.asks.passage_asks import PassageAsks
from services.gateway.asks.text_asks import TextAsks
from services.gateway.asks.token_bytes_cache import TokenBytesCache
from services.gateway.config import GatewayConfig
from services.gateway.edge_certificate import EdgeCertificate, is_loopback
from services.gateway.http.completion_calls import CompletionCalls
from services.gateway.http.console.console_pages import ConsolePages
from services.gateway.http.listener import Listener, Place
from services.gateway.http.pages import Pages
from services.gateway.http.rerank_pages import RerankPages
from services.gateway.http.router import HttpRouter
from services.gateway.http.text_pages import TextPages
from services.gateway.http.vector_store_pages import VectorStorePages
from services.gateway.session.client_cancels import ClientCancels
from services.gateway.session.ingress import Ingress
from shared.errors import Unavailable

log = structlog.get_logger()

MAX_LINE_BYTES = 8190
MAX_HEADER_BYTES = 8190
"""The largest header."""
MAX_HEADERS = 64
KEEPALIVE_S = 75.0
"""The longest time until the head of the next request: more than most proxies keep a connection, so that they
close it and not we."""
LINGER_S = 2.0
"""The longest time for the rest of a body that nobody wants any more, so that its client hears why."""
STOP_GRACE_S = 0.5
FIRST_WORDS_S = 3.0
"""The longest wait, as the port is left, for the first request of who has connected: its client may be on a
busy machine."""
FIRST_WORDS_POLL_S = 0.02
NEXT_WORDS_S = 1.0
"""The longest wait, as the port is left, for the next request on a connection that has been answered: it may
be on its way, and where it comes its answer says that the connection ends."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is the gateway's own: what strangers send would fill the log."""
    strangers = (HttpProcessingError, web.RequestPayloadError)
    return not (record.exc_info and isinstance(record.exc_info[1], strangers))


_library_log = logging.getLogger("penstock.http")
_library_log.addFilter(_is_ours)


class Respond(Protocol):
    """Answers a request; `for_health`: on a connection where only pages of health are answered."""

    def __call__(self, request: web.BaseRequest, *, for_health: bool) -> Awaitable[web.StreamResponse]: ...


class HttpServer:
    """`address` is where it listens; it stays "" where `http_host` is empty, which turns the edge off."""

    def __init__(self, respond: Respond, config: GatewayConfig) -> None:
        self._respond = respond
        self._config = config
        self._certificate = EdgeCertificate.of(config)
        self._connections: _Connections | None = None
        self.address = ""

    @classmethod
    def of(
        cls,
        ingress: Ingress,
        client_cancels: ClientCancels,
        text_asks: TextAsks,
        passage_asks: PassageAsks,
        token_bytes_cache: TokenBytesCache,
        can_serve: Callable[[], bool],
        console: ConsolePages,
        config: GatewayConfig,
    ) -> Self:
        pages = Pages(ingress, client_cancels, text_asks, can_serve)
        completions = CompletionCalls(ingress, token_bytes_cache.bytes_of, config)
        text_pages = TextPages(ingress, text_asks, config)
        rerank_pages = RerankPages(ingress, passage_asks, config)
        vector_stores = VectorStorePages(ingress, passage_asks, config)
        router = HttpRouter(
            completions,
            text_pages,
            rerank_pages,
            vector_stores,
            pages,
            console,
            config,
            ingress.instance,
        )
        return cls(router.answer, config)

    async def start(self) -> None:
        """Listen; raises Unavailable when the address cannot be had."""
        host, port = self._config.http_host, self._config.http_port
        if not host:
            return
        tls = None if self._certificate is None else self._certificate.ssl_context()
        connections = _Connections(self._respond, self._config, tls)
        try:
            self.address = await connections.listener.listen(host, port, shared=self._config.share_ports)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: free it or set another http_port") from error
        self._connections = connections
        log.info("http_listening", http=self.address, tls=tls is not None)
        if self._config.api_keys and tls is None and not is_loopback(host):
            log.warning("api_keys_in_clear", help="keys can be read on their way; set tls_cert and tls_key")

    async def leave_port(self) -> None:
        """Listen no more; a connection is closed when it has been told so by an answer, or asks nothing.

        Each is given a moment for its next request: its client may be about to send it.
        """
        if self._connections is not None:
            self._connections.listener.stop()
            await self._connections.leave()

    async def hear_last(self) -> None:
        """Wait a moment for what clients ask next that were answered as the port was left; bounded."""
        if self._connections is not None:
            await self._connections.hear_last()

    async def stop(self) -> None:
        """Close every connection; bounded."""
        if self._connections is not None:
            await self._connections.listener.close()
            await self._connections.hear_last()
            self._connections.pre_shutdown()
            await self._connections.shutdown(STOP_GRACE_S)


class _Connections(web.Server):
    """The open connections, each in its place."""

    def __init__(self, respond: Respond, config: GatewayConfig, tls: ssl.SSLContext | None) -> None:
        super().__init__(
            self._on_request,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            logger=_library_log,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
        )
        self._to = respond
        self._max_body_bytes = config.max_request_bytes
        self._places: dict[Any, Place] = {}
        self._is_leaving = False
        self.listener = Listener(self._protocol, self._forget, config.http_max_connections, tls)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        place = self._places.get(handler)
        if place is not None:
            self.listener.release(place)
        super().connection_lost(handler, exc)

    async def leave(self) -> None:
        """Answer each connection once more, then close it; bounded."""
        self._is_leaving = True
        await self._until(lambda: not self.listener.waiting, NEXT_WORDS_S)
        for place in self.listener.waiting:
            if not place.silent:
                self._close_waiting(place)
        await self._until(
            lambda: not any(place.silent for place in self._places.values()), FIRST_WORDS_S - NEXT_WORDS_S
        )

    async def hear_last(self) -> None:
        """Wait a moment for the next request of each client that was answered last, as the port was left."""
        if self._is_leaving:
            await self._until(lambda: not self.listener.waiting, NEXT_WORDS_S)

    async def _until(self, is_so: Callable[[], bool], most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while not is_so():  # noqa: ASYNC110 - for a moment
                    await asyncio.sleep(FIRST_WORDS_POLL_S)

    def _forget(self, place: Place) -> None:
        self._places.pop(place.protocol, None)

    def _protocol(self, place: Place) -> asyncio.Protocol:
        handler = self()
        self._places[handler] = place
        return handler

    async def _on_request(self, request: web.BaseRequest) -> web.StreamResponse:
        place = self._places.get(request.protocol)
        if place is None:  # lost since its head came: nobody hears the answer
            return await self._to(request, for_health=False)
        self.listener.begin_request(place)
        try:
            response = await self._to(request, for_health=place.for_health)
        finally:
            self.listener.end_request(place)
        if self._is_leaving and response.keep_alive:
            # Its head was sent before, and its client may send a request before it hears of an end.
            asyncio.get_running_loop().call_later(NEXT_WORDS_S, self._close_waiting, place)
        return response

    def _close_waiting(self, place: Place) -> None:
        """Close a connection, unless it has a request: then its answer says so."""
        if place in self.listener.waiting:
            place.close()

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
    ) -> web.BaseRequest:
        """Make a request object of a head, with a limit on the bytes of its body.

        Its answer ends the connection where the port is left, and where that is for pages of health alone.
        """
        place = self._places.get(protocol)
        if self._is_leaving or (place is not None and place.for_health):
            message = message._replace(should_close=True)
        loop = asyncio.get_running_loop()
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=self._max_body_bytes
        )
