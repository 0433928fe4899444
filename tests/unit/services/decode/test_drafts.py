"""Draft bookkeeping of the decode worker: what is asked, what is used, what is given up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.decode.ahead.draft_offers import DraftUse, RoundEnd
from services.decode.drafts import REOPEN_AFTER_TOKENS, DraftBook, Outgoing
from shared.degradation import DegradationLevel
from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.probes import FIRST_AFTER
from shared.errors import ProtocolError
from shared.messages import DraftBlock, DraftClose, DraftCommit, DraftOpen, unpack_ids
from shared.worker.drafts.draft_tree import MAX_BRANCHES, DraftBranch, DraftTree, packed
from shared.worker.drafts.prefix_digest import PrefixDigest
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
    book.outgoing(0.0)
    for _ in range(40):
        book.advance(KEY, (5,), 4, 0)  # never right: drafts are turned off
        if len(messages := book.outgoing(0.0)) == 0:
            break
    told: list[int] = []
    for _ in range(4 * FIRST_AFTER):
        book.advance(KEY, (6,), 0, 0)
        messages = book.outgoing(0.0)
        if messages:
            told.append(len(commit_of(messages).token_ids[0]))
    assert told[1:] == [2 * FIRST_AFTER]


def test_drafts_shrink_as_the_batch_grows() -> None:
    book = make_book(longest=4, batch_tokens=8)
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


def test_nothing_is_asked_where_a_token_costs_what_it_may_save() -> None:
    book = make_book()
    book.prices = DraftPrices(10_000.0, 312.0, HIGHEST_PRICE, 0.0)
    opened(book)
    assert [type(each.message) for each in book.outgoing(0.0)] == [DraftOpen]
    assert lengths_over(book, FIRST_AFTER - 2) == [0] * (FIRST_AFTER - 2)


def test_a_drafter_that_has_stopped_is_soon_asked_ever_more_rarely() -> None:
    book = make_book()
    book.prices = DraftPrices(10_000.0, 1_250.0, 0.3, 0.0)
    opened(book)
    book.outgoing(0.0)
    assert lengths_over(book, 60)[-20:] == [0] * 20
    assert sum(each > 0 for each in lengths_over(book, 8 * FIRST_AFTER)) <= 3


def test_a_draft_that_the_engine_leaves_out_was_asked_for_in_vain() -> None:
    book = make_book()
    book.prices = DraftPrices(10_000.0, 1_250.0, 0.3, 0.0)
    opened(book)
    book.outgoing(0.0)
    for _ in range(60):
        book.receive(block(len(book._sessions[KEY].tokens), (7,)), "s", 0.0)
        book.record_use(DraftUse(KEY))
        (asked,) = lengths_over(book, 1)
    assert asked == 0


def test_a_request_begins_with_what_came_of_the_drafts_for_those_before_it() -> None:
    book = make_book()
    for number in range(6):
        opened(book, request_id=f"r{number}")
        for _ in range(20):
            book.advance(sequence_key(f"r{number}", 1), (5,), 4, 0)
        book.close_draft(sequence_key(f"r{number}", 1))
    opened(book, request_id="new")
    assert [type(each.message) for each in book.outgoing(0.0)] == [DraftOpen]


def test_a_slow_speculator_is_asked_for_what_will_be_decoded_meanwhile() -> None:
    book = make_book(longest=4)
    opened(book)
    (length,) = commit_of(book.outgoing(0.0)).lengths
    book.advance(KEY, (7,), 0, 0)
    book.advance(KEY, (8,), 0, 0)
    book.advance(KEY, (9,), 0, 0)
    book.receive(block(3, (7, 8, 9, 10)), "s", 0.0)
    (proposal,) = book.proposals()
    assert proposal.tree.rest_after((7, 8, 9)) == (10,)
    assert commit_of(book.outgoing(0.0)).lengths == (length + 2,)


# ---- ahead of time ----


def test_a_commit_asks_for_what_may_come_of_the_round_and_names_all_that_is_final() -> None:
    book = make_book(widest=3)
    opened(book)
    book.outgoing(0.0)
    book.advance(KEY, (7, 8), 0, 0)
    commit = commit_of(book.outgoing(0.0))
    (wanted,) = commit.ahead_lengths
    assert (commit.fans, commit.lengths, commit.within_us) == ((3,), (wanted + 1,), 0)
    assert commit.prefix_digests == (PrefixDigest([1, 2, 3, 7, 8]).value,)


def test_who_prepares_nothing_is_asked_for_nothing() -> None:
    book = make_book(widest=0)
    opened(book)
    assert commit_of(book.outgoing(0.0)).fans == (0,)


def test_an_answer_has_as_long_as_a_step_without_its_way_takes() -> None:
    book = make_book(widest=2)
    book.step_us = 100_000
    opened(book)
    assert commit_of(book.outgoing(5.0)).within_us == 90_000
    book.receive(block_ahead(3, (7, 8), took_us=20_000), "s", 5.05)
    book.advance(KEY, (7,), 0, 0)
    assert commit_of(book.outgoing(6.0)).within_us == 60_000
    book.step_us = 30_000
    book.advance(KEY, (7,), 0, 0)
    commit = commit_of(book.outgoing(7.0))
    assert (commit.within_us, commit.fans) == (0, (0,))


def test_a_draft_with_branches_stays_until_the_round_has_ended() -> None:
    book = make_book(widest=2)
    opened(book)
    book.receive(block_ahead(3, (7, 8)), "s", 0.0)
    (proposal,) = book.proposals()
    assert proposal.tree == DraftTree(3, (7, 8), BRANCHES)
    book.receive(block_ahead(3, (7, 8)), "s", 0.0)
    book.advance(KEY, (7, 8, 9), 2, 2)  # the loop hears of the round before it hears of the draft
    assert [each.tree.rest_after((7, 8, 9)) for each in book.proposals()] == [(10, 11)]


def test_branches_for_other_outcomes_are_nobodys_fault() -> None:
    book = make_book(widest=2)
    opened(book)
    asked = book._sessions[KEY].length.next(8)
    book.advance(KEY, (5,), 0, 0)
    book.receive(block_ahead(3, (7, 8)), "s", 0.0)
    assert book.proposals() == []
    book.record_use(DraftUse(KEY, behind=3))
    book.record_use(DraftUse(KEY, ended=RoundEnd.MISSED))
    assert (book.counts.late, book._sessions[KEY].length.next(8)) == (0, asked)


def test_branches_that_come_late_are_asked_for_no_more() -> None:
    book = make_book(widest=2)
    opened(book)
    for _ in range(12):
        book.outgoing(0.0)
        book.record_use(DraftUse(KEY, ended=RoundEnd.LATE))
        book.advance(KEY, (5,), 4, 4)
    assert commit_of(book.outgoing(0.0)).fans == (0,)


def test_rounds_for_which_nothing_was_asked_say_nothing_of_the_speculator() -> None:
    book = make_book(widest=0)
    opened(book)
    book.outgoing(0.0)
    book.record_use(DraftUse(KEY, ended=RoundEnd.LATE))
    assert book._sessions[KEY].fan.in_time == 1.0


def test_the_answer_of_another_speculator_is_not_taken() -> None:
    book = make_book()
    opened(book)
    book.receive(block(3, (7,)), "other", 0.0)
    assert (book.proposals(), book.counts.late) == ([], 1)
    book.receive(block(3, (7,)), "", 0.0)  # on a closed bus nobody says who it is
    assert len(book.proposals()) == 1


def test_a_block_with_too_many_branches_changes_nothing() -> None:
    book = make_book()
    opened(book)
    many = (packed([DraftBranch(0, 1, (2,))] * (MAX_BRANCHES + 1)),)
    with pytest.raises(ProtocolError):
        book.receive(DraftBlock(("r",), (1,), (3,), ((7,),), many), "s", 0.0)
    assert book.proposals() == []
