"""Read HTTP by the letter: the answers on a connection, and heads that two servers may read in two ways."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.target import Fault

END = b"\r\n\r\n"
STATUS_LINE = re.compile(rb"HTTP/(?:1\.[01]|0\.9(?= 400)) ([1-5]\d\d)(?: [\x20-\x7e]*)?")
NO_BODY = (204, 304)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer on a connection."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    is_last: bool
    """It says that the connection ends with it."""


def read_answers(data: bytes, *, heads: bool) -> list[Answer]:
    """Return the answers, in order. `heads`: the client asked for heads alone, somewhere, so that lengths say
    nothing. Raises Fault for bytes that are no answer."""
    answers = []
    while data:
        head, end, rest = data.partition(END)
        if not end:
            raise Fault(f"an answer without an end of its head: {data[:200]!r}")
        first, *lines = head.split(b"\r\n")
        status = STATUS_LINE.fullmatch(first)
        if status is None:
            raise Fault(f"no status line: {first[:200]!r}")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not _TOKEN.fullmatch(name):
                raise Fault(f"an answer with the header {line[:200]!r}")
            headers[name.lower()] = value.strip()
        code = int(status[1])
        body, data = _body(code, headers, rest, heads=heads)
        stays = headers.get(b"connection", b"close" if first[5:8] != b"1.1" else b"keep-alive").lower()
        answers.append(Answer(code, headers, body, is_last=stays != b"keep-alive"))
    return answers


def _body(code: int, headers: dict[bytes, bytes], rest: bytes, *, heads: bool) -> tuple[bytes, bytes]:
    if code < 200 or code in NO_BODY or (heads and (not rest or rest.startswith(b"HTTP/1."))):
        return b"", rest
    if headers.get(b"transfer-encoding") == b"chunked":
        return _chunks(rest)
    if b"content-length" not in headers:
        return rest, b""
    length = int(headers[b"content-length"])
    if len(rest) < length:
        raise Fault(f"{len(rest)} bytes came of an answer of {length}")
    return rest[:length], rest[length:]


def _chunks(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size or b"0", 16)
        body, rest = body + rest[:count], rest[count + 2 :]
        if count == 0:
            return body, rest


def has_two_readings(data: bytes) -> bool:
    """Return whether a proxy might find another end of the first request than a server behind it does."""
    head, end, _ = data.partition(END)
    if not end:
        return False
    lines = head.split(b"\r\n")[1:]
    if any(byte in b"".join(lines) for byte in b"\r\n\0"):
        return True
    lengths, codings = [], []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            return True  # folded, a space before the colon, or no header at all
        if name.lower() == b"content-length":
            lengths.append(value.strip(b" \t"))
        elif name.lower() == b"transfer-encoding":
            codings.append(value.strip(b" \t").lower())
    if any(re.fullmatch(rb"[0-9]+", length) is None for length in lengths) or len(set(lengths)) > 1:
        return True
    if codings and b"HTTP/1.0" in head.partition(b"\r\n")[0]:
        return True
    return bool(codings) and (bool(lengths) or codings != [b"chunked"])
