"""What a gateway remembers of agents: waiting by the job, times of tools, each tenant its own."""

from __future__ import annotations

import pytest

from services.gateway.admission.agent_sessions import (
    LEAST_STAY_S,
    MAX_AGENT_SESSIONS,
    MAX_PAUSE_S,
    MAX_STAY_S,
    MAX_TOOLS,
    MAX_WAITED_S,
    NEWEST_SHARE,
    UNKNOWN_STAY_S,
    USUAL_APPENDED_TOKENS,
    AgentSessions,
)
from services.gateway.request.agent_hints import MAX_PAUSE_MS, AgentHints
from shared.worker.wire import MAX_STAY_MS
from tests.support.clock import FakeClock

CALL = AgentHints("s")
TENANT = "acme"


def sessions() -> tuple[AgentSessions, FakeClock]:
    clock = FakeClock()
    return AgentSessions(clock), clock


def wait(kept: AgentSessions, clock: FakeClock, seconds: float, hints: AgentHints = CALL) -> None:
    began_s = clock.monotonic_s()
    clock.advance(seconds)
    kept.record_wait(TENANT, hints, began_s)


def test_a_job_waits_as_long_as_all_of_its_calls_and_no_longer_counts() -> None:
    kept, clock = sessions()
    assert (kept.waited_s(TENANT, CALL), kept.waited_s(TENANT, None)) == (0.0, 0.0)
    wait(kept, clock, 3.0)
    wait(kept, clock, 2.0, AgentHints("helper", parent="s"))
    assert kept.waited_s(TENANT, CALL) == kept.waited_s(TENANT, AgentHints("other", parent="s")) == 5.0
    wait(kept, clock, MAX_WAITED_S)
    assert kept.waited_s(TENANT, CALL) == MAX_WAITED_S


def test_calls_that_wait_together_count_once() -> None:
    kept, clock = sessions()
    began_s = clock.monotonic_s()
    clock.advance(4.0)
    kept.record_wait(TENANT, CALL, began_s)
    clock.advance(1.0)
    kept.record_wait(TENANT, CALL, began_s)
    assert kept.waited_s(TENANT, CALL) == 5.0


def test_a_name_of_another_tenant_is_another_session() -> None:
    kept, clock = sessions()
    wait(kept, clock, 3.0)
    kept.begin_call(TENANT, CALL)
    assert kept.waited_s("other", CALL) == 0.0
    assert not kept.begin_call("other", CALL)
    assert kept.begin_call(TENANT, CALL)


def test_the_pause_is_what_is_said_or_what_the_tools_took() -> None:
    kept, clock = sessions()
    assert kept.pause_s(TENANT, AgentHints("s", pause_ms=1500, next_tool="find")) == 1.5
    for seconds in (2.0, 4.0):
        kept.begin_call(TENANT, CALL)
        kept.end_call(TENANT, CALL, ["find"], known_tokens=9)
        clock.advance(seconds)
    kept.begin_call(TENANT, CALL)
    usual_s = NEWEST_SHARE * 4.0 + (1 - NEWEST_SHARE) * 2.0
    assert kept.pause_s(TENANT, AgentHints("new", next_tool="find")) == pytest.approx(usual_s)
    assert kept.pause_s(TENANT, CALL, ["find", "unknown"]) == pytest.approx(usual_s)
    assert kept.pause_s("other", CALL, ["find"]) is kept.pause_s(TENANT, CALL) is None


def test_kv_stays_for_twice_the_pause_and_for_nobody_after_the_last_call() -> None:
    kept, _ = sessions()
    assert (kept.stay_ms(TENANT, None), kept.stay_ms(TENANT, AgentHints("s", final=True))) == (0, -1)
    assert kept.stay_ms(TENANT, AgentHints("s", pause_ms=2000)) == 1000 * (4 + LEAST_STAY_S)
    assert kept.stay_ms(TENANT, CALL) == 1000 * UNKNOWN_STAY_S
    assert kept.stay_ms(TENANT, AgentHints("s", pause_ms=MAX_PAUSE_MS)) == 1000 * MAX_STAY_S < MAX_STAY_MS


def test_an_hour_of_silence_is_no_tools_time() -> None:
    kept, clock = sessions()
    kept.begin_call(TENANT, CALL)
    kept.end_call(TENANT, CALL, ["find"], known_tokens=9)
    clock.advance(MAX_PAUSE_S + 1)
    kept.begin_call(TENANT, CALL)
    assert kept.pause_s(TENANT, CALL, ["find"]) is None


def test_a_turn_is_expected_to_append_what_the_last_one_did() -> None:
    kept, _ = sessions()
    assert kept.appended_tokens(TENANT, CALL) == USUAL_APPENDED_TOKENS
    kept.begin_call(TENANT, CALL)
    kept.record_prompt(TENANT, CALL, 100)
    kept.end_call(TENANT, CALL, (), known_tokens=120)
    kept.record_prompt(TENANT, CALL, 170)
    assert kept.appended_tokens(TENANT, CALL) == 50
    kept.record_prompt(TENANT, CALL, 20)  # another conversation by the same name
    assert kept.appended_tokens(TENANT, CALL) == 50


def test_after_its_last_call_nothing_is_left_of_a_session() -> None:
    kept, clock = sessions()
    wait(kept, clock, 3.0)
    kept.end_call(TENANT, AgentHints("s", final=True), (), known_tokens=9)
    assert (len(kept), kept.waited_s(TENANT, CALL)) == (0, 0.0)


def test_what_is_remembered_is_bounded_and_nobody_loses_a_share_to_another() -> None:
    kept, _ = sessions()
    kept.begin_call("small", CALL)
    for number in range(MAX_AGENT_SESSIONS + 5):
        kept.begin_call(TENANT, AgentHints(str(number)))
    assert len(kept) == MAX_AGENT_SESSIONS
    assert kept.begin_call("small", CALL)


def test_the_times_of_tools_are_bounded() -> None:
    kept, _ = sessions()
    kept.begin_call(TENANT, CALL)
    kept.end_call(TENANT, CALL, [str(number) for number in range(MAX_TOOLS + 1)], known_tokens=9)
    kept.begin_call(TENANT, CALL)
    assert (kept.pause_s(TENANT, CALL, ["0"]), kept.pause_s(TENANT, CALL, ["1"])) == (None, 0.0)
