"""Refuse requests whose end a proxy in front of the edge might find in another place than the edge does."""

from __future__ import annotations

from aiohttp import HttpVersion10, HttpVersion11, web

from services.gateway.http.completions.error_object import WrongFraming

MAX_SHOWN_CODING_CHARS = 80


def check_framing(request: web.BaseRequest) -> None:
    """Raises WrongFraming. What has both a length and a coding, or two lengths, the library has refused."""
    if request.version < HttpVersion10:
        raise WrongFraming("the request line names no version of HTTP: say HTTP/1.1")
    said = request.headers.getall("Transfer-Encoding", [])
    if not said:
        return
    if [coding.strip().lower() for coding in said] != ["chunked"]:
        raise WrongFraming(
            f"the transfer encoding is {', '.join(said)[:MAX_SHOWN_CODING_CHARS]!r}: send the body with its "
            "Content-Length, or as Transfer-Encoding: chunked"
        )
    if request.version < HttpVersion11:
        raise WrongFraming("HTTP/1.0 knows no Transfer-Encoding: send the body with its Content-Length")
