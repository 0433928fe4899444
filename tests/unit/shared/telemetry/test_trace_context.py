"""A `traceparent` is read as W3C Trace Context has it; what is none counts as none."""

from __future__ import annotations

import pytest

from shared.telemetry.trace_context import MAX_TRACEPARENT_CHARS, TraceContext, new_trace, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (VALID, True),
        (f" {VALID} ", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-03-of-later", True),
        (f"01-{TRACE}-{SPAN}-01-" + "x" * (MAX_TRACEPARENT_CHARS - 56), True),
    ],
)
def test_a_callers_span_is_read(header: str, sampled: bool) -> None:
    assert read_traceparent([header]) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [VALID, VALID],
        [VALID.encode()],
        [""],
        [VALID.upper()],
        [f"{VALID}-more"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE[1:]}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-1"],
        [f"00-{TRACE}-{SPAN}-01\n\n00"],
        [f"01-{TRACE}-{SPAN}-01-" + "x" * (MAX_TRACEPARENT_CHARS - 55)],
        ["\u0660\u0660-" + VALID[3:]],
    ],
)
def test_what_is_no_context_counts_as_none(values: list[str | bytes]) -> None:
    assert read_traceparent(values) is None


def test_a_new_trace_and_its_children_are_valid_contexts_of_one_trace() -> None:
    trace = new_trace()
    child = trace.child()
    assert read_traceparent([trace.header]) == trace
    assert read_traceparent([child.header]) == child
    assert child.trace_id == trace.trace_id
    assert child.span_id != trace.span_id
