from __future__ import annotations

from services.launcher.processes.backoff import Backoff


def test_the_delay_doubles_from_100_ms_to_5_s() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(0.0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_run_of_30_s_starts_over() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(0.0) for _ in range(4)][-1] == 0.8
    assert backoff.delay_s(29.9) == 1.6
    assert backoff.delay_s(30.0) == 0.1
    assert backoff.delay_s(0.0) == 0.2
