"""Draft bookkeeping of the decode worker: what is asked, what is used, what is given up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.decode.ahead.draft_offers import DraftUse
from services.decode.drafted_request import REOPEN_AFTER_TOKENS, Outgoing
from services.decode.drafts import DraftBook
from shared.degradation import DegradationLevel
from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.probes import FIRST_SAVED, SAVED_SHARE
from shared.messages import DraftBlock, DraftClose, DraftCommit, DraftOpen, unpack_ids
from shared.worker.drafts.draft_tree import DraftBranch, DraftTree, packed
from shared.worker.wire import sequence_key
from tests.support.sampling import sampling

KEY = sequence_key("r", 1)


def make_book(longest: int = 4, batch_tokens: int = 64, widest: int = 0) -> DraftBook:
    return DraftBook("decode-0", longest, batch_tokens, widest)


def opened(
    book: DraftBook, tokens: Sequence[int] = (1, 2, 3), request_id: str = "r", speculator: str = "s"
) -> None:
    book.open_draft(request_id, 1, speculator, tokens, 2, sampling(max_tokens=64))


def block(base: int, ids: Sequence[int], request_id: str = "r") -> DraftBlock:
    return DraftBlock((request_id,), (1,), (base,), (tuple(ids),))


BRANCHES = (DraftBranch(0, 20, (21,)), DraftBranch(2, 9, (10, 11)))


def block_ahead(base: int, ids: Sequence[int], *, took_us: int = 0) -> DraftBlock:
    return DraftBlock(("r",), (1,), (base,), (tuple(ids),), (packed(BRANCHES),), (took_us,))


def trusted(book: DraftBook) -> DraftBook:
    """Return a book that has seen drafts be right, of a session that is over."""
    book.open_draft("before", 1, "s", (1, 2), 2, sampling(max_tokens=64))
    for _ in range(40):
        book.advance(sequence_key("before", 1), (7,), 8, 8)
    book.close_draft(sequence_key("before", 1))
    book.outgoing(0.0)
    return book


def commit_of(messages: Sequence[Outgoing]) -> DraftCommit:
    commits = [item.message for item in messages if isinstance(item.message, DraftCommit)]
    assert len(commits) == 1
    return commits[0]


def test_a_new_session_is_opened_and_asks_for_its_first_draft_at_once() -> None:
    book = make_book()
    opened(book)
    first, second = book.outgoing(0.0)
    assert isinstance(first.message, DraftOpen)
    assert (first.speculator, first.request_id, first.epoch) == ("s", "r", 1)
    assert unpack_ids(first.message.token_ids) == [1, 2, 3]
    assert isinstance(second.message, DraftCommit)
    assert (second.message.bases, second.message.token_ids) == ((3,), ((),))
    assert second.message.lengths[0] > 0


def test_a_step_commits_exactly_its_new_tokens() -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    book.advance(KEY, (7, 8), 0, 0)
    commit = commit_of(book.outgoing(0.0))
    assert (commit.bases, commit.token_ids) == ((3,), ((7, 8),))


def test_rows_of_one_speculator_share_one_commit() -> None:
    book = make_book()
    opened(book, request_id="a")
    opened(book, request_id="b")
    assert commit_of(book.outgoing(0.0)).request_ids == ("a", "b")


def test_nothing_is_sent_for_a_sequence_that_did_not_advance() -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    assert book.outgoing(0.0) == []


def test_without_a_speculator_or_with_length_zero_there_is_no_session() -> None:
    book = make_book()
    opened(book, speculator="")
    assert len(book) == 0
    off = make_book(longest=0)
    opened(off)
    assert off.outgoing(0.0) == []


def test_a_late_block_is_shifted_and_its_rest_proposed() -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    book.receive(block(3, (7, 8, 9)), "s", 0.0)
    book.advance(KEY, (7,), 0, 0)
    (proposal,) = book.proposals()
    assert (proposal.key, proposal.tree, proposal.num_known) == (KEY, DraftTree(3, (7, 8, 9)), 4)
    assert book.counts.late == 0


def test_a_block_that_guessed_wrong_is_dropped_and_counted_late() -> None:
    book = make_book()
    opened(book)
    book.receive(block(3, (7, 8, 9)), "s", 0.0)
    book.advance(KEY, (5,), 0, 0)
    assert book.proposals() == []
    assert book.counts.late == 3


def test_a_block_is_proposed_once() -> None:
    book = make_book()
    opened(book)
    book.receive(block(3, (7,)), "s", 0.0)
    assert len(book.proposals()) == 1
    assert book.proposals() == []


def test_a_newer_answer_replaces_an_older_one_and_not_the_reverse() -> None:
    book = make_book()
    opened(book)
    book.advance(KEY, (7,), 0, 0)
    book.receive(block(4, (8,)), "s", 0.0)
    book.receive(block(3, (7, 9)), "s", 0.0)
    (proposal,) = book.proposals()
    assert proposal.tree.token_ids == (8,)


def test_an_answer_for_a_finished_sequence_is_counted_late() -> None:
    book = make_book()
    book.receive(block(3, (7, 8)), "s", 0.0)
    assert book.counts.late == 2


def test_a_closed_session_is_closed_at_the_speculator_once() -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    book.close_draft(KEY)
    (message,) = book.outgoing(0.0)
    assert message.message == DraftClose(("r",), (1,))
    assert book.outgoing(0.0) == []
    assert book.held() == []


def test_a_session_the_speculator_never_heard_of_is_closed_silently() -> None:
    book = make_book()
    opened(book)
    book.close_draft(KEY)
    assert book.outgoing(0.0) == []


def test_a_lost_speculator_leaves_its_requests_without_drafts() -> None:
    book = make_book()
    opened(book, request_id="a", speculator="s")
    opened(book, request_id="b", speculator="t")
    book.lose("s")
    assert book.held() == [("b", 1)]
    assert {item.speculator for item in book.outgoing(0.0)} == {"t"}


def test_a_resync_opens_the_session_again_with_all_its_tokens() -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    book.resync(("r",), (1,))
    book.advance(KEY, tuple(range(10, 10 + REOPEN_AFTER_TOKENS)), 0, 0)
    first, second = book.outgoing(0.0)
    assert isinstance(first.message, DraftOpen)
    assert len(unpack_ids(first.message.token_ids)) == 3 + REOPEN_AFTER_TOKENS
    assert isinstance(second.message, DraftCommit)
    assert second.message.token_ids == ((),)


def test_a_speculator_that_keeps_forgetting_is_asked_ever_more_rarely() -> None:
    book = make_book()
    opened(book)
    opens = 0
    for _ in range(200):
        messages = book.outgoing(0.0)
        opens += sum(isinstance(item.message, DraftOpen) for item in messages)
        book.resync(("r",), (1,))
        book.advance(KEY, (5,), 0, 0)
    assert opens == 4  # at 0, 16, 48 and 112 tokens


def test_tokens_that_were_not_asked_drafts_for_go_with_the_next_commit() -> None:
    book = make_book()
    opened(book)
    steps, told = 400, []
    for _ in range(steps):
        told += [each for each in book.outgoing(0.0) if isinstance(each.message, DraftCommit)]
        book.advance(KEY, (6,), 4, 0)  # never right: drafts are turned off
    lengths = [len(commit_of([each]).token_ids[0]) for each in told]
    assert max(lengths) > 30
    assert steps - sum(lengths) < 100  # what waits for the next


def test_drafts_shrink_as_the_batch_grows() -> None:
    book = trusted(make_book(longest=4, batch_tokens=8))
    for index in range(8):
        opened(book, request_id=f"r{index}")
    assert commit_of(book.outgoing(0.0)).lengths == (2,) * 8  # one, and one for the step that runs
    opened(book, request_id="one-too-many")
    for index in range(8):
        book.advance(sequence_key(f"r{index}", 1), (5,), 0, 0)
    assert [item for item in book.outgoing(0.0) if isinstance(item.message, DraftCommit)] == []


def test_under_pressure_drafts_are_half_as_long() -> None:
    book = make_book(longest=8)
    opened(book)
    for _ in range(20):
        book.advance(KEY, (7,), 8, 8)
    (whole,) = commit_of(book.outgoing(0.0)).lengths
    book.advance(KEY, (7,), 8, 8)
    book.level = DegradationLevel.SHORT_DRAFTS
    (half,) = commit_of(book.outgoing(0.0)).lengths
    assert (whole, half) == (9, 5)  # both with one for the step that runs
    short = make_book(longest=1)
    short.level = DegradationLevel.SHORT_DRAFTS
    opened(short)
    assert commit_of(short.outgoing(0.0)).lengths == (2,)


@pytest.mark.parametrize("level", [level for level in DegradationLevel if level >= 2])
def test_under_more_pressure_nothing_is_drafted_and_later_nothing_is_missing(level: DegradationLevel) -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    book.level = level
    opened(book, request_id="new")
    book.advance(KEY, (7,), 0, 0)
    assert book.outgoing(0.0) == []
    opened(book, request_id="gone")
    book.close_draft(sequence_key("gone", 1))
    book.advance(KEY, (8,), 0, 0)
    book.level = DegradationLevel.NONE
    opened_late, commit = book.outgoing(0.0)
    assert opened_late.request_id == "new"
    assert isinstance(commit.message, DraftCommit)
    assert (commit.message.bases, commit.message.token_ids) == ((3, 3), ((7, 8), ()))


def test_sessions_are_closed_at_every_level() -> None:
    book = make_book()
    opened(book)
    book.outgoing(0.0)
    book.level = DegradationLevel.NO_DRAFTS
    book.close_draft(KEY)
    assert [type(item.message) for item in book.outgoing(0.0)] == [DraftClose]


def lengths_over(book: DraftBook, steps: int, *, proposed: int = 0, accepted: int = 0) -> list[int]:
    """What each of so many steps asks for, 0 where it sends nothing."""
    asked = []
    for _ in range(steps):
        book.advance(KEY, (5,), proposed, accepted)
        messages = book.outgoing(0.0)
        asked.append(commit_of(messages).ahead_lengths[0] if messages else 0)
    return asked


def test_where_a_token_costs_what_it_may_save_little_is_asked() -> None:
    book = trusted(make_book())
    book.prices = DraftPrices(10_000.0, 312.0, HIGHEST_PRICE, 0.0)
    opened(book)
    assert isinstance(book.outgoing(0.0)[0].message, DraftOpen)
    tries = sum(each > 0 for each in lengths_over(book, 1000))
    assert tries * HIGHEST_PRICE <= 1000 * SAVED_SHARE + FIRST_SAVED


def test_a_drafter_that_has_stopped_is_soon_asked_ever_more_rarely() -> None:
    book = trusted(make_book())
    book.prices = DraftPrices(10_000.0, 1_250.0, 0.3, 0.0)
    opened(book)
    book.outgoing(0.0)
    assert sum(each > 0 for each in lengths_over(book, 60)[-20:]) <= 1
    assert sum(each > 0 for each in lengths_over(book, 500)) <= 500 * SAVED_SHARE / 0.3 + 2


def test_a_draft_that_the_engine_leaves_out_was_asked_for_in_vain() -> None:
    book = trusted(make_book())
    book.prices = DraftPrices(10_000.0, 1_250.0, 0.3, 0.0)
    opened(book)
    book.outgoing(0.0)
    asked = []
    for _ in range(80):
        book.receive(block(len(book._sessions[KEY].tokens), (7,)), "s", 0.0)
        book.record_use(DraftUse(KEY))
        asked += lengths_over(book, 1)
    assert asked[0] > 1
    assert sum(each > 0 for each in asked[-20:]) <= 1
