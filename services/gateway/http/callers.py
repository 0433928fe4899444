"""Refuse what the web pages of strangers send through the browser of somebody who may ask.

A page of any origin can make a browser call a server of its own machine. The browser says the origin then,
which has to be one of the configuration's. Where the page's own name was made to lead here (DNS rebinding),
the name of the host that was called gives it away: an edge that only this machine reaches is called by names
that it knows.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from aiohttp import web

from services.gateway.config import GatewayConfig
from services.gateway.edge_certificate import is_loopback
from services.gateway.http.completions.error_object import ForeignCaller

ANY = "*"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MAX_SHOWN_CHARS = 80
_PORT = re.compile(r":\d*$")


class Callers:
    """Knows who may call this edge: by the names that the host has here, and the origins of web pages."""

    def __init__(self, config: GatewayConfig) -> None:
        self._origins = frozenset(config.http_cors_origins)
        names = {name.lower() for name in config.http_hosts}
        if names or is_loopback(config.http_host):
            names |= {*LOOPBACK_NAMES, config.http_host.lower()}
        self._names = names
        """The names by which the edge may be called; empty: by any."""

    def allows_pages(self) -> bool:
        """Return whether pages of any other origin may ask at all."""
        return bool(self._origins)

    def may_read(self, origin: str) -> bool:
        """Return whether a page of this origin may have the answer."""
        return bool(origin) and bool(self._origins & {origin, ANY})

    def check(self, request: web.BaseRequest) -> None:
        """Raises ForeignCaller with what to configure where the call is meant."""
        host = request.headers.get("Host", "").lower()
        name = host_name(host)
        if host and self._names and ANY not in self._names and name not in self._names:
            raise ForeignCaller(
                f"the host is called {host[:MAX_SHOWN_CHARS]!r}, which is none of its names: call it "
                "localhost, or add the name to http_hosts under [gateway]"
            )
        origin = request.headers.get("Origin", "")
        if origin and not self.may_read(origin) and _host_of(origin) != host:
            raise ForeignCaller(
                f"pages of the origin {origin[:MAX_SHOWN_CHARS]!r} may not ask here: add it to "
                "http_cors_origins under [gateway] if they are to"
            )


def host_name(host: str) -> str:
    """Return the name in a `Host` header, without its port and the brackets of an IPv6 address."""
    return _PORT.sub("", host).strip("[]") if not host.endswith("]") else host.strip("[]")


def _host_of(origin: str) -> str:
    """Return HOST:PORT of an origin as a `Host` header has it; "" for one that is no address, as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
