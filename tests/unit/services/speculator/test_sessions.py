"""Draft sessions of the speculator: commits, wishes, bounds, leases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from services.speculator.sessions import DraftSessions, DraftWish
from shared.engine.sampling.grammar import Grammars
from shared.sampling.parameters import Grammar, SamplingParams
from shared.worker.drafts.draft_tree import DraftBranch, DraftTree
from shared.worker.drafts.prefix_digest import PrefixDigest
from tests.support.clock import FakeClock
from tests.support.grammar import EOS, VOCAB, save_tokenizer


def make_sessions(limit: int = 4, clock: FakeClock | None = None) -> DraftSessions:
    return DraftSessions(limit=limit, lease_s=10.0, clock=clock or FakeClock())


def opened(sessions: DraftSessions, key: str = "a/1", decode: str = "decode-0") -> None:
    request_id, _, epoch = key.partition("/")
    sessions.open_session(key, request_id, int(epoch), decode, [1, 2, 3], 2, SamplingParams())


def test_a_commit_extends_the_session_and_leaves_a_wish() -> None:
    sessions = make_sessions()
    opened(sessions)
    assert sessions.commit("a/1", 3, (7, 8), DraftWish(4))
    ((key, session, wish),) = sessions.take_wishes(8)
    assert (key, session.tokens, wish) == ("a/1", [1, 2, 3, 7, 8], DraftWish(4))


def test_a_commit_replaces_what_differs_from_it() -> None:
    sessions = make_sessions()
    opened(sessions)
    sessions.commit("a/1", 1, (9,), DraftWish(1))
    assert sessions.held()[0].tokens == [1, 9]


@pytest.mark.parametrize("base", [4, -1])
def test_a_session_that_a_commit_leaves_a_gap_in_is_dropped_as_nobody_would_close_it(base: int) -> None:
    sessions = make_sessions()
    opened(sessions)
    assert not sessions.commit("a/1", base, (7,), DraftWish(1))
    assert sessions.held() == []


def test_a_commit_for_nobody_is_refused() -> None:
    assert not make_sessions().commit("b/1", 0, (7,), DraftWish(1))


def test_a_newer_commit_takes_over_the_wish_of_an_older_one() -> None:
    sessions = make_sessions()
    opened(sessions)
    sessions.commit("a/1", 3, (7,), DraftWish(4))
    sessions.commit("a/1", 4, (8,), DraftWish(2))
    assert [wish.num_tokens for _, _, wish in sessions.take_wishes(8)] == [2]
    assert not sessions.has_wishes


def test_wishes_beyond_the_batch_stay_for_the_next_tick() -> None:
    sessions = make_sessions()
    for key in ("a/1", "b/1", "c/1"):
        opened(sessions, key)
        sessions.commit(key, 3, (), DraftWish(4))
    assert [key for key, _, _ in sessions.take_wishes(2)] == ["a/1", "b/1"]
    assert [key for key, _, _ in sessions.take_wishes(2)] == ["c/1"]


def test_the_least_recently_used_session_gives_way() -> None:
    sessions = make_sessions(limit=2)
    opened(sessions, "a/1")
    opened(sessions, "b/1")
    sessions.commit("a/1", 3, (7,), DraftWish(0))
    opened(sessions, "c/1")
    assert [session.request_id for session in sessions.held()] == ["a", "c"]
    assert sessions.evicted == 1


def test_an_unused_session_expires() -> None:
    clock = FakeClock()
    sessions = make_sessions(clock=clock)
    opened(sessions, "a/1")
    clock.advance(6.0)
    opened(sessions, "b/1")
    clock.advance(5.0)
    assert sessions.expire() == 1
    assert [session.request_id for session in sessions.held()] == ["b"]


def test_sessions_of_a_lost_decode_worker_are_dropped() -> None:
    sessions = make_sessions()
    opened(sessions, "a/1", "decode-0")
    opened(sessions, "b/1", "decode-1")
    assert sessions.drop_decode("decode-0") == 1
    assert [session.request_id for session in sessions.held()] == ["b"]


def test_a_cancel_drops_epochs_up_to_its_own() -> None:
    sessions = make_sessions()
    opened(sessions, "a/1")
    opened(sessions, "a/3")
    assert sessions.drop_request("a", 2)
    assert [session.epoch for session in sessions.held()] == [3]


def test_a_session_wishes_for_nothing_until_its_grammar_is_compiled(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    grammar = Grammar("regex", "a+")
    sessions = make_sessions()
    sessions.open_session("a/1", "a", 1, "decode-0", [1, 2, 3], 2, SamplingParams(grammar=grammar))
    opened(sessions, "b/1")
    for key in ("a/1", "b/1"):
        sessions.commit(key, 3, (7,), DraftWish(4))
    assert [key for key, _, _ in sessions.take_wishes(8)] == ["b/1"]
    assert not sessions.has_wishes
    compiled = Grammars(str(tmp_path), VOCAB, (EOS,)).compile(grammar)
    sessions.take_grammar("gone/1", compiled)
    sessions.take_grammar("a/1", compiled)
    ((key, session, _),) = sessions.take_wishes(8)
    assert (key, session.params.grammar) == ("a/1", compiled)


@pytest.mark.parametrize(
    "end",
    [
        lambda sessions, _: sessions.drop("a/1"),
        lambda sessions, _: sessions.drop_request("a", 1),
        lambda sessions, _: sessions.drop_decode("decode-0"),
        lambda sessions, _: opened(sessions),
        lambda sessions, _: opened(sessions, "b/1"),
        lambda sessions, clock: (clock.advance(10.0), sessions.expire()),
    ],
    ids=["closed", "cancelled", "decode lost", "opened again", "given way", "expired"],
)
def test_whoever_keeps_something_for_a_session_hears_of_its_end(
    end: Callable[[DraftSessions, FakeClock], object],
) -> None:
    clock = FakeClock()
    dropped: list[str] = []
    sessions = DraftSessions(limit=1, lease_s=10.0, on_drop=dropped.append, clock=clock)
    opened(sessions)
    end(sessions, clock)
    assert dropped == ["a/1"]


def test_tokens_that_the_engine_was_told_of_count_as_told_until_they_change() -> None:
    sessions = make_sessions()
    opened(sessions)
    (session,) = sessions.held()
    session.num_known = 3
    sessions.commit("a/1", 3, (7, 8), DraftWish(1))
    assert session.num_known == 3
    sessions.commit("a/1", 2, (9,), DraftWish(1))
    assert session.num_known == 2
    sessions.forget(["a/1", "gone/1"])
    assert session.num_known == 0


# ---- what both sides hold ----


def test_the_digest_of_a_commit_is_that_of_all_tokens() -> None:
    sessions = make_sessions()
    opened(sessions)
    assert sessions.commit("a/1", 3, (7,), DraftWish(1), PrefixDigest([1, 2, 3, 7]).value)
    assert sessions.commit("a/1", 4, (8, 9), DraftWish(1), PrefixDigest([1, 2, 3, 7, 8, 9]).value)
    assert sessions.commit("a/1", 4, (8, 9), DraftWish(1), PrefixDigest([1, 2, 3, 7, 8, 9]).value)  # again
    assert sessions.diverged == 0


def test_a_session_with_other_tokens_than_its_decode_worker_is_dropped_and_counted() -> None:
    sessions = make_sessions()
    opened(sessions)
    assert not sessions.commit("a/1", 3, (7,), DraftWish(1), PrefixDigest([1, 2, 4, 7]).value)
    assert (sessions.held(), sessions.diverged) == ([], 1)


# ---- rounds ----

ROUND = DraftWish(4, fan=2, ahead_tokens=3)


def sent(sessions: DraftSessions, *branches: DraftBranch) -> None:
    """Decode has a draft of two tokens."""
    opened(sessions)
    sessions.held()[0].tree = DraftTree(3, (7, 8), branches)


def test_a_commit_along_what_was_sent_wishes_for_what_comes_of_the_round() -> None:
    sessions = make_sessions()
    sent(sessions, DraftBranch(1, 5, (6, 9)))
    sessions.commit("a/1", 3, (7, 5), ROUND)
    assert not sessions.has_wishes
    assert sessions.has_rounds
    ((key, _, wish, guesses),) = sessions.take_rounds(8)
    assert (key, wish, guesses) == ("a/1", ROUND, (6, 9))
    assert not sessions.has_rounds


@pytest.mark.parametrize(
    ("tokens", "wish"), [((7, 9), ROUND), ((7,), DraftWish(4))], ids=["another outcome", "an older decode"]
)
def test_any_other_commit_wishes_for_a_draft(tokens: tuple[int, ...], wish: DraftWish) -> None:
    sessions = make_sessions()
    sent(sessions, DraftBranch(1, 5, (6, 9)))
    sessions.commit("a/1", 3, tokens, wish)
    assert not sessions.has_rounds
    assert [taken for _, _, taken in sessions.take_wishes(8)] == [wish]


def test_rounds_that_are_over_by_then_are_not_prepared_for() -> None:
    clock = FakeClock()
    sessions = make_sessions(clock=clock)
    sent(sessions)
    sessions.commit("a/1", 3, (7,), ROUND._replace(until_s=clock.monotonic_s() + 1.0))
    clock.advance(1.5)
    assert sessions.take_rounds(8) == []
    assert not sessions.has_rounds


def test_sessions_with_a_grammar_are_not_prepared_for() -> None:
    sessions = make_sessions()
    sent(sessions)
    (session,) = sessions.held()
    session.params = SamplingParams(grammar=Grammar("regex", "a+"))
    sessions.commit("a/1", 3, (7,), ROUND)
    assert not sessions.has_rounds
    assert sessions.has_wishes
