"""Read what the headers of a call say, and write those of its answer."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

Metadata = tuple[tuple[str, str | bytes], ...]

BINARY_END = "-bin"
"""The end of names whose values are any bytes."""
TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
CONTENT_TYPE = re.compile(r"application/grpc(?:[+;].*)?")
ENCODINGS = "identity,deflate,gzip"
ANSWER = ((":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", ENCODINGS))
"""The headers of each answer."""
NOT_METADATA = frozenset(("te", "content-type", "content-length", "grpc-accept-encoding", "host"))
"""Headers that are for us, beside those that are read below."""
SHOWN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""The characters that stand for themselves in a message of a status."""
NAME = re.compile(r"[0-9a-z_.-]+")
VALUE = re.compile(r"[\x20-\x7e]*")


class CallHead(NamedTuple):
    """The beginning of a call. `refusal` is the HTTP status of what is no call of gRPC, else 0."""

    method: str
    timeout_s: float | None
    encoding: str
    metadata: Metadata
    refusal: int = 0


def read_head(headers: Iterable[tuple[str, str]]) -> CallHead:
    """Read the headers of a request, whose rules the codec has checked. Raises ValueError with a sentence."""
    path, timeout_s, encoding, refusal = "", None, "identity", 415
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name[0] == ":":
            if name == ":path":
                path = value
            elif name == ":method" and value != "POST":
                return CallHead("", None, "", (), 405)
        elif name == "grpc-timeout":
            timeout_s = _timeout_s(value)
        elif name == "grpc-encoding":
            encoding = value
        elif name == "content-type":
            refusal = 0 if CONTENT_TYPE.fullmatch(value) else 415
        elif name in NOT_METADATA:
            continue
        elif name.endswith(BINARY_END):
            metadata.extend((name, _bytes(name, each)) for each in value.split(","))
        else:
            metadata.append((name, value))
    return CallHead(path, timeout_s, encoding, tuple(metadata), refusal)


def _timeout_s(value: str) -> float:
    found = TIMEOUT.fullmatch(value)
    if found is None:
        raise ValueError("grpc-timeout is at most 8 digits and a unit: H, M, S, m, u or n")
    return int(found[1]) * UNITS_S[found[2]]


def _bytes(name: str, value: str) -> bytes:
    value = value.strip()
    try:
        return b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the metadata {name} is no base64: send bytes so") from error


def written(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, str | bytes]]:
    """Return metadata as headers. Raises ValueError for what none can be."""
    return [_header(name, value) for name, value in metadata]


def _header(name: str, value: str | bytes) -> tuple[str, str | bytes]:
    if not NAME.fullmatch(name) or (name.startswith("grpc-") and name != "grpc-status-details-bin"):
        raise ValueError(f"{name!r} is no name of metadata: use small letters, digits and -_.")
    if name.endswith(BINARY_END):
        return name, b64encode(value.encode() if isinstance(value, str) else value).rstrip(b"=")
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not VALUE.fullmatch(text):
        raise ValueError(f"the value of {name} is not of ASCII: end its name with {BINARY_END}")
    return name, text.strip()


def status_headers(
    code: int, message: str, trailing: Iterable[tuple[str, str | bytes]]
) -> list[tuple[str, str | bytes]]:
    """Return what a call ends with."""
    status: list[tuple[str, str | bytes]] = [("grpc-status", str(code))]
    if message:
        status.append(("grpc-message", quote(message, safe=SHOWN, errors="replace")))
    return status + written(trailing)
