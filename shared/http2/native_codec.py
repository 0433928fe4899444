"""Find the compiled codec, where it was built."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from shared.built_extension import built_extension
from shared.http2.limits import CodecLimits

if TYPE_CHECKING:
    from shared.http2._codec import Connection

ABI = 2
"""The version of what the codec takes and says, as `codec/module.cpp` has it."""


def _codec() -> ModuleType | None:
    return built_extension("shared.http2._codec", ABI, "http2_codec_stale")


def has_codec() -> bool:
    """Return whether the codec was built here, of sources like these."""
    return _codec() is not None


def new_connection(limits: CodecLimits) -> Connection:
    """Return the codec of one connection. Raises RuntimeError where there is none."""
    codec = _codec()
    if codec is None:
        raise RuntimeError("HTTP/2's codec was not built: a C++ compiler was missing")
    made: Connection = codec.Connection(**limits._asdict())
    return made
