"""Headers become what a method asks for, and what it says becomes headers."""

from __future__ import annotations

import gzip
import zlib

import pytest

from shared.http2.compression import TooLargeOpened, decompressed, is_known
from shared.http2.limits import ServerLimits
from shared.http2.metadata import read_head, status_headers, written

TYPE = ("content-type", "application/grpc")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("99999999m", 99999.999),
        ("5u", 5e-6),
        ("6n", 6e-9),
        ("0S", 0.0),
    ],
)
def test_a_timeout_has_a_unit(text: str, seconds: float) -> None:
    assert read_head([TYPE, ("grpc-timeout", text)]).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "S", "123456789S", "-1S", "1 S", "1s", "1.5S", "1S1"])
def test_what_is_no_timeout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="grpc-timeout"):
        read_head([TYPE, ("grpc-timeout", text)])


def test_what_is_for_the_server_is_no_metadata() -> None:
    head = read_head(
        [
            *((":method", "POST"), (":path", "/a/b"), ("te", "trailers"), TYPE, ("grpc-encoding", "gzip")),
            *(
                ("grpc-accept-encoding", "gzip"),
                ("user-agent", "x"),
                ("a-bin", "AA==,/w"),
                ("b", "1"),
                ("b", "2"),
            ),
        ]
    )
    assert (head.method, head.encoding, head.refusal) == ("/a/b", "gzip", 0)
    assert head.metadata == (
        ("user-agent", "x"),
        ("a-bin", b"\0"),
        ("a-bin", b"\xff"),
        ("b", "1"),
        ("b", "2"),
    )


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [("application/grpc", 0), ("application/grpc+proto", 0), ("application/grpc;a=b", 0)]
    + [(kind, 415) for kind in ("application/grpc-web", "application/json", "")],
)
def test_a_call_says_that_it_is_one(kind: str, refusal: int) -> None:
    assert read_head([("content-type", kind)]).refusal == refusal
    assert read_head([]).refusal == 415


def test_a_status_says_its_message_in_percents() -> None:
    assert status_headers(0, "", ()) == [("grpc-status", "0")]
    assert status_headers(5, "a b%\nä~", (("x-bin", b"\0"),)) == [
        ("grpc-status", "5"),
        ("grpc-message", "a b%25%0A%C3%A4~"),
        ("x-bin", b"AA"),
    ]


@pytest.mark.parametrize(
    "pair", [("Upper", "x"), ("", "x"), ("a b", "x"), ("a", "ä"), ("a", "\n"), ("grpc-x", "y")]
)
def test_what_can_be_no_metadata_is_not_sent(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is no name of metadata|is not of ASCII"):
        written([pair])


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_message_is_opened_as_far_as_it_may_get(encoding: str, pack: object) -> None:
    assert callable(pack)
    assert is_known(encoding)
    packed = pack(bytes(1000))
    assert decompressed(packed, encoding, 1000) == bytes(1000)
    with pytest.raises(TooLargeOpened):
        decompressed(packed, encoding, 999)
    for broken in (packed[:-1], packed + b"x", b"", b"no"):
        with pytest.raises(ValueError, match=encoding):
            decompressed(broken, encoding, 1000)


def test_a_server_without_room_is_none() -> None:
    with pytest.raises(ValueError, match="max_calls"):
        ServerLimits(max_calls=0)
