"""Messages of gRPC come whole, when they are wanted, and leave as windows and sockets have room."""

from __future__ import annotations

import pytest

from tests.support.http2_wire import (
    CANCEL,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    CodecEnd,
    data,
    frame,
    headers,
    message,
    settings,
    window_update,
)

STATUS = (("grpc-status", "0"),)


def begun(*, window: int = 1 << 20, **limits: int) -> CodecEnd:
    end = CodecEnd(**limits)
    end.hear(window_update(0, window), headers(), window_update(1, window))
    end.said()
    return end


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 100, 16384])
def test_messages_are_whole_however_they_are_cut(size: int) -> None:
    whole = message(b"") + message(b"a" * 300) + message(b"b", compressed=1)
    end, got = begun(), []
    for at in range(0, len(whole), size):
        events = end.hear(data(1, whole[at : at + size], end=at + size >= len(whole)))
        assert not events
    while (event := end.codec.want(1)) is not None and event[0] == 2:
        got.append(event[2:])
    assert got == [(0, b""), (0, b"a" * 300), (1, b"b")]
    assert event is not None
    assert event[0] == 3


def test_a_message_that_is_wanted_before_it_comes_is_told() -> None:
    end = begun()
    assert end.codec.want(1) is None
    assert end.hear(data(1, b"\0\0\0\0\x02a")) == []
    assert end.hear(data(1, b"b" + message(b"next"))) == [(2, 1, 0, b"ab")]
    assert end.codec.want(1) == (2, 1, 0, b"next")


@pytest.mark.parametrize("sent", [b"\0", b"\0\0\0\0\x05abc", b"\x02\0\0\0\0"])
def test_what_is_no_message_is_told(sent: bytes) -> None:
    end = begun()
    end.hear(data(1, sent, end=True))
    for _ in range(2):
        event = end.codec.want(1)
        assert event is not None
        assert event[0] == 5


def test_a_message_of_the_largest_size_comes_and_a_larger_one_is_told_before_it_does() -> None:
    end = begun(max_message_bytes=1000)
    end.hear(data(1, message(bytes(1000))))
    assert end.codec.want(1) == (2, 1, 0, bytes(1000))
    end.hear(data(1, message(bytes(1001))[:5]))
    event = end.codec.want(1)
    assert event is not None
    assert event[::2] == (4, 1001)


def given(end: CodecEnd) -> int:
    """Return how much more the client may send of call 1."""
    return sum(
        int.from_bytes(each.payload, "big")
        for each in end.said()
        if each.kind == WINDOW_UPDATE and each.stream == 1
    )


def test_a_client_may_send_no_more_than_its_window_of_what_nobody_wants() -> None:
    end = begun(unread_bytes=65536)
    for _ in range(4):
        end.hear(data(1, bytes(16384)))
    assert given(end) == 0
    assert end.codec.want(1) == (2, 1, 0, b"")
    for _ in range(20):  # it is given more once much of it is read
        end.codec.want(1)
    assert given(end) == 0


def test_a_large_message_that_is_wanted_is_let_come() -> None:
    end = begun(unread_bytes=65536, max_message_bytes=1 << 21)
    whole, may, at = message(bytes(range(256)) * 8192), 65536, 0
    assert end.codec.want(1) is None
    events = []
    while at < len(whole):
        size = min(16384, may, len(whole) - at)
        assert size > 0
        events += end.hear(data(1, whole[at : at + size]))
        at += size
        may += given(end) - size
    assert [event[3] for event in events] == [whole[5:]]
    assert may <= 1 << 20


def test_padding_is_given_back() -> None:
    end = begun(unread_bytes=1000)
    for _ in range(100):
        end.hear(frame(DATA, PADDED, 1, bytes((255,)) + bytes(255)))
        assert not any(each.kind == RST_STREAM for each in end.said())
        end.now_ms += 1000


# ---- what is written ------------------------------------------------------------------------------


def sent(end: CodecEnd) -> bytes:
    return b"".join(each.payload for each in end.said() if each.kind == DATA)


def test_messages_and_the_status_leave_in_order() -> None:
    end = begun()
    end.codec.respond(1, ((":status", "200"), ("content-type", "application/grpc"), ("a", b"b")))
    assert end.codec.write(1, b"one") == 1
    assert end.codec.finish(1, STATUS) == 1
    first, one, last, stop = end.said()
    assert (first.kind, first.flags, first.payload) == (
        HEADERS,
        4,
        b"\x88\x0f\x10\x10application/grpc\0\x01a\x01b",
    )
    assert (one.kind, one.payload) == (DATA, message(b"one"))
    assert (last.kind, last.flags & END_STREAM) == (HEADERS, END_STREAM)
    assert (stop.kind, stop.payload) == (RST_STREAM, bytes(4))  # its client need not send the rest
    assert end.codec.stream_count == 0
    assert end.codec.write(1, b"two") == -1
    assert end.codec.finish(1, STATUS) == -1
    assert not end.codec.respond(1, STATUS)


def test_a_call_whose_client_has_said_all_ends_without_a_reset() -> None:
    end = CodecEnd()
    end.hear(headers(1, end=True))
    end.codec.finish(1, STATUS)
    assert [each.kind for each in end.said()] == [HEADERS]


def test_a_message_leaves_in_frames_that_a_client_takes() -> None:
    end = begun()
    end.codec.write(1, bytes(100_000))
    frames = end.said() + end.said()
    assert max(len(each.payload) for each in frames) == 16384
    assert b"".join(each.payload for each in frames) == message(bytes(100_000))


def test_a_writer_waits_for_its_clients_window_and_is_freed() -> None:
    end = CodecEnd(max_stream_unsent_bytes=1000)
    end.hear(settings((4, 100)), headers())
    end.said()
    assert end.codec.write(1, bytes(90)) == 1
    assert end.codec.write(1, bytes(900)) == 1
    assert end.codec.write(1, bytes(200)) == 0
    assert len(sent(end)) == 100
    assert end.codec.take_freed() == []
    end.hear(window_update(1, 400))
    assert len(sent(end)) == 400
    assert end.codec.take_freed() == []
    end.hear(window_update(1, 400))
    assert len(sent(end)) == 400
    assert end.codec.take_freed() == [1]
    assert end.codec.write(1, b"") == 1


def test_the_status_waits_behind_what_is_unsent() -> None:
    end = CodecEnd()
    end.hear(settings((4, 0)), headers(1, end=True))
    end.codec.write(1, b"abc")
    assert end.codec.finish(1, STATUS) == 0
    assert end.codec.stream_count == 1
    end.said()
    end.hear(window_update(1, 7))
    assert [each.kind for each in end.said()] == [DATA]
    end.hear(window_update(1, 1))
    assert [each.kind for each in end.said()] == [DATA, HEADERS]
    assert end.codec.stream_count == 0


def test_calls_take_turns_at_the_connections_window() -> None:
    end = CodecEnd()
    end.hear(headers(1), headers(3), *(window_update(stream, 1 << 20) for stream in (1, 3)))
    end.said()
    for stream in (1, 3):
        end.codec.write(stream, bytes(100_000))
    streams = [each.stream for each in end.said()]
    assert streams == [1, 3, 1, 3]


def test_no_more_is_taken_than_a_socket_has_room_for() -> None:
    end = begun(max_unsent_bytes=20_000, max_stream_unsent_bytes=10_000)
    room = [end.codec.write(1, bytes(5000)) for _ in range(8)]
    assert room == [1, 1, 1, 1, 1, 1, 0, 0][: len(room)] or 0 in room
    assert end.codec.unsent_bytes < 26_000
    assert len(sent(end)) <= 20_000 + 16384
    assert len(sent(end)) > 0


def test_a_reset_of_ours_takes_what_was_unsent_along() -> None:
    end = begun()
    end.codec.write(1, bytes(100_000))
    assert end.codec.reset(1, CANCEL)
    assert [each.kind for each in end.said()] == [RST_STREAM]
    assert not end.codec.reset(1, CANCEL)


def test_a_goodbye_is_said_twice_and_calls_between_the_two_are_taken() -> None:
    end = begun()
    end.codec.go_away(False, 0)
    end.codec.ping()
    first, asked = end.said()
    assert (first.kind, first.payload[:4]) == (GOAWAY, b"\x7f\xff\xff\xff")
    assert len(end.hear(headers(3))) == 1
    assert [event[0] for event in end.hear(frame(PING, 1, payload=asked.payload))] == [7]
    end.codec.go_away(True, 0)
    (last,) = end.said()
    assert last.payload[:4] == (3).to_bytes(4, "big")
    assert end.hear(headers(5)) == []
    assert end.codec.write(3, b"goes on") == 1
