"""Heartbeats that say the same again are read and written as the codec would, whatever else they might be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.bus import codec
from shared.bus.heartbeats.repeated_beats import MAX_KNOWN, HeardBeats, SaidBeat, beat_with
from shared.errors import ProtocolError
from shared.messages import Envelope, Heartbeat, WorkerReport
from tests.support.heartbeats import make_heartbeat

NOW_US = 1_700_000_000_000_000
BEAT = make_heartbeat(
    "decode", "decode-0", host="host", pid=7, capacity=8, next_ms=2000, worker=WorkerReport("layout", 64, 60)
)


def at(beat: Heartbeat, unix_us: int, steady_us: int) -> Heartbeat:
    return replace(beat, sent_unix_us=unix_us, sent_steady_us=steady_us)


BEATS = (
    at(BEAT, NOW_US, NOW_US + 5),
    at(BEAT, NOW_US + 2_000_000, NOW_US + 2_000_005),  # the same again
    at(BEAT, NOW_US + 2, NOW_US + 2),  # both clocks say the same
    at(replace(BEAT, queued=1), NOW_US + 3, NOW_US + 8),
    at(replace(BEAT, next_ms=250), NOW_US + 4, NOW_US + 9),
    at(BEAT, NOW_US + 5, NOW_US + 10),
    at(replace(BEAT, incarnation=NOW_US), NOW_US, NOW_US + 10),  # a third field that looks like a time
    at(replace(BEAT, incarnation=NOW_US), NOW_US + 6, NOW_US + 11),
    at(BEAT, 5, 6),  # clocks that are not set
    at(BEAT, NOW_US + 7, 6),
    at(replace(BEAT, state="stopped"), NOW_US + 8, NOW_US + 13),
    at(replace(BEAT, zone="b"), NOW_US + 9, NOW_US + 14),
)


@pytest.mark.parametrize("before", BEATS)
@pytest.mark.parametrize("beat", BEATS)
def test_whatever_came_before_a_heartbeat_means_what_it_says(before: Heartbeat, beat: Heartbeat) -> None:
    heard = HeardBeats()
    for each in (before, beat, beat):
        data = codec.encode(each, Envelope())
        assert heard.decode("s", data, "") == codec.decode(data) == (Envelope(), each)


@pytest.mark.parametrize("before", BEATS)
@pytest.mark.parametrize("beat", BEATS)
def test_whatever_was_said_before_a_heartbeat_has_the_bytes_of_the_codec(
    before: Heartbeat, beat: Heartbeat
) -> None:
    said = SaidBeat()
    for each in (before, beat, beat):
        assert said.encode(each, Envelope()) == codec.encode(each, Envelope())


@pytest.mark.parametrize("beat", BEATS)
def test_a_heartbeat_with_other_values_is_what_the_library_makes(beat: Heartbeat) -> None:
    fields: dict[str, Any] = {"state": "stopped", "sent_unix_us": 5, "worker": WorkerReport()}
    assert beat_with(beat, **fields) == replace(beat, **fields)
    assert repr(beat_with(beat)) == repr(beat)
    with pytest.raises(ValueError, match="zip"):
        beat_with(beat, no_such_field=1)


def test_another_envelope_is_another_message() -> None:
    said, heard = SaidBeat(), HeardBeats()
    for envelope in (Envelope(), Envelope("r", 1), Envelope()):
        data = said.encode(BEATS[0], envelope)
        assert data == codec.encode(BEATS[0], envelope)
        assert heard.decode("s", data, "") == (envelope, BEATS[0])


def test_one_that_is_asked_for_an_answer_has_its_reply_subject() -> None:
    heard, data = HeardBeats(), codec.encode(BEATS[0], Envelope())
    for reply in ("", "_INBOX.1", ""):
        assert heard.decode("s", data, reply)[0].reply == reply


def test_the_same_again_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, said = HeardBeats(), SaidBeat()
    first, again = (said.encode(each, Envelope()) for each in BEATS[:2])
    heard.decode("s", first, "")
    monkeypatch.setattr(codec, "decode", None)
    monkeypatch.setattr(codec, "encode", None)
    assert heard.decode("s", again, "")[1] == BEATS[1]
    assert said.encode(BEATS[1], Envelope()) == again


def test_the_oldest_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, data = HeardBeats(), codec.encode(BEATS[0], Envelope())
    for number in range(MAX_KNOWN + 1):
        heard.decode(str(number), data, "")
    decoded: list[bytes] = []

    def decode(data: bytes, _reply: str) -> tuple[Envelope, Heartbeat]:
        decoded.append(data)
        return Envelope(), BEATS[0]

    monkeypatch.setattr(codec, "decode", decode)
    for number in range(MAX_KNOWN, -1, -1):
        heard.decode(str(number), data, "")
    assert len(decoded) == 1


def test_what_is_no_heartbeat_is_decoded_as_ever() -> None:
    heard, data = HeardBeats(), codec.encode(BEATS[0], Envelope())
    heard.decode("s", data, "")
    with pytest.raises(ProtocolError):
        heard.decode("s", data[:-1], "")
    with pytest.raises(ProtocolError):
        heard.decode("s", b"\xc1" * len(data), "")
