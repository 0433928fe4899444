"""Draft bookkeeping of the decode worker: what is asked, what is used, what is given up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.decode.draft_length import MIN_RATE, PROBE_AFTER_STEPS, PROBE_TOKENS, DraftLength
from services.decode.drafts import REOPEN_AFTER_TOKENS, DraftBook, Outgoing, still_ahead
from shared.degradation import DegradationLevel
from shared.messages import DraftBlock, DraftClose, DraftCommit, DraftOpen, unpack_ids
from shared.worker.wire import sequence_key
from tests.support.sampling import sampling

KEY = sequence_key("r", 1)


def make_book(longest: int = 4, batch_tokens: int = 64) -> DraftBook:
    return DraftBook("decode-0", longest, batch_tokens)


def opened(
    book: DraftBook, tokens: Sequence[int] = (1, 2, 3), request_id: str = "r", speculator: str = "s"
) -> None:
    book.open_draft(request_id, 1, speculator, tokens, 2, sampling(max_tokens=64))


def block(base: int, ids: Sequence[int], request_id: str = "r") -> DraftBlock:
    return DraftBlock((request_id,), (1,), (base,), (tuple(ids),))


def commit_of(messages: Sequence[Outgoing]) -> DraftCommit:
    commits = [item.message for item in messages if isinstance(item.message, DraftCommit)]
    assert len(commits) == 1
    return commits[0]


def test_a_new_session_is_opened_and_asks_for_its_first_draft_at_once() -> None:
    book = make_book()
    opened(book)
    first, second = book.outgoing()
    assert isinstance(first.message, DraftOpen)
    assert (first.speculator, first.request_id, first.epoch) == ("s", "r", 1)
    assert unpack_ids(first.message.token_ids) == [1, 2, 3]
    assert isinstance(second.message, DraftCommit)
    assert (second.message.bases, second.message.token_ids) == ((3,), ((),))
    assert second.message.lengths[0] > 0


def test_a_step_commits_exactly_its_new_tokens() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    book.advance(KEY, (7, 8), 0, 0)
    commit = commit_of(book.outgoing())
    assert (commit.bases, commit.token_ids) == ((3,), ((7, 8),))


def test_rows_of_one_speculator_share_one_commit() -> None:
    book = make_book()
    opened(book, request_id="a")
    opened(book, request_id="b")
    assert commit_of(book.outgoing()).request_ids == ("a", "b")


def test_nothing_is_sent_for_a_sequence_that_did_not_advance() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    assert book.outgoing() == []


def test_without_a_speculator_or_with_length_zero_there_is_no_session() -> None:
    book = make_book()
    opened(book, speculator="")
    assert len(book) == 0
    off = make_book(longest=0)
    opened(off)
    assert off.outgoing() == []


@pytest.mark.parametrize(
    ("tokens", "base", "ids", "rest"),
    [
        ((1, 2, 3), 3, (7, 8), (7, 8)),
        ((1, 2, 3, 7), 3, (7, 8), (8,)),
        ((1, 2, 3, 7, 8), 3, (7, 8, 9), (9,)),
        ((1, 2, 3, 9), 3, (7, 8), ()),
        ((1, 2, 3, 7, 8), 3, (7, 8), ()),
        ((1, 2, 3), 4, (7, 8), ()),
    ],
)
def test_a_block_is_used_as_far_as_it_is_ahead_and_was_right(
    tokens: tuple[int, ...], base: int, ids: tuple[int, ...], rest: tuple[int, ...]
) -> None:
    assert still_ahead(tokens, base, ids) == rest


def test_a_late_block_is_shifted_and_its_rest_proposed() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    book.receive(block(3, (7, 8, 9)))
    book.advance(KEY, (7,), 0, 0)
    (proposal,) = book.proposals()
    assert (proposal.key, proposal.base, proposal.token_ids) == (KEY, 4, (8, 9))
    assert book.counts.late == 0


def test_a_block_that_guessed_wrong_is_dropped_and_counted_late() -> None:
    book = make_book()
    opened(book)
    book.receive(block(3, (7, 8, 9)))
    book.advance(KEY, (5,), 0, 0)
    assert book.proposals() == []
    assert book.counts.late == 3


def test_a_block_is_proposed_once() -> None:
    book = make_book()
    opened(book)
    book.receive(block(3, (7,)))
    assert len(book.proposals()) == 1
    assert book.proposals() == []


def test_a_newer_answer_replaces_an_older_one_and_not_the_reverse() -> None:
    book = make_book()
    opened(book)
    book.advance(KEY, (7,), 0, 0)
    book.receive(block(4, (8,)))
    book.receive(block(3, (7, 9)))
    (proposal,) = book.proposals()
    assert proposal.token_ids == (8,)


def test_an_answer_for_a_finished_sequence_is_counted_late() -> None:
    book = make_book()
    book.receive(block(3, (7, 8)))
    assert book.counts.late == 2


def test_a_closed_session_is_closed_at_the_speculator_once() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    book.close_draft(KEY)
    (message,) = book.outgoing()
    assert message.message == DraftClose(("r",), (1,))
    assert book.outgoing() == []
    assert book.held() == []


def test_a_session_the_speculator_never_heard_of_is_closed_silently() -> None:
    book = make_book()
    opened(book)
    book.close_draft(KEY)
    assert book.outgoing() == []


def test_a_lost_speculator_leaves_its_requests_without_drafts() -> None:
    book = make_book()
    opened(book, request_id="a", speculator="s")
    opened(book, request_id="b", speculator="t")
    book.lose("s")
    assert book.held() == [("b", 1)]
    assert {item.speculator for item in book.outgoing()} == {"t"}


def test_a_resync_opens_the_session_again_with_all_its_tokens() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    book.resync(("r",), (1,))
    book.advance(KEY, tuple(range(10, 10 + REOPEN_AFTER_TOKENS)), 0, 0)
    first, second = book.outgoing()
    assert isinstance(first.message, DraftOpen)
    assert len(unpack_ids(first.message.token_ids)) == 3 + REOPEN_AFTER_TOKENS
    assert isinstance(second.message, DraftCommit)
    assert second.message.token_ids == ((),)


def test_a_speculator_that_keeps_forgetting_is_asked_ever_more_rarely() -> None:
    book = make_book()
    opened(book)
    opens = 0
    for _ in range(200):
        messages = book.outgoing()
        opens += sum(isinstance(item.message, DraftOpen) for item in messages)
        book.resync(("r",), (1,))
        book.advance(KEY, (5,), 0, 0)
    assert opens == 4  # at 0, 16, 48 and 112 tokens


def test_tokens_that_were_not_asked_drafts_for_go_with_the_next_commit() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    for _ in range(40):
        book.advance(KEY, (5,), 4, 0)  # never right: drafts are turned off
        if len(messages := book.outgoing()) == 0:
            break
    told = 0
    for _ in range(PROBE_AFTER_STEPS + 1):
        book.advance(KEY, (6,), 0, 0)
        messages = book.outgoing()
        if messages:
            told = len(commit_of(messages).token_ids[0])
            break
    assert told >= PROBE_AFTER_STEPS - 1


def test_drafts_shrink_as_the_batch_grows() -> None:
    book = make_book(longest=4, batch_tokens=8)
    for index in range(8):
        opened(book, request_id=f"r{index}")
    assert commit_of(book.outgoing()).lengths == (2,) * 8  # one, and one for the step that runs
    opened(book, request_id="one-too-many")
    for index in range(8):
        book.advance(sequence_key(f"r{index}", 1), (5,), 0, 0)
    assert [item for item in book.outgoing() if isinstance(item.message, DraftCommit)] == []


def test_under_pressure_drafts_are_half_as_long() -> None:
    book = make_book(longest=8)
    opened(book)
    (whole,) = commit_of(book.outgoing()).lengths
    book.advance(KEY, (7,), 8, 8)
    book.level = DegradationLevel.SHORT_DRAFTS
    (half,) = commit_of(book.outgoing()).lengths
    assert (whole, half) == (6, 5)  # both with one for the step that runs
    short = make_book(longest=1)
    short.level = DegradationLevel.SHORT_DRAFTS
    opened(short)
    assert commit_of(short.outgoing()).lengths == (2,)


@pytest.mark.parametrize("level", [level for level in DegradationLevel if level >= 2])
def test_under_more_pressure_nothing_is_drafted_and_later_nothing_is_missing(level: DegradationLevel) -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    book.level = level
    opened(book, request_id="new")
    book.advance(KEY, (7,), 0, 0)
    assert book.outgoing() == []
    opened(book, request_id="gone")
    book.close_draft(sequence_key("gone", 1))
    book.advance(KEY, (8,), 0, 0)
    book.level = DegradationLevel.NONE
    opened_late, commit = book.outgoing()
    assert opened_late.request_id == "new"
    assert isinstance(commit.message, DraftCommit)
    assert (commit.message.bases, commit.message.token_ids) == ((3, 3), ((7, 8), ()))


def test_sessions_are_closed_at_every_level() -> None:
    book = make_book()
    opened(book)
    book.outgoing()
    book.level = DegradationLevel.NO_DRAFTS
    book.close_draft(KEY)
    assert [type(item.message) for item in book.outgoing()] == [DraftClose]


def test_draft_length_follows_acceptance() -> None:
    length = DraftLength(4)
    for _ in range(20):
        length.observe(4, 4)
    assert length.next(8) == 4
    for _ in range(3):
        length.observe(4, 0)
    assert 1 <= length.next(8) < 4


def test_useless_drafts_are_turned_off_and_probed_now_and_then() -> None:
    length = DraftLength(4)
    while length.rate >= MIN_RATE:
        length.observe(4, 0)
    asked = [length.next(8) for _ in range(2 * PROBE_AFTER_STEPS)]
    assert asked.count(0) == len(asked) - 2
    assert asked[PROBE_AFTER_STEPS - 1] == PROBE_TOKENS


def test_a_slow_speculator_is_asked_for_what_will_be_decoded_meanwhile() -> None:
    book = make_book(longest=4)
    opened(book)
    (length,) = commit_of(book.outgoing()).lengths
    book.advance(KEY, (7,), 0, 0)
    book.advance(KEY, (8,), 0, 0)
    book.advance(KEY, (9,), 0, 0)
    book.receive(block(3, (7, 8, 9, 10)))
    assert book.proposals()[0].token_ids == (10,)
    assert commit_of(book.outgoing()).lengths == (length + 2,)
