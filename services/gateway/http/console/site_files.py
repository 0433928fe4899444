"""Serve the pages for people, from files of the package, with a policy that lets in nothing foreign."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from aiohttp import web

from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.error_object import NoSuchPath
from services.gateway.http.console.page_bundle import bundle_page

CONSOLE, DOCS, ICON = "console.html", "docs.html", "penstock.svg"
KINDS = frozenset({"html", "css", "js", "svg"})
HTML, SVG = "text/html; charset=utf-8", "image/svg+xml"
KEYS_NEEDED, KEYS_NONE = 'data-keys="needed"', 'data-keys="none"'
POLICY_PARTS = (
    "default-src 'none'",
    *("img-src 'self'", "connect-src 'self'"),
    *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    "require-trusted-types-for 'script'",
)
"""Nothing of another origin, nowhere to send a form; no text becomes markup, a script or a style but those
that a page names by their digests."""
SITE_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": "; ".join(POLICY_PARTS),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class SitePage:
    """One document as it is written: plain, compressed, and the headers that go with both."""

    plain: bytes
    compressed: bytes
    kind: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, plain: bytes, kind: str, headers: Mapping[str, str] = SITE_HEADERS) -> SitePage:
        tag = f'W/"{hashlib.sha256(plain).hexdigest()[:32]}"'
        all_headers = {**headers, "ETag": tag, "Vary": "Accept-Encoding"}
        return cls(plain, gzip.compress(plain, 9, mtime=0), kind, all_headers)

    def answer(self, call: HttpCall) -> web.Response:
        """Answer with the document, compressed for who takes that; 304 for who has it already."""
        if call.has_current(self.headers["ETag"]):
            return call.page(b"", self.kind, 304, self.headers)
        if call.takes_gzip:
            return call.page(self.compressed, self.kind, headers={**self.headers, "Content-Encoding": "gzip"})
        return call.page(self.plain, self.kind, headers=self.headers)


class SiteFiles:
    """They say nothing of the fleet, so they need no key: what they show is asked for with one."""

    def __init__(self, *, needs_keys: bool) -> None:
        self._pages = site_pages(needs_keys=needs_keys)

    async def console(self, call: HttpCall) -> web.Response:
        return self._pages[CONSOLE].answer(call)

    async def docs(self, call: HttpCall) -> web.Response:
        return self._pages[DOCS].answer(call)

    async def file(self, call: HttpCall, name: str) -> web.Response:
        """Answer with a file that the pages name; an error for a name that is none of theirs."""
        if name != ICON:
            return call.error(NoSuchPath(f"the console has no file {name[:80]}"))
        return self._pages[ICON].answer(call)


@cache
def site_pages(*, needs_keys: bool) -> Mapping[str, SitePage]:
    """Return what is served, by name. The console says whether a key is needed, so that it need not ask."""
    files = dict(site_files())
    if not needs_keys:
        files[CONSOLE] = files[CONSOLE].replace(KEYS_NEEDED, KEYS_NONE)
    pages = {name: _page(files[name], files) for name in (CONSOLE, DOCS)}
    return MappingProxyType({**pages, ICON: SitePage.of(files[ICON].encode(), SVG)})


@cache
def site_files() -> Mapping[str, str]:
    """Return all files that the pages are made from, by name, as the package has them."""
    folder = resources.files(__package__) / "site"
    return MappingProxyType(
        {file.name: file.read_text() for file in folder.iterdir() if file.name.rpartition(".")[2] in KINDS}
    )


def _page(html: str, files: Mapping[str, str]) -> SitePage:
    bundle = bundle_page(html, files)
    digests = (f"script-src {bundle.script_digest}", f"style-src {bundle.style_digest}")
    policy = "; ".join((*POLICY_PARTS, *digests))
    return SitePage.of(bundle.html, HTML, {**SITE_HEADERS, "Content-Security-Policy": policy})
