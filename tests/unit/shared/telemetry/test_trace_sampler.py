"""Traces are sampled as OpenTelemetry's samplers of the same names do it, by their ids."""

from __future__ import annotations

import pytest

from shared.telemetry.trace_context import TraceContext
from shared.telemetry.trace_sampler import SAMPLERS, TraceSampler

SPAN = "00f067aa0ba902b7"
LOW, HIGH = f"{'f' * 16}{'0' * 16}", f"{'0' * 16}{'f' * 16}"
"""Ids whose random bits are in every share, and in the whole alone."""
HALF, BELOW_HALF = f"{'0' * 16}8{'0' * 15}", f"{'0' * 16}7{'f' * 15}"
TRACES = 2000


def sampled(kind: str, trace_id: str, *, parent: bool, ratio: float = 0.5) -> bool:
    return TraceSampler(kind, ratio).new_span(TraceContext(trace_id, SPAN, parent)).sampled


@pytest.mark.parametrize("kind", [kind for kind in SAMPLERS if kind.startswith("parentbased_")])
@pytest.mark.parametrize("parent", [False, True])
def test_a_parent_based_sampler_does_as_the_caller_says(kind: str, parent: bool) -> None:
    for trace_id in (LOW, HIGH):
        assert sampled(kind, trace_id, parent=parent) == parent


@pytest.mark.parametrize("parent", [False, True])
def test_the_others_do_what_they_say_whatever_the_caller_does(parent: bool) -> None:
    assert sampled("always_on", HIGH, parent=parent)
    assert not sampled("always_off", LOW, parent=parent)
    assert sampled("traceidratio", LOW, parent=parent)
    assert not sampled("traceidratio", HIGH, parent=parent)


def test_a_share_is_taken_by_the_last_64_bits_of_the_id() -> None:
    assert sampled("traceidratio", BELOW_HALF, parent=False)
    assert not sampled("traceidratio", HALF, parent=False)
    assert sampled("traceidratio", HIGH, parent=False, ratio=1.0)
    assert not sampled("traceidratio", LOW, parent=True, ratio=0.0)


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        ("always_on", TRACES, TRACES),
        ("parentbased_always_on", TRACES, TRACES),
        ("always_off", 0, 0),
        ("parentbased_always_off", 0, 0),
        ("traceidratio", TRACES // 8, 3 * TRACES // 8),
        ("parentbased_traceidratio", TRACES // 8, 3 * TRACES // 8),
    ],
)
def test_traces_that_begin_here_are_sampled_by_the_kind(kind: str, least: int, most: int) -> None:
    """A quarter of 2,000 is 500, give or take 20: the bounds are ten times as far."""
    sampler = TraceSampler(kind, 0.25)
    spans = [sampler.new_span(None) for _ in range(TRACES)]
    assert least <= sum(span.sampled for span in spans) <= most
    assert len({span.trace_id for span in spans}) == TRACES


def test_a_span_is_a_child_of_the_callers() -> None:
    parent = TraceContext(LOW, SPAN)
    for kind in SAMPLERS:
        span = TraceSampler(kind).new_span(parent)
        assert span.trace_id == LOW
        assert span.span_id != SPAN
