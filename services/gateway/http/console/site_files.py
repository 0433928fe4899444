"""Serve the pages for people, from files of the package, with a policy that lets in nothing foreign."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

from aiohttp import web

from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.error_object import NoSuchPath

CONSOLE, DOCS = "console.html", "docs.html"
CONTENT_TYPES = MappingProxyType(
    {
        "html": "text/html; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "svg": "image/svg+xml",
    }
)
POLICY = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    )
)
"""Nothing inline, nothing of another origin, nowhere to send a form; no text becomes markup."""
SITE_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)


class SiteFiles:
    """They say nothing of the fleet, so they need no key: what they show is asked for with one."""

    async def console(self, call: HttpCall) -> web.Response:
        return _page(call, CONSOLE)

    async def docs(self, call: HttpCall) -> web.Response:
        return _page(call, DOCS)

    async def file(self, call: HttpCall, name: str) -> web.Response:
        """Answer with a file of the pages; an error for a name that is none of theirs."""
        if name not in site_files():
            return call.error(NoSuchPath(f"the console has no file {name[:80]}"))
        return _page(call, name)


@cache
def site_files() -> Mapping[str, bytes]:
    """Return all files by name, as the package has them."""
    folder = resources.files(__package__) / "site"
    return MappingProxyType(
        {
            file.name: file.read_bytes()
            for file in folder.iterdir()
            if file.name.rpartition(".")[2] in CONTENT_TYPES
        }
    )


def _page(call: HttpCall, name: str) -> web.Response:
    kind = CONTENT_TYPES[name.rpartition(".")[2]]
    return call.page(site_files()[name], kind, headers=SITE_HEADERS)
