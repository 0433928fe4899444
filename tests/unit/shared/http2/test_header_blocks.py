"""Blocks of headers are read as RFC 7541 has it, whose own examples these are, and nothing else is."""

from __future__ import annotations

import pytest

from tests.support.http2_wire import (
    COMPRESSION,
    END_HEADERS,
    HEADERS,
    PADDED,
    REQUEST,
    WITH_PRIORITY,
    CodecEnd,
    block,
    frame,
    headers,
    number,
    settings,
    text,
)

BASE = block((*REQUEST[:2], (":path", "/x")))


def read(end: CodecEnd, part: bytes, stream: int = 1) -> list[tuple[str, str]]:
    """The headers of a call whose block is that."""
    ((kind, found, code, told),) = end.hear(frame(HEADERS, END_HEADERS, stream, part))
    assert (kind, found, code) == (1, stream, 0)
    result: list[tuple[str, str]] = told
    return result


@pytest.mark.parametrize(
    "parts",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
    ids=["C.3: plain", "C.4: Huffman"],
)
def test_the_examples_of_the_rfc_are_read_with_their_table(parts: tuple[str, ...]) -> None:
    end = CodecEnd()
    first, second, third = (read(end, bytes.fromhex(part), 1 + 2 * i) for i, part in enumerate(parts))
    get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
    assert first == get
    assert second == [*get, ("cache-control", "no-cache")]
    assert third == [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ]


def test_every_byte_has_its_huffman_code() -> None:
    """All lengths of codes and all paddings: the table of codes was made from the lengths of RFC 7541."""
    codes = huffman_codes()
    for byte in range(256):
        if byte in (0, 10, 13):  # in no value
            continue
        bits = "".join(codes[each] for each in b"a%cb" % byte)
        bits += "1" * (-len(bits) % 8)
        coded = int(bits, 2).to_bytes(len(bits) // 8, "big")
        part = BASE + b"\0" + text("x") + number(len(coded), 7, 0x80) + coded
        assert read(CodecEnd(), part)[-1] == ("x", f"a{chr(byte)}b")


def huffman_codes() -> list[str]:
    """The codes of RFC 7541, appendix B, by what their lengths are made of there: 12 examples are checked."""
    lengths = [int(each) for each in LENGTHS.split()]
    order = sorted(range(257), key=lambda symbol: (lengths[symbol], symbol))
    codes, code, last = [""] * 257, -1, lengths[order[0]]
    for symbol in order:
        code = (code + 1) << (lengths[symbol] - last)
        last = lengths[symbol]
        codes[symbol] = f"{code:0{last}b}"
    assert codes[ord("0")] == "00000"
    assert codes[ord("a")] == "00011"
    assert codes[ord("z")] == "1111011"
    assert codes[256] == "1" * 30
    return codes


LENGTHS = """
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 6 10 10
12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7
7 7 7 7 7 8 7 8 13 19 13 14 6 15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 20 22
20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 22 21 20 22 22
23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 26 26 20 19 22 23 22 25
26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 20 24 20 21 22 21 21 23 22 22 25
25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 30
"""


def test_the_table_lets_go_of_its_oldest_where_there_is_no_room() -> None:
    end = CodecEnd()
    kept = b"".join(block(((f"h{n}", "x" * 1000),), 0x40) for n in range(4))
    assert len(read(end, BASE + kept)) == 7
    newest, oldest = number(62, 7, 0x80), number(62 + 2, 7, 0x80)
    assert read(end, BASE + newest + oldest, 3)[-2:] == [("h3", "x" * 1000), ("h1", "x" * 1000)]
    assert end.failed(frame(HEADERS, END_HEADERS, 5, BASE + number(62 + 3, 7, 0x80))) == COMPRESSION


def test_a_header_that_is_larger_than_the_table_empties_it() -> None:
    end = CodecEnd()
    read(end, BASE + block((("small", "x"),), 0x40) + block((("large", "x" * 5000),), 0x40))
    assert end.failed(frame(HEADERS, END_HEADERS, 3, BASE + number(62, 7, 0x80))) == COMPRESSION


def test_a_table_is_made_smaller_before_all_headers_alone() -> None:
    end = CodecEnd()
    read(end, BASE + block((("kept", "x"),), 0x40))
    assert read(end, number(0, 5, 0x20) + number(4096, 5, 0x20) + BASE, 3)
    assert end.failed(frame(HEADERS, END_HEADERS, 5, BASE + number(62, 7, 0x80))) == COMPRESSION
    assert CodecEnd().failed(frame(HEADERS, END_HEADERS, 1, BASE + number(0, 5, 0x20))) == COMPRESSION


@pytest.mark.parametrize(
    "part",
    [
        number(4097, 5, 0x20),
        b"\x80",
        b"\x7f",
        b"\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\x80\x80\x80\x80\x80\x01",
        b"\0\x05abc",
        b"\0\x01a\xff",
        b"\0\x01a",
        b"\0",
        b"\0\x01a\x82\xff\xff",
        b"\0\x01a\x84\xff\xff\xff\xff",
        b"\0\x01a\x81\x00",
    ],
    ids=[
        "a table larger than announced",
        "index 0",
        "an index that does not end",
        "a number that does not end",
        "a number of many digits",
        "half a name",
        "half a length",
        "no value",
        "nothing behind it",
        "more than seven bits of padding",
        "the end of strings within one",
        "padding of zeros",
    ],
)
def test_a_block_that_is_broken_ends_the_connection(part: bytes) -> None:
    assert CodecEnd().failed(frame(HEADERS, END_HEADERS, 1, part)) == COMPRESSION


def test_padding_and_priority_stand_around_a_block_and_are_no_part_of_it() -> None:
    part = bytes((3,)) + b"\x80\0\0\0\x07" + BASE + bytes(3)
    ((_, _, _, told),) = CodecEnd().hear(frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, part))
    assert told[-1] == (":path", "/x")


@pytest.mark.parametrize(
    "more",
    [
        ("Upper", "x"),
        ("", "x"),
        ("a b", "x"),
        ("a", "x\0y"),
        ("a", "x\ny"),
        (":path", "/again"),
        (":late", "x"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("te", "gzip"),
        ("content-length", "-1"),
        ("content-length", "1x"),
        ("content-length", "9" * 16),
    ],
)
def test_headers_that_break_a_rule_end_their_call_alone(more: tuple[str, str]) -> None:
    end = CodecEnd()
    assert end.hear(headers(1, more)) == []
    ((kind, _, stream, code),) = end.said()
    assert (kind, stream, int.from_bytes(code, "big")) == (3, 1, 1)
    assert end.hear(headers(3))[0][:3] == (1, 3, 0)


@pytest.mark.parametrize("missing", range(3))
def test_a_request_has_a_method_a_scheme_and_a_path(missing: int) -> None:
    part = block(REQUEST[:missing] + REQUEST[missing + 1 :])
    end = CodecEnd()
    assert end.hear(frame(HEADERS, END_HEADERS, 1, part)) == []
    assert [each.kind for each in end.said()] == [3]


def test_a_client_that_wants_no_table_is_told_that_there_is_none() -> None:
    end = CodecEnd()
    end.hear(settings((1, 0)), headers(1), headers(3))
    end.said()
    for stream, first in ((1, b"\x20\x88"), (3, b"\x88")):
        end.codec.respond(stream, ((":status", "200"),))
        (answer,) = end.said()
        assert answer.payload == first
