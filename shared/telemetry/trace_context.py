"""The trace that a request is a part of: W3C Trace Context, as a header and as ids of spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shared.seams.chance import CHANCE

TRACEPARENT = "traceparent"
"""The header, and the metadata of gRPC, that names the caller's span."""
MAX_TRACEPARENT_CHARS = 256
"""The longest `traceparent` that is read; a longer one counts as none. Those of version 00 have 55."""
SAMPLED = 1

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace, by ids in hex. `sampled`: whether whoever began the trace wants spans of it."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @property
    def header(self) -> str:
        """Return the context as a `traceparent` of version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def child(self) -> TraceContext:
        """Return the context of a new span of the same trace."""
        return TraceContext(self.trace_id, new_span_id(), self.sampled)


def new_trace() -> TraceContext:
    """Return the context of the first span of a new trace."""
    return TraceContext(CHANCE.hex_digits(16), new_span_id())


def new_span_id() -> str:
    return CHANCE.hex_digits(8)


def read_traceparent(values: Sequence[str | bytes]) -> TraceContext | None:
    """Return the caller's span in all values of the header; None where there is none, or none that is valid.

    A later version is read as far as version 00 goes, as the specification wants it.
    """
    if len(values) != 1 or not isinstance(values[0], str) or len(values[0]) > MAX_TRACEPARENT_CHARS:
        return None
    found = _HEADER.fullmatch(values[0].strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED))
