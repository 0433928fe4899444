"""Token log and session state: order, duplicates, gaps, epochs, and who is needed when."""

from __future__ import annotations

import dataclasses

import pytest

from services.gateway.fleet.routing import RoutingDecision
from services.gateway.scope.session_state import RequestPhase, RowVerdict, SessionState, is_final
from services.gateway.scope.token_log import Arrival, TokenLog
from shared.errors import InvalidRequest, NotFound, Overloaded, TooLarge, Unavailable
from shared.messages import TELL_REPLAY

ROUTE = RoutingDecision("decode-0", "prefill-0", "detokenizer-0", "speculator-0")


def placed(max_tokens: int = 10) -> SessionState:
    state = SessionState(max_tokens, log=TokenLog(5))
    state.begin_epoch(ROUTE)
    state.routed()
    return state


def row(
    state: SessionState, position: int, ids: tuple[int, ...] = (1,), *, epoch: int = 1, finish: str = ""
) -> RowVerdict:
    return state.accept_row(epoch, position, ids, "x" * len(ids), finish)


@pytest.mark.parametrize(
    ("position", "count", "arrival"),
    [
        (8, 1, Arrival.NEXT),
        (8, 0, Arrival.NEXT),
        (9, 1, Arrival.GAP),
        (9, 0, Arrival.GAP),
        (7, 1, Arrival.DUPLICATE),
        (5, 3, Arrival.DUPLICATE),
        (7, 2, Arrival.GAP),
        (0, 1, Arrival.DUPLICATE),
    ],
)
def test_only_what_begins_where_the_log_ends_is_next(position: int, count: int, arrival: Arrival) -> None:
    log = TokenLog(5, [1, 2, 3])
    assert log.arrival(position, count) is arrival


def test_the_log_counts_positions_from_the_prompt_and_characters_of_text() -> None:
    log = TokenLog(5)
    log.append((1, 2), "né")
    log.append((3,), "")
    assert (log.next_position, log.ids, log.emitted_chars) == (8, [1, 2, 3], 2)


def test_rows_in_order_are_relayed() -> None:
    state = placed()
    assert row(state, 5, (1, 2)) is RowVerdict.RELAY
    assert row(state, 7) is RowVerdict.RELAY
    assert (state.log.ids, state.phase) == ([1, 2, 1], "decode")


def test_a_repeated_row_is_a_duplicate_and_changes_nothing() -> None:
    state = placed()
    row(state, 5)
    assert row(state, 5) is RowVerdict.DUPLICATE
    assert (state.log.ids, state.log.emitted_chars) == ([1], 1)


def test_a_row_that_skips_a_position_is_a_gap_and_is_not_logged() -> None:
    state = placed()
    assert row(state, 6) is RowVerdict.GAP
    assert state.log.ids == []


def test_a_stream_that_is_read_once_more_begins_with_the_text_of_its_client() -> None:
    state = placed()
    state.take_over_stream("m", 9, TokenLog(5, [1, 2], taken_over=True, rereads=True), 7)
    assert state.log.told_chars == TELL_REPLAY
    assert row(state, 7, (3,)) is RowVerdict.GAP
    assert row(state, 7, ()) is RowVerdict.REPLAY
    assert (state.log.ids, state.log.told_chars) == ([1, 2], 0)
    assert row(state, 7, (3,)) is RowVerdict.RELAY
    assert (state.log.ids, state.log.told_chars) == ([1, 2, 3], 1)


def test_a_row_of_another_epoch_is_stale() -> None:
    state = placed()
    state.begin_epoch(ROUTE)
    assert row(state, 5, epoch=1) is RowVerdict.STALE
    assert row(state, 5, epoch=3) is RowVerdict.STALE
    assert row(state, 5, epoch=2) is RowVerdict.RELAY


def test_nothing_follows_the_last_row() -> None:
    state = placed()
    row(state, 5, finish="stop")
    assert row(state, 6) is RowVerdict.STALE


def test_nothing_is_taken_after_the_end() -> None:
    state = placed()
    state.end_session()
    assert row(state, 5) is RowVerdict.STALE


def test_a_new_epoch_keeps_the_log_and_forgets_the_holders() -> None:
    state = placed()
    row(state, 5)
    state.holders.add(("decode", "decode-0"))
    assert state.take_holders() == {("decode", "decode-0")}
    assert state.take_holders() == set()
    state.begin_epoch(ROUTE)
    assert (state.epoch, state.log.next_position, state.epoch_tokens) == (2, 6, 0)


@pytest.mark.parametrize(
    ("tokens", "role", "needed"),
    [
        (0, "decode", True),
        (5, "decode", True),
        (5, "detokenizer", True),
        (0, "prefill", True),
        (1, "prefill", True),
        (2, "prefill", False),
        (0, "speculator", False),
        (0, "tokenizer", False),
    ],
)
def test_a_lost_instance_matters_only_while_it_is_needed(tokens: int, role: str, needed: bool) -> None:
    state = placed()
    for position in range(5, 5 + tokens):
        row(state, position)
    assert state.needs(role, f"{role}-0") is needed
    assert not state.needs(role, f"{role}-1")


def test_who_is_asked_in_the_front_half_holds_something_under_the_number_of_the_ask() -> None:
    state = SessionState(1)
    assert state.begin_ask("retriever", "retriever-0") == ("retriever", "retriever-0")
    state.begin_ask("tokenizer", "tokenizer-0")
    assert state.asks == 2
    assert state.take_holders() == {("retriever", "retriever-0"), ("tokenizer", "tokenizer-0")}


def test_a_finished_request_needs_nobody() -> None:
    state = placed()
    row(state, 5, finish="length")
    assert not state.needs("decode", "decode-0")


def test_prefill_is_needed_again_after_a_new_placement() -> None:
    state = placed()
    for position in range(5, 9):
        row(state, position)
    state.begin_epoch(ROUTE)
    assert state.needs("prefill", "prefill-0")


def test_a_request_with_all_its_tokens_is_complete() -> None:
    state = placed(max_tokens=2)
    row(state, 5)
    assert not state.complete
    row(state, 6)
    assert state.complete


@pytest.mark.parametrize(
    ("phase", "hop"),
    [
        ("admit", "gateway"),
        ("retrieve", "retriever"),
        ("tokenize", "tokenizer"),
        ("route", "route"),
        ("prefill", "prefill"),
        ("decode", "decode"),
    ],
)
def test_an_expired_deadline_names_the_hop_of_the_phase(phase: str, hop: str) -> None:
    assert SessionState(1, phase=RequestPhase(phase)).expired().hop == hop


def test_only_what_the_request_itself_causes_is_final() -> None:
    assert all(is_final(error) for error in (InvalidRequest("x"), NotFound("x"), TooLarge("x")))
    assert not any(is_final(error) for error in (Overloaded("x"), Unavailable("x")))


def test_a_successor_is_needed_from_when_it_is_named_until_it_is_dropped() -> None:
    """It may have the request by then."""
    state = placed()
    state.name_successor("decode-1")
    assert state.needs("decode", "decode-1")
    assert ("decode", "decode-1") in state.holders
    assert state.drop_successor() == "decode-1"
    assert not state.needs("decode", "decode-1")


def test_a_new_epoch_has_no_successor() -> None:
    state = placed()
    state.name_successor("decode-1")
    assert state.take_holders() == {("decode", "decode-1")}
    assert state.is_let_go
    state.begin_epoch(ROUTE)
    assert (state.successor, state.is_let_go) == ("", False)


@pytest.mark.parametrize("phase", list(RequestPhase))
@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("position", [6, 7, 8])
@pytest.mark.parametrize("ids", [(), (3,), (3, 4)])
@pytest.mark.parametrize("finish", ["", "stop"])
@pytest.mark.parametrize("rereads", [False, True])
def test_the_short_way_takes_in_what_the_long_way_relays_and_nothing_else(
    phase: RequestPhase, epoch: int, position: int, ids: tuple[int, ...], finish: str, *, rereads: bool
) -> None:
    short, whole = placed(), placed()
    for state in (short, whole):
        row(state, 5, (1, 2))
        state.phase, state.finish, state.log.rereads = phase, finish, rereads
    before = dataclasses.replace(short, log=dataclasses.replace(short.log, ids=list(short.log.ids)))

    taken = short.accept_next(epoch, position, ids, "x" * len(ids))

    if taken:
        assert row(whole, position, ids, epoch=epoch) is RowVerdict.RELAY
        assert short == whole
    else:
        assert short == before
        in_the_middle = ids and phase is RequestPhase.DECODE and not rereads
        assert not (in_the_middle and row(whole, position, ids, epoch=epoch) is RowVerdict.RELAY)
