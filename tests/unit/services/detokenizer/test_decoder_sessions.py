"""Decoder sessions: order, epochs, replay, stops, leases, and what is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.detokenizer.config import DetokenizerConfig
from services.detokenizer.decoder_session import MAX_PROMPT_TAIL_TOKENS, MAX_ROWS_AHEAD, MAX_WORKERS
from services.detokenizer.decoder_sessions import DecodedOutput, DecoderSessions
from shared.actor.lease import LEASE_S
from shared.deadline import Deadline
from shared.errors import Cancelled, DeadlineExpired, InvalidRequest, NotFound, Overloaded, StaleEpoch
from shared.messages import ALL_EMITTED, TELL_REPLAY, CancelAck, Mark, Open, Tokens, pack_ids
from shared.sampling.parameters import TokenLogprob
from tests.support.clock import FakeClock
from tests.support.metric import value
from tests.support.tokenizer_kinds import library_tokenizer, text_tokenizer

GATEWAY = "gateway-0"
REQUEST = "gateway-0.00000000000a"
OTHER = "gateway-0.00000000000b"
KIND = "byte_level"
IDS = tuple(library_tokenizer(KIND).encode("Quiet water runs deep.").ids)
TEXT = "Quiet water runs deep."
EOS = 2


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sessions(clock: FakeClock) -> DecoderSessions:
    config = DetokenizerConfig(max_sessions=2, max_early_rows=8, open_grace_ms=1000, gap_grace_ms=100)
    return DecoderSessions(text_tokenizer(KIND), config, clock)


def opening(
    *,
    tail: tuple[int, ...] = (),
    replay: tuple[int, ...] = (),
    emitted: int = 0,
    at: int = 0,
    stop: tuple[str, ...] = (),
    prefill: str = "",
    decode: str = "",
) -> Open:
    return Open(GATEWAY, pack_ids(tail), pack_ids(replay), emitted, at, stop, prefill, decode)


def step(
    ids: tuple[int, ...], at: int, *, finish: str = "", epoch: int = 1, request: str = REQUEST
) -> Tokens:
    return Tokens((request,), (epoch,), (at,), (ids,), (finish,), ((),), ((),))


def text_of(*outputs: DecodedOutput) -> str:
    return "".join(row.text for output in outputs for row in output.texts)


def assert_empty(sessions: DecoderSessions) -> None:
    assert list(sessions.held()) == []


def test_tokens_become_text_with_their_ids_and_positions(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(at=5), None)
    (row,) = sessions.decode_tokens(step(IDS[:2], 5)).texts
    assert (row.gateway, row.request_id, row.epoch, row.position) == (GATEWAY, REQUEST, 1, 5)
    assert row.token_ids == IDS[:2]
    assert row.text == text_tokenizer(KIND).decode(IDS[:2])


@pytest.mark.parametrize("shown", [True, False])
def test_a_special_token_is_text_where_it_is_to_be_shown(sessions: DecoderSessions, shown: bool) -> None:
    special = text_tokenizer(KIND).special_ids_of(("<s>",))["<s>"]
    opened = replace(opening(), shown_ids=(special,) if shown else ())
    sessions.open_decoder(REQUEST, 1, opened, None)
    text = text_of(sessions.decode_tokens(step((*IDS[:1], special), 0)))
    assert text == text_tokenizer(KIND).decode(IDS[:1]) + ("<s>" if shown else "")


def test_a_finished_request_is_given_back_and_its_late_tokens_are_counted(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    (row,) = sessions.decode_tokens(step((*IDS, EOS), 0, finish="stop")).texts
    assert (row.text, row.finish) == (TEXT, "stop")
    assert_empty(sessions)
    before = value("penstock_stale_messages_total")
    assert sessions.decode_tokens(step(IDS, len(IDS) + 1)) == DecodedOutput()
    assert value("penstock_stale_messages_total") == before + 1


def test_an_incomplete_character_at_the_end_is_shown_as_one_replacement(sessions: DecoderSessions) -> None:
    ids = tuple(library_tokenizer(KIND).encode("a京").ids)[:-1]
    sessions.open_decoder(REQUEST, 1, opening(), None)
    (row,) = sessions.decode_tokens(step(ids, 0, finish="length")).texts
    assert row.text == text_tokenizer(KIND).decode(ids)
    assert row.text.endswith("\ufffd")


def test_tokens_of_another_worker_than_those_it_is_placed_on_are_dropped_and_counted(
    sessions: DecoderSessions,
) -> None:
    before = value("penstock_dropped_messages_total", reason="foreign_tokens")
    assert sessions.decode_tokens(step((IDS[3],), 0), "decode-1") == DecodedOutput()  # before its Open too
    assert (
        sessions.open_decoder(REQUEST, 1, opening(prefill="prefill-0", decode="decode-0"), None).texts == []
    )
    outputs = [
        sessions.decode_tokens(step(ids, at), sender)
        for sender, ids, at in (
            ("decode-1", (IDS[3],), 0),
            ("prefill-0", IDS[:1], 0),
            ("decode-1", (IDS[3],), 1),
            ("decode-0", IDS[1:2], 1),
        )
    ]
    assert [row.token_ids for output in outputs for row in output.texts] == [IDS[:1], IDS[1:2]]
    assert value("penstock_dropped_messages_total", reason="foreign_tokens") == before + 3


def test_a_plain_row_is_what_the_same_row_is_with_more_to_tell(sessions: DecoderSessions) -> None:
    """Rows of one token go a shorter way than those of which something else is told."""
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.open_decoder(OTHER, 1, opening(), None)
    told = tuple(TokenLogprob(token_id, -1.0, ()) for token_id in IDS)
    for at, token_id in enumerate(IDS):
        (plain,) = sessions.decode_tokens(step((token_id,), at)).texts
        more = replace(step((token_id,), at, request=OTHER), logprobs=((told[at],),))
        (other,) = sessions.decode_tokens(more).texts
        assert plain._replace(request_id=OTHER, logprobs=(told[at],), marks=other.marks) == other


def test_a_plain_row_that_is_behind_or_of_another_epoch_is_no_next_one(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 2, opening(), None)
    texts = [sessions.decode_tokens(step((token_id,), at, epoch=2)) for at, token_id in enumerate(IDS[:3])]
    assert sessions.decode_tokens(step((IDS[2],), 2, epoch=2)).texts == []
    assert sessions.decode_tokens(step((IDS[3],), 3, epoch=1)).texts == []
    assert text_of(*texts) == text_tokenizer(KIND).decode(IDS[:3])


def test_a_plain_row_of_whoever_has_cancelled_it_is_refused(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.decode_tokens(step((IDS[0],), 0), "decode-0")
    sessions.cancel_decoder(REQUEST, 1, "mistaken", "decode-0")
    assert sessions.decode_tokens(step((IDS[1],), 1), "decode-0").texts == []
    (row,) = sessions.decode_tokens(step((IDS[1],), 1), "decode-1").texts
    assert row.token_ids == (IDS[1],)


def test_a_foreign_worker_cannot_break_a_request_with_malformed_tokens(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(prefill="prefill-0", decode="decode-0"), None)
    assert sessions.decode_tokens(step((-5,), 0), "decode-1") == DecodedOutput()
    assert len(sessions) == 1


def test_rows_of_several_requests_keep_their_own_text(sessions: DecoderSessions) -> None:
    for request in (REQUEST, OTHER):
        sessions.open_decoder(request, 1, opening(), None)
    for index, token_id in enumerate(IDS):
        both = Tokens(
            (REQUEST, OTHER), (1, 1), (index,) * 2, ((token_id,),) * 2, ("", ""), ((), ()), ((), ())
        )
        rows = sessions.decode_tokens(both).texts
        assert [row.request_id for row in rows] == [REQUEST, OTHER]
        assert rows[0].text == rows[1].text


# ---- order --------------------------------------------------------------------------------------


def test_tokens_seen_before_are_dropped_and_counted(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    first = sessions.decode_tokens(step(IDS[:4], 0))
    before = value("penstock_dropped_messages_total", reason="duplicate_tokens")
    assert sessions.decode_tokens(step(IDS[:4], 0)) == DecodedOutput()
    overlapping = sessions.decode_tokens(step(IDS[2:], 2, finish="length"))
    assert text_of(first, overlapping) == TEXT
    assert overlapping.texts[0].position == 4
    assert value("penstock_dropped_messages_total", reason="duplicate_tokens") == before + 6


def test_a_failure_comes_behind_the_text_that_waited_for_a_stop_string(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(stop=(TEXT + "!",)), None)
    held = sessions.decode_tokens(step(IDS, 0))
    failed = sessions.decode_tokens(step((), len(IDS), finish="error"))
    assert text_of(held) == ""
    assert text_of(failed) == TEXT
    assert failed.texts[-1].finish == "error"
    assert_empty(sessions)


def test_a_finish_that_comes_with_tokens_seen_before_counts(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.decode_tokens(step(IDS, 0))
    (row,) = sessions.decode_tokens(step(IDS[-1:], len(IDS) - 1, finish="length")).texts
    assert (row.token_ids, row.finish) == ((), "length")
    assert_empty(sessions)


def test_rows_that_overtook_each_other_are_put_in_order(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    assert sessions.decode_tokens(step(IDS[4:], 4, finish="length")) == DecodedOutput()
    assert sessions.decode_tokens(step(IDS[2:4], 2)) == DecodedOutput()
    output = sessions.decode_tokens(step(IDS[:2], 0))
    assert [row.position for row in output.texts] == [0, 2, 4]
    assert text_of(output) == TEXT
    assert_empty(sessions)


def test_a_gap_that_is_not_closed_in_time_is_lost(sessions: DecoderSessions, clock: FakeClock) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.decode_tokens(step(IDS[2:4], 2))
    clock.advance(0.09)
    assert sessions.tick() == DecodedOutput()
    clock.advance(0.02)
    (lost,) = sessions.tick().lost
    assert (lost.gateway, lost.request_id, lost.epoch, lost.lost.code) == (GATEWAY, REQUEST, 1, "gap")
    assert_empty(sessions)


def test_a_closed_gap_is_forgotten(sessions: DecoderSessions, clock: FakeClock) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.decode_tokens(step(IDS[2:4], 2))
    sessions.decode_tokens(step(IDS[:2], 0))
    clock.advance(1.0)
    assert sessions.tick() == DecodedOutput()


def test_too_many_rows_before_their_turn_are_a_gap_at_once(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    for position in range(1, MAX_ROWS_AHEAD + 1):
        assert sessions.decode_tokens(step(IDS[:1], position)) == DecodedOutput()
    (lost,) = sessions.decode_tokens(step(IDS[:1], MAX_ROWS_AHEAD + 1)).lost
    assert lost.lost.code == "gap"
    assert_empty(sessions)


# ---- epochs, cancel -----------------------------------------------------------------------------


def test_a_later_epoch_replaces_the_decoder_and_old_tokens_are_counted(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.decode_tokens(step(IDS[:3], 0))
    sessions.open_decoder(REQUEST, 2, opening(), None)
    before = value("penstock_stale_messages_total")
    assert sessions.decode_tokens(step(IDS[3:], 3, epoch=1)) == DecodedOutput()
    assert value("penstock_stale_messages_total") == before + 1
    assert text_of(sessions.decode_tokens(step(IDS, 0, epoch=2, finish="length"))) == TEXT


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_open_of_an_epoch_that_is_not_newer_is_refused(sessions: DecoderSessions, epoch: int) -> None:
    sessions.open_decoder(REQUEST, 2, opening(), None)
    with pytest.raises(StaleEpoch):
        sessions.open_decoder(REQUEST, epoch, opening(), None)


def test_cancel_gives_the_decoder_back(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    ack = sessions.cancel_decoder(REQUEST, 1, "cancelled")
    assert (ack.held, ack.phase) == (True, "detokenizing")
    assert_empty(sessions)
    assert sessions.decode_tokens(step(IDS, 0)) == DecodedOutput()


def test_cancel_of_an_old_epoch_leaves_the_new_one(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 2, opening(), None)
    assert not sessions.cancel_decoder(REQUEST, 1, "replaced").held
    assert text_of(sessions.decode_tokens(step(IDS, 0, epoch=2))) == TEXT


def test_a_cancel_that_overtakes_its_open_wins(sessions: DecoderSessions) -> None:
    assert not sessions.cancel_decoder(REQUEST, 1, "expired").held
    with pytest.raises(Cancelled, match="expired"):
        sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.open_decoder(REQUEST, 2, opening(), None)


def test_cancel_takes_tokens_that_wait_for_their_open(sessions: DecoderSessions) -> None:
    sessions.decode_tokens(step(IDS, 0))
    ack = sessions.cancel_decoder(REQUEST, 1, "cancelled")
    assert (ack.held, ack.phase) == (True, "queued")
    assert_empty(sessions)


# ---- before the open ----------------------------------------------------------------------------


def test_tokens_may_overtake_their_open(sessions: DecoderSessions) -> None:
    assert sessions.decode_tokens(step(IDS[:3], 0)) == DecodedOutput()
    output = sessions.open_decoder(REQUEST, 1, opening(), None)
    assert text_of(output, sessions.decode_tokens(step(IDS[3:], 3))) == TEXT


def test_tokens_of_the_next_epoch_wait_for_its_open(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    assert sessions.decode_tokens(step(IDS, 0, epoch=2)) == DecodedOutput()
    assert text_of(sessions.open_decoder(REQUEST, 2, opening(), None)) == TEXT


def test_tokens_nobody_opened_for_are_reported_to_the_gateway_of_their_id(
    sessions: DecoderSessions, clock: FakeClock
) -> None:
    sessions.decode_tokens(step(IDS[:1], 0))
    sessions.decode_tokens(step(IDS[1:2], 1))
    clock.advance(1.01)
    (lost,) = sessions.tick().lost
    assert (lost.gateway, lost.request_id, lost.epoch, lost.lost.code) == (GATEWAY, REQUEST, 1, "unknown")
    assert_empty(sessions)
    assert sessions.decode_tokens(step(IDS[2:3], 2)) == DecodedOutput()
    assert_empty(sessions)


def test_the_oldest_waiting_request_makes_room(sessions: DecoderSessions) -> None:
    requests = [f"gateway-{number}.0123456789ab" for number in range(9)]
    outputs = [sessions.decode_tokens(step(IDS[:1], 0, request=request)) for request in requests]
    assert [lost.request_id for output in outputs for lost in output.lost] == [requests[0]]
    assert sum(held.count for held in sessions.held()) == 8


def test_an_id_without_a_gateway_is_dropped_and_counted(sessions: DecoderSessions, clock: FakeClock) -> None:
    sessions.decode_tokens(step(IDS[:1], 0, request="nobody"))
    before = value("penstock_dropped_messages_total", reason="tokens_unknown")
    clock.advance(2.0)
    assert sessions.tick() == DecodedOutput()
    assert value("penstock_dropped_messages_total", reason="tokens_unknown") == before + 1
    assert_empty(sessions)


def test_tokens_of_a_later_epoch_end_a_decoder_only_when_its_own_workers_send_them(
    sessions: DecoderSessions, clock: FakeClock
) -> None:
    sessions.open_decoder(REQUEST, 1, opening(prefill="prefill-0", decode="decode-0"), None)
    before = value("penstock_dropped_messages_total", reason="foreign_tokens")
    sessions.decode_tokens(step(IDS, 0, epoch=7), "decode-1")
    clock.advance(1.01)
    assert sessions.tick() == DecodedOutput()
    assert sessions.decode_tokens(step((-5,), 0, epoch=8), "decode-1") == DecodedOutput()  # malformed
    assert len(sessions) == 1
    assert value("penstock_dropped_messages_total", reason="foreign_tokens") == before + len(IDS) + 1
    sessions.decode_tokens(step(IDS, 0, epoch=2), "decode-0")
    clock.advance(1.01)
    assert [lost.lost.code for lost in sessions.tick().lost] == ["unknown"]
    assert len(sessions) == 0


def test_tokens_of_a_stranger_do_not_keep_a_later_epoch_from_being_opened(
    sessions: DecoderSessions, clock: FakeClock
) -> None:
    for epoch in (1, 9):
        sessions.decode_tokens(step((-5,), 0, epoch=epoch), "decode-1")
        clock.advance(1.01)
        sessions.tick()
    sessions.open_decoder(REQUEST, 2, opening(prefill="prefill-0", decode="decode-0"), None)
    assert text_of(sessions.decode_tokens(step(IDS, 0, epoch=2), "decode-0")) == TEXT


# ---- who may say so -----------------------------------------------------------------------------


def test_a_gateway_cannot_cancel_the_decoder_of_another(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    before = value("penstock_dropped_messages_total", reason="foreign_cancel")
    assert sessions.cancel_decoder(REQUEST, 9, "cancelled", "gateway-1") == CancelAck(held=False, phase="")
    assert value("penstock_dropped_messages_total", reason="foreign_cancel") == before + 1
    assert text_of(sessions.decode_tokens(step(IDS, 0))) == TEXT
    assert sessions.cancel_decoder(REQUEST, 1, "cancelled", GATEWAY).held


def test_a_cancel_of_another_gateway_that_comes_first_neither_refuses_nor_drops_anything(
    sessions: DecoderSessions,
) -> None:
    sessions.decode_tokens(step(IDS, 0))  # waits for its Open
    assert not sessions.cancel_decoder(REQUEST, 1, "cancelled", "gateway-1").held
    assert text_of(sessions.open_decoder(REQUEST, 1, opening(), None)) == TEXT


def test_a_gateway_cannot_open_the_request_of_another_anew(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    with pytest.raises(InvalidRequest, match="another gateway"):
        sessions.open_decoder(REQUEST, 2, replace(opening(), gateway="gateway-1"), None)
    assert text_of(sessions.decode_tokens(step(IDS, 0))) == TEXT


# ---- replay -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(IDS)))
def test_a_replayed_request_goes_on_where_its_text_ended(sessions: DecoderSessions, cut: int) -> None:
    emitted = text_tokenizer(KIND).decode(IDS[:cut])
    sessions.open_decoder(REQUEST, 2, opening(replay=IDS[:cut], emitted=len(emitted), at=cut), None)
    output = sessions.decode_tokens(step(IDS[cut:], cut, epoch=2, finish="length"))
    assert emitted + text_of(output) == TEXT


@pytest.mark.parametrize("cut", range(1, len(IDS)))
def test_a_gateway_that_took_a_stream_over_gets_what_follows_the_replayed_tokens(
    sessions: DecoderSessions, cut: int
) -> None:
    sessions.open_decoder(REQUEST, 1, opening(stop=("never",)), None)
    before = text_of(sessions.decode_tokens(step(IDS[:cut], 0)))
    opened = opening(replay=IDS[:cut], emitted=ALL_EMITTED, at=cut, stop=("never",))
    sessions.open_decoder("another", 1, opened, None)
    after = sessions.decode_tokens(replace(step(IDS[cut:], cut, finish="length"), request_ids=("another",)))
    assert before + text_of(after) == TEXT


@pytest.mark.parametrize("cut", range(len(IDS)))
@pytest.mark.parametrize("stop", [(), ("runs shallow",)])
def test_a_gateway_that_reads_the_text_once_more_gets_that_of_the_replay_at_once(
    sessions: DecoderSessions, cut: int, stop: tuple[str, ...]
) -> None:
    sessions.open_decoder(REQUEST, 1, opening(stop=stop), None)
    before = text_of(sessions.decode_tokens(step(IDS[:cut], 0)))
    opened = opening(replay=IDS[:cut], emitted=TELL_REPLAY, at=cut, stop=stop)
    (told,) = sessions.open_decoder("another", 1, opened, None).texts
    assert (told.text, told.position, told.token_ids, told.finish) == (before, cut, (), "")
    after = sessions.decode_tokens(replace(step(IDS[cut:], cut, finish="length"), request_ids=("another",)))
    assert before + text_of(after) == TEXT


def test_text_of_the_replay_that_was_not_sent_comes_with_the_next_tokens(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 2, opening(replay=IDS[:3], emitted=2, at=3), None)
    output = sessions.decode_tokens(step(IDS[3:], 3, epoch=2, finish="length"))
    assert text_of(output) == TEXT[2:]


def test_a_stop_string_in_the_replay_ends_the_request_at_once(sessions: DecoderSessions) -> None:
    output = sessions.open_decoder(
        REQUEST, 2, opening(replay=IDS, emitted=2, at=len(IDS), stop=("runs",)), None
    )
    (row,) = output.texts
    assert (row.text, row.finish, row.token_ids) == ("iet water ", "stop_string", ())
    assert_empty(sessions)


# ---- stops --------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, len(IDS)])
def test_a_stop_string_cuts_exactly_and_later_tokens_are_counted(
    sessions: DecoderSessions, chunk: int
) -> None:
    sessions.open_decoder(REQUEST, 1, opening(stop=("r ru",)), None)
    before = value("penstock_dropped_messages_total", reason="tokens_after_stop")
    outputs = [sessions.decode_tokens(step(IDS[at : at + chunk], at)) for at in range(0, len(IDS), chunk)]
    rows = [row for output in outputs for row in output.texts]
    assert text_of(*outputs) == "Quiet wate"
    assert [row.finish for row in rows if row.finish] == ["stop_string"]
    assert_empty(sessions)
    sent = sum(len(row.token_ids) for row in rows)
    assert "r ru" in text_tokenizer(KIND).decode(IDS[:sent])
    assert "r ru" not in text_tokenizer(KIND).decode(IDS[: sent - 1])
    if chunk == len(IDS):
        dropped = value("penstock_dropped_messages_total", reason="tokens_after_stop") - before
        assert dropped == len(IDS) - sent


@pytest.mark.parametrize("chunk", [1, 2, len(IDS)])
def test_a_pattern_ends_a_request_as_a_stop_string_does(sessions: DecoderSessions, chunk: int) -> None:
    opened = replace(opening(), stop_regex=(r"\sr\w+s",))
    sessions.open_decoder(REQUEST, 1, opened, None)
    outputs = [sessions.decode_tokens(step(IDS[at : at + chunk], at)) for at in range(0, len(IDS), chunk)]
    assert text_of(*outputs) == "Quiet water"
    assert [row.finish for output in outputs for row in output.texts if row.finish] == ["stop_string"]
    assert_empty(sessions)


@pytest.mark.parametrize("cut", range(1, len(IDS)))
def test_a_pattern_is_followed_through_the_replay(sessions: DecoderSessions, cut: int) -> None:
    opened = replace(opening(), stop_regex=("w[^.]*p",))
    sessions.open_decoder(REQUEST, 1, opened, None)
    before = text_of(sessions.decode_tokens(step(IDS[:cut], 0)))
    again = replace(opened, replay=pack_ids(IDS[:cut]), emitted_chars=len(before), next_position=cut)
    after = [
        sessions.open_decoder(REQUEST, 2, again, None),
        sessions.decode_tokens(step(IDS[cut:], cut, epoch=2)),
    ]
    assert before + text_of(*after) == "Quiet "


def test_text_held_back_for_a_stop_comes_at_the_end(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(stop=("deep.!",)), None)
    (row,) = sessions.decode_tokens(step(IDS, 0)).texts
    assert row.text == "Quiet water runs "
    (last,) = sessions.decode_tokens(step((EOS,), len(IDS), finish="stop")).texts
    assert (last.text, last.finish) == ("deep.", "stop")


def test_a_stop_id_that_is_no_special_token_keeps_its_text(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    assert text_of(sessions.decode_tokens(step(IDS, 0, finish="stop"))) == TEXT


# ---- marks, logprobs ----------------------------------------------------------------------------


def test_the_first_row_tells_how_long_it_took(sessions: DecoderSessions, clock: FakeClock) -> None:
    queue = Mark("prefill.queue", 7)
    sessions.decode_tokens(Tokens((REQUEST,), (1,), (0,), (IDS[:1],), ("",), ((),), ((queue,),)))
    clock.advance(0.004)
    (row,) = sessions.open_decoder(REQUEST, 1, opening(), None).texts
    assert row.marks == (queue, Mark("detokenize", 4000))
    (second,) = sessions.decode_tokens(step(IDS[1:2], 1)).texts
    assert second.marks == ()


def test_logprobs_stay_with_their_tokens(sessions: DecoderSessions) -> None:
    logprobs = tuple(TokenLogprob(token_id, -1.0, ()) for token_id in IDS)
    sessions.open_decoder(REQUEST, 1, opening(stop=("water",)), None)
    sessions.decode_tokens(step(IDS[:1], 0))
    (row,) = sessions.decode_tokens(Tokens((REQUEST,), (1,), (0,), (IDS,), ("",), (logprobs,), ((),))).texts
    assert tuple(item.token_id for item in row.logprobs) == row.token_ids


# ---- limits and leases --------------------------------------------------------------------------


def test_a_full_detokenizer_refuses_and_takes_again_after_an_end(sessions: DecoderSessions) -> None:
    third = "gateway-0.00000000000c"
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.open_decoder(OTHER, 1, opening(), None)
    with pytest.raises(Overloaded):
        sessions.open_decoder(third, 1, opening(), None)
    sessions.cancel_decoder(OTHER, 1, "cancelled")
    sessions.open_decoder(third, 1, opening(), None)


def test_a_request_that_is_open_may_be_placed_here_again_when_full(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.open_decoder(OTHER, 1, opening(), None)
    sessions.open_decoder(OTHER, 2, opening(), None)


def test_an_expired_open_is_refused(sessions: DecoderSessions, clock: FakeClock) -> None:
    with pytest.raises(DeadlineExpired) as caught:
        sessions.open_decoder(REQUEST, 1, opening(), Deadline(clock.monotonic_s()))
    assert caught.value.hop == "detokenizer"


def test_decoders_of_a_silent_gateway_are_given_back(sessions: DecoderSessions, clock: FakeClock) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    clock.advance(LEASE_S - 1)
    sessions.gateway_lives(GATEWAY)
    clock.advance(LEASE_S - 1)
    sessions.tick()
    assert len(sessions) == 1
    clock.advance(1.1)
    sessions.tick()
    assert_empty(sessions)


def test_a_decoder_long_past_its_deadline_is_given_back(sessions: DecoderSessions, clock: FakeClock) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), Deadline(clock.monotonic_s() + 1))
    clock.advance(LEASE_S + 1.1)
    sessions.gateway_lives(GATEWAY)
    sessions.tick()
    assert_empty(sessions)


def test_decoders_of_a_gateway_that_ended_are_given_back(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    assert sessions.gateway_lost("gateway-1") == 0
    assert sessions.gateway_lost(GATEWAY) == 1
    assert_empty(sessions)


def test_an_instance_that_ends_says_so_for_every_request(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.open_decoder(OTHER, 3, opening(), None)
    lost = sessions.abandon_decoders()
    assert [(row.request_id, row.epoch, row.lost.code) for row in lost] == [
        (REQUEST, 1, "unavailable"),
        (OTHER, 3, "unavailable"),
    ]
    assert_empty(sessions)


def test_text_that_could_not_be_sent_ends_its_decoder(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    rows = sessions.decode_tokens(step(IDS, 0)).texts
    (lost,) = sessions.undelivered(rows, Overloaded("no room"))
    assert (lost.request_id, lost.lost.code) == (REQUEST, "overloaded")
    assert_empty(sessions)


# ---- malformed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        step((1 << 31,), 0),
        step((-1,), 0),
        step(IDS, -5),
        step(IDS, 0, finish="because"),
        Tokens((REQUEST,), (1,), (0,), (IDS,), ("",), ((TokenLogprob(1, -1.0, ()),) * 2,), ((),)),
    ],
    ids=["id too large", "negative id", "negative position", "unknown finish", "logprobs"],
)
def test_a_malformed_row_loses_its_request_and_no_other(sessions: DecoderSessions, broken: Tokens) -> None:
    sessions.open_decoder(REQUEST, 1, opening(), None)
    sessions.open_decoder(OTHER, 1, opening(), None)
    (lost,) = sessions.decode_tokens(broken).lost
    assert (lost.gateway, lost.request_id, lost.lost.code) == (GATEWAY, REQUEST, "protocol")
    assert text_of(sessions.decode_tokens(step(IDS, 0, request=OTHER, finish="length"))) == TEXT
    assert_empty(sessions)


def test_a_malformed_row_of_an_unknown_request_is_reported(sessions: DecoderSessions) -> None:
    (lost,) = sessions.decode_tokens(step((1 << 31,), 0)).lost
    assert lost.lost.code == "protocol"
    assert_empty(sessions)


@pytest.mark.parametrize(
    "broken",
    [
        opening(tail=(1 << 31,)),
        opening(replay=(1 << 31,), at=1),
        opening(tail=(5,) * (MAX_PROMPT_TAIL_TOKENS + 1)),
        opening(replay=IDS, at=1),
        opening(replay=IDS[:1], at=1, emitted=100),
        opening(emitted=-3),
        opening(stop=("",)),
        Open(GATEWAY, b"abc", b"", 0, 0, ()),
    ],
)
def test_a_malformed_open_is_refused_and_holds_nothing(sessions: DecoderSessions, broken: Open) -> None:
    with pytest.raises(InvalidRequest):
        sessions.open_decoder(REQUEST, 1, broken, None)
    assert_empty(sessions)


# ---- a request that is handed over ----


def test_tokens_of_a_successor_are_taken_once_it_is_allowed(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(decode="decode-0"), None)
    first = sessions.decode_tokens(step(IDS[:1], 0), "decode-0")
    dropped = sessions.decode_tokens(step(IDS[1:2], 1), "decode-1")
    sessions.allow_worker(REQUEST, 1, GATEWAY, "decode-1")
    rest = sessions.decode_tokens(step(IDS[1:], 1, finish="stop"), "decode-1")
    assert not dropped.texts
    assert text_of(first, rest) == TEXT


@pytest.mark.parametrize(("epoch", "gateway"), [(2, GATEWAY), (1, "gateway-9")])
def test_a_successor_is_allowed_by_the_gateway_of_an_open_epoch_alone(
    sessions: DecoderSessions, epoch: int, gateway: str
) -> None:
    sessions.open_decoder(REQUEST, 1, opening(decode="decode-0"), None)
    with pytest.raises(NotFound, match="is not open here"):
        sessions.allow_worker(REQUEST, epoch, gateway, "decode-1")


def test_a_request_is_not_handed_over_without_end(sessions: DecoderSessions) -> None:
    sessions.open_decoder(REQUEST, 1, opening(decode="decode-0"), None)
    for number in range(1, MAX_WORKERS):
        sessions.allow_worker(REQUEST, 1, GATEWAY, f"decode-{number}")
    sessions.allow_worker(REQUEST, 1, GATEWAY, "decode-1")
    with pytest.raises(Overloaded, match="cannot be handed over again"):
        sessions.allow_worker(REQUEST, 1, GATEWAY, f"decode-{MAX_WORKERS}")
