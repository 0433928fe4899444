"""Decide of which traces there are spans, as OpenTelemetry's samplers of the same names do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shared.telemetry.trace_context import TraceContext, new_trace

DEFAULT_SAMPLER = "parentbased_always_on"
PARENT_BASED = "parentbased_"
_RANDOM_BITS = 64
"""The last bits of a trace's id are the random ones that a share is taken by."""


@dataclass(frozen=True, slots=True)
class TraceSampler:
    """`kind` is one of SAMPLERS; `ratio` counts for those by share. A trace is in everybody's share or in
    nobody's, by its id; a `parentbased_` one leaves it to the caller where there is one."""

    kind: str = DEFAULT_SAMPLER
    ratio: float = 1.0

    def new_span(self, parent: TraceContext | None) -> TraceContext:
        """Return a new span below the caller's, or the first of a new trace; `sampled` is what is decided."""
        if parent is None:
            root = new_trace()
            return TraceContext(root.trace_id, root.span_id, self._of_root(root.trace_id))
        span = parent.child()
        if self.kind.startswith(PARENT_BASED):
            return span
        return TraceContext(span.trace_id, span.span_id, self._of_root(span.trace_id))

    def _of_root(self, trace_id: str) -> bool:
        return _ROOTS[self.kind.removeprefix(PARENT_BASED)](trace_id, self.ratio)


def _by_share(trace_id: str, ratio: float) -> bool:
    last_bits = int(trace_id, 16) & ((1 << _RANDOM_BITS) - 1)
    return last_bits < round(ratio * (1 << _RANDOM_BITS))


_ROOTS: Mapping[str, Callable[[str, float], bool]] = MappingProxyType(
    {
        "always_on": lambda _id, _ratio: True,
        "always_off": lambda _id, _ratio: False,
        "traceidratio": _by_share,
    }
)
SAMPLERS = (*_ROOTS, *(f"{PARENT_BASED}{kind}" for kind in _ROOTS))
