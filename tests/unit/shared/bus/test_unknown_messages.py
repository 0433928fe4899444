"""A message of another version is logged once, with who has sent it."""

from __future__ import annotations

import structlog.testing

from shared.bus.subjects import subject_of
from shared.bus.unknown_messages import MAX_SENTENCES, UnknownMessages
from shared.errors import UnknownMessage

SUBJECT = subject_of("fleet.decode.decode-1", "Heartbeat", "decode-1")


def test_each_reason_is_logged_once_with_its_sender() -> None:
    unknown = UnknownMessages()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            unknown.note(SUBJECT, UnknownMessage("version 7"))
        unknown.note(SUBJECT, UnknownMessage("no such message"))
    assert [(line["sender"], line["error"]) for line in lines] == [
        ("decode-1", "version 7"),
        ("decode-1", "no such message"),
    ]
    assert unknown.sentences == ("version 7", "no such message")


def test_a_flood_of_reasons_is_not_kept() -> None:
    unknown = UnknownMessages()
    for number in range(MAX_SENTENCES + 1):
        unknown.note(SUBJECT, UnknownMessage(f"version {number}"))
    assert len(unknown.sentences) == MAX_SENTENCES
    assert unknown.sentences[-1] == f"version {MAX_SENTENCES - 1}"
