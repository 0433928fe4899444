"""Draft sessions of the speculator: commits, wishes, bounds, leases."""

from __future__ import annotations

from services.speculator.sessions import DraftSessions
from shared.sampling import SamplingParams


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_us(self) -> int:
        return 0


def make_table(limit: int = 4, clock: FakeClock | None = None) -> DraftSessions:
    return DraftSessions(limit=limit, lease_s=10.0, clock=clock or FakeClock())


def opened(table: DraftSessions, key: str = "a/1", decode: str = "decode-0") -> None:
    request_id, _, epoch = key.partition("/")
    table.open_session(key, request_id, int(epoch), decode, [1, 2, 3], 2, SamplingParams())


def test_a_commit_extends_the_session_and_leaves_a_wish() -> None:
    table = make_table()
    opened(table)
    assert table.commit("a/1", 3, (7, 8), 4)
    ((key, session, wanted),) = table.take_wishes(8)
    assert (key, session.tokens, wanted) == ("a/1", [1, 2, 3, 7, 8], 4)


def test_a_commit_replaces_what_differs_from_it() -> None:
    table = make_table()
    opened(table)
    table.commit("a/1", 1, (9,), 1)
    assert table.held()[0].tokens == [1, 9]


def test_a_commit_with_a_gap_or_for_nobody_is_refused() -> None:
    table = make_table()
    opened(table)
    assert not table.commit("a/1", 4, (7,), 1)
    assert not table.commit("a/1", -1, (7,), 1)
    assert not table.commit("b/1", 0, (7,), 1)


def test_a_newer_commit_takes_over_the_wish_of_an_older_one() -> None:
    table = make_table()
    opened(table)
    table.commit("a/1", 3, (7,), 4)
    table.commit("a/1", 4, (8,), 2)
    assert [wanted for _, _, wanted in table.take_wishes(8)] == [2]
    assert not table.has_wishes


def test_wishes_beyond_the_batch_stay_for_the_next_tick() -> None:
    table = make_table()
    for key in ("a/1", "b/1", "c/1"):
        opened(table, key)
        table.commit(key, 3, (), 4)
    assert [key for key, _, _ in table.take_wishes(2)] == ["a/1", "b/1"]
    assert [key for key, _, _ in table.take_wishes(2)] == ["c/1"]


def test_the_least_recently_used_session_gives_way() -> None:
    table = make_table(limit=2)
    opened(table, "a/1")
    opened(table, "b/1")
    table.commit("a/1", 3, (7,), 0)
    opened(table, "c/1")
    assert [session.request_id for session in table.held()] == ["a", "c"]
    assert table.evicted == 1


def test_an_unused_session_expires() -> None:
    clock = FakeClock()
    table = make_table(clock=clock)
    opened(table, "a/1")
    clock.now_s = 6.0
    opened(table, "b/1")
    clock.now_s = 11.0
    assert table.expire() == 1
    assert [session.request_id for session in table.held()] == ["b"]


def test_sessions_of_a_lost_decode_worker_are_dropped() -> None:
    table = make_table()
    opened(table, "a/1", "decode-0")
    opened(table, "b/1", "decode-1")
    assert table.drop_decode("decode-0") == 1
    assert [session.request_id for session in table.held()] == ["b"]


def test_a_cancel_drops_epochs_up_to_its_own() -> None:
    table = make_table()
    opened(table, "a/1")
    opened(table, "a/3")
    assert table.drop_request("a", 2)
    assert [session.epoch for session in table.held()] == [3]
