"""Names in messages become places to send to only where a server takes them."""

from __future__ import annotations

import pytest

from shared.bus.subjects import MAX_SUBJECT_BYTES, ask_of, check_place, inbox, repeated, subject_of
from shared.errors import NoListener


@pytest.mark.parametrize("name", ["decode-0", "übung", "a_b", "x" * 900])
def test_a_name_is_a_place(name: str) -> None:
    check_place(subject_of(inbox("decode", name), "Cancel", "gateway-0"))


@pytest.mark.parametrize(
    "name", ["", "*", ">", "a b", "a\r\nPUB x 0", "a..b", "a*", "\0", "x" * MAX_SUBJECT_BYTES, "ü" * 520]
)
def test_what_no_server_takes_is_nobody(name: str) -> None:
    with pytest.raises(NoListener, match="nobody can be at"):
        check_place(subject_of(inbox("decode", name), "Cancel", "gateway-0"))


@pytest.mark.parametrize("more", [0, 1])
def test_a_subject_has_a_longest(more: int) -> None:
    start = "penstock.decode."
    subject = start + "x" * (MAX_SUBJECT_BYTES - len(start) + more)
    if more:
        with pytest.raises(NoListener):
            check_place(subject)
    else:
        check_place(subject)


@pytest.mark.parametrize("reply", ["_INBOX.decode-0.a1b2.7", "_INBOX.de+code.a+b.7", "7", ""])
def test_repetitions_of_an_ask_have_reply_subjects_of_their_own_and_one_first_one(reply: str) -> None:
    subjects = [repeated(reply, times) for times in range(3)]
    assert subjects[0] == reply
    assert len(set(subjects)) == 3
    assert {ask_of(subject) for subject in subjects} == {reply}
