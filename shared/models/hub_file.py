"""Fetch one file of the hub: what is here already is not asked for again, and a broken line is tried anew."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from shared.errors import ChecksumMismatch, Unavailable
from shared.models.file_check import CHUNK_BYTES, Noted

PART_SUFFIX = ".part"
"""Ends the name of a file of which a part is here."""
MAX_TRIES = 5
"""The most tries in a row that bring nothing."""
READ_TIMEOUT_S = 30.0
"""The longest silence of the hub."""
RETRY_S = 1.0
"""The wait before a second try; it doubles."""
PARTIAL, BAD_RANGE = 206, 416
BROKEN_LINES = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)
"""The ways in which a line breaks; what the disk has to say is no such thing."""


def fetch_file(
    url: str,
    headers: Mapping[str, str],
    target: Path,
    size_bytes: int,
    noted: Noted,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Put the file of `size_bytes` at `target`. `noted` hears of what is here already, too, and of a negative
    number where that has to come again.

    Raises Unavailable where it does not come, ChecksumMismatch where it is longer than the hub says; what is
    there stays for the next time.
    """
    if target.is_file() and target.stat().st_size == size_bytes:
        noted(size_bytes)
        return
    part = target.with_name(target.name + PART_SUFFIX)
    part.touch(mode=0o600)
    noted(part.stat().st_size)
    failures, wait_s = 0, RETRY_S
    while (here := part.stat().st_size) < size_bytes:
        try:
            _fetch_rest(url, headers, part, size_bytes, noted)
        except BROKEN_LINES as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != BAD_RANGE:
                raise Unavailable(f"the hub refuses {target.name} ({error.code} {error.reason})") from error
            why: Exception = error
        else:
            why = http.client.IncompleteRead(b"")
        came = part.stat().st_size > here
        failures, wait_s = (0, RETRY_S) if came else (failures + 1, wait_s)
        if failures >= MAX_TRIES:
            raise Unavailable(
                f"{target.name} does not come from the hub ({type(why).__name__}); pull it again, it goes on "
                f"behind {part.stat().st_size / 1e6:.1f} MB"
            ) from why
        if failures:
            sleep(wait_s)
            wait_s *= 2
    if part.stat().st_size > size_bytes:
        part.unlink()
        raise ChecksumMismatch(
            f"{target.name} is longer than the hub says; it has been removed: pull it again"
        )
    part.replace(target)


def _fetch_rest(url: str, headers: Mapping[str, str], part: Path, size_bytes: int, noted: Noted) -> None:
    """Append what comes, until that is too much. Raises OSError, HTTPException."""
    here = part.stat().st_size
    request = urllib.request.Request(url)  # noqa: S310 - of the hub that is configured
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # a key is for the hub, and for nobody whom it names
    if here:
        request.add_header("Range", f"bytes={here}-")
    with urllib.request.urlopen(request, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310 - as above
        goes_on = answer.status == PARTIAL and str(answer.headers.get("Content-Range", "")).startswith(
            f"bytes {here}-"
        )
        if here and not goes_on:
            noted(-here)
        with part.open("ab" if goes_on else "wb") as file:
            while file.tell() <= size_bytes and (chunk := answer.read1(CHUNK_BYTES)):
                file.write(chunk)
                file.flush()
                noted(len(chunk))
