"""The phases of a timeline partition the request, whatever other clocks claim."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.telemetry.timeline import LATER, MAX_PHASES, Phase, Timeline
from tests.support.clock import FakeClock


def test_a_mark_names_what_ran_since_the_last_one() -> None:
    clock = FakeClock()
    timeline = Timeline(clock)
    clock.advance(0.002)
    timeline.mark("admit")
    clock.advance(0.010)
    timeline.mark("tokenize")
    assert timeline.phases() == [Phase("admit", 0, 2000), Phase("tokenize", 2000, 10_000)]


def test_a_split_keeps_measured_parts_and_gives_the_rest_a_name() -> None:
    clock = FakeClock()
    timeline = Timeline(clock)
    clock.advance(0.010)
    timeline.split("bus", [("prefill.queue", 3000), ("prefill.compute", 5000)])
    assert [(p.name, p.duration_us) for p in timeline.phases()] == [
        ("prefill.queue", 3000),
        ("prefill.compute", 5000),
        ("bus", 2000),
    ]
    assert timeline.clamped == 0


def test_parts_that_claim_too_much_are_cut_and_counted() -> None:
    clock = FakeClock()
    timeline = Timeline(clock)
    clock.advance(0.004)
    timeline.split("bus", [("a", 3000), ("b", 3000), ("c", -5)])
    assert [p.duration_us for p in timeline.phases()] == [3000, 1000, 0, 0]
    assert timeline.clamped == 2


def test_the_first_token_is_noted_once_at_the_end_of_a_phase() -> None:
    clock = FakeClock()
    timeline = Timeline(clock)
    assert timeline.ttft_us is None
    clock.advance(0.05)
    timeline.mark("deliver")
    clock.advance(0.05)
    timeline.first_token()
    timeline.mark("decode")
    timeline.first_token()
    assert timeline.ttft_us == 50_000


steps = st.lists(
    st.tuples(
        st.floats(-0.5, 2.0),
        st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("abc"), st.integers(-(10**6), 3 * 10**6)))),
    ),
    max_size=20,
)


@given(steps)
def test_phases_always_partition_the_elapsed_time(
    run: list[tuple[float, list[tuple[str, int]] | None]],
) -> None:
    clock = FakeClock()
    timeline = Timeline(clock)
    for seconds, parts in run:
        clock.advance(seconds)
        if parts is None:
            timeline.mark("m")
        else:
            timeline.split("rest", parts)
    end_us = 0
    for phase in timeline.phases():
        assert phase.start_us == end_us
        assert phase.duration_us >= 0
        end_us += phase.duration_us
    assert end_us == timeline.marked_us
    timeline.mark("end")
    assert sum(phase.duration_us for phase in timeline.phases()) == timeline.elapsed_us()


def test_phases_beyond_the_most_are_one_and_still_partition_the_request() -> None:
    clock = FakeClock()
    timeline = Timeline(clock)
    for number in range(MAX_PHASES + 3):
        clock.advance(0.001)
        timeline.mark(f"phase-{number}")
        if number == MAX_PHASES - 1:
            assert timeline.phases()[-1] == Phase(f"phase-{number}", 1000 * number, 1000)
    phases = timeline.phases()
    assert len(phases) == MAX_PHASES
    assert phases[-1] == Phase(LATER, 1000 * (MAX_PHASES - 1), 4000)
    assert sum(phase.duration_us for phase in phases) == timeline.marked_us
