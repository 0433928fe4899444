"""Who is let in at the decode worker, and what must leave."""

from __future__ import annotations

import dataclasses

import pytest

from services.decode.book import RowBook
from services.decode.output import token_row
from services.decode.row import Phase, Row, read_row
from shared.deadline import Deadline
from shared.engine.results import TokenOutput
from shared.errors import Cancelled, DeadlineExpired, InvalidRequest, Overloaded, ProtocolError, StaleEpoch
from shared.kv.chunk import MAX_EPOCH
from shared.messages import Envelope, Reserve, Sampling, pack_ids

SAMPLING = Sampling(0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, (), 0, 16, 0, (), False, -1)


def soon() -> Deadline:
    return Deadline.after(60.0)


def row(request_id: str = "r", epoch: int = 1, tokens: int = 16, max_tokens: int = 16) -> Row:
    how = dataclasses.replace(SAMPLING, max_tokens=max_tokens)
    reserve = Reserve(pack_ids(range(tokens)), tokens, b"", how, "g", "d", "p", "", 0)
    return read_row(Envelope(request_id, epoch), reserve, soon(), vocab_size=1000, max_model_len=512)


def book(max_rows: int = 4, kv_blocks: int = 100) -> RowBook:
    return RowBook(max_rows=max_rows, kv_blocks=kv_blocks, is_alive=lambda _: True)


def test_a_row_is_counted_as_large_as_it_may_grow() -> None:
    rows = book()
    rows.add(row(tokens=17, max_tokens=40))  # 57 tokens: 4 blocks
    assert rows.free_blocks == 96


def test_the_context_limit_bounds_what_a_row_may_grow_to() -> None:
    assert row(max_tokens=10**6).worst_blocks == 512 // 16


def test_rows_are_refused_when_all_of_them_grown_would_not_fit() -> None:
    rows = book(kv_blocks=5)
    rows.add(row("a"))
    rows.add(row("b"))
    with pytest.raises(Overloaded, match="blocks") as refused:
        rows.add(row("c"))
    assert refused.value.retry_after_ms > 0
    rows.remove(row("a").key)
    rows.add(row("c"))


def test_rows_are_refused_when_all_seats_are_taken() -> None:
    rows = book(max_rows=1)
    rows.add(row("a"))
    with pytest.raises(Overloaded, match="sequences"):
        rows.add(row("b"))


def test_a_cancelled_epoch_cannot_come_in() -> None:
    rows = book()
    rows.tombstones.add("r", 2, "cancelled")
    with pytest.raises(Cancelled):
        rows.check_epoch("r", 2)
    rows.check_epoch("r", 3)


def test_an_epoch_below_the_one_held_is_stale() -> None:
    rows = book()
    rows.add(row("r", epoch=3))
    with pytest.raises(StaleEpoch):
        rows.check_epoch("r", 2)


def test_a_row_of_a_silent_gateway_is_abandoned_after_its_lease() -> None:
    rows = RowBook(max_rows=4, kv_blocks=100, is_alive=lambda _: False)
    rows.add(row())
    assert rows.abandoned() == []  # a lease begins when it is granted


def test_an_expired_row_is_found_once_it_is_stopping_no_more() -> None:
    rows = book()
    late = dataclasses.replace(row(), deadline=Deadline.after(-1.0))
    rows.add(late)
    assert rows.expired() == [late]
    late.phase = Phase.STOPPING
    assert rows.expired() == []


@pytest.mark.parametrize("envelope", [Envelope("", 1), Envelope("r", 0), Envelope("r", MAX_EPOCH + 1)])
def test_a_reservation_needs_a_request_and_an_epoch(envelope: Envelope) -> None:
    reserve = Reserve(pack_ids([1]), 1, b"", SAMPLING, "g", "d", "p", "", 0)
    with pytest.raises(ProtocolError):
        read_row(envelope, reserve, soon(), vocab_size=1000, max_model_len=512)


def test_a_reservation_needs_a_deadline_that_has_not_passed() -> None:
    reserve = Reserve(pack_ids([1]), 1, b"", SAMPLING, "g", "d", "p", "", 0)
    with pytest.raises(ProtocolError):
        read_row(Envelope("r", 1), reserve, None, vocab_size=1000, max_model_len=512)
    with pytest.raises(DeadlineExpired):
        read_row(Envelope("r", 1), reserve, Deadline.after(-1), vocab_size=1000, max_model_len=512)


def test_a_reservation_of_a_priority_that_does_not_exist_is_refused() -> None:
    reserve = Reserve(pack_ids([1]), 1, b"", SAMPLING, "g", "d", "p", "", 3)
    with pytest.raises(InvalidRequest, match="priority 3"):
        read_row(Envelope("r", 1), reserve, soon(), vocab_size=1000, max_model_len=512)


def test_the_first_output_carries_the_way_here_and_the_last_the_drafts() -> None:
    live = row()
    live.transfer_us, live.queue_us = 5, 7
    first = token_row(live, TokenOutput(live.key, 17, (1, 2), (), None, 1, 3))
    middle = token_row(live, TokenOutput(live.key, 19, (3,), (), None, 0, 2))
    last = token_row(live, TokenOutput(live.key, 20, (4,), (), "stop", 0, 0))
    assert [(mark.phase, mark.duration_us) for mark in first.marks] == [
        ("kv.transfer", 5),
        ("decode.queue", 7),
    ]
    assert middle.marks == ()
    assert [(mark.phase, mark.duration_us) for mark in last.marks] == [
        ("count:draft_proposed", 5),
        ("count:draft_accepted", 1),
    ]
