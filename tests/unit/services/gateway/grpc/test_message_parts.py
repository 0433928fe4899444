"""How many parts a message may have, counted before it is read."""

from __future__ import annotations

from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.grpc.message_parts import MAX_MESSAGE_PARTS, MAX_PACKED_NUMBERS, check_parts
from shared.errors import InvalidRequest

KIND: Any = pb.GenerateRequest.DESCRIPTOR  # the stubs have two kinds of it
AROUND = 1
"""The field that a list stands in."""
LONG = b"a" * (1 << 20)


def field(number: int, payload: bytes) -> bytes:
    return pb_number(number << 3 | 2) + pb_number(len(payload)) + payload


def pb_number(value: int) -> bytes:
    made = bytearray()
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes((*made, value))


LISTS = {
    "messages": lambda count: field(3, field(1, b"") * count),
    "tools": lambda count: field(3, field(3, b"") * count),
    "stops": lambda count: field(5, field(12, b"") * count),
    "bias": lambda count: field(5, field(8, b"") * count),
    "words": lambda count: field(5, field(17, b"") * count),
    "filters": lambda count: field(6, field(5, b"") * count),
    "ids one by one": lambda count: field(4, b"\x08\x01" * count),
    "repetitions of one field": lambda count: field(3, field(5, b"") * count),
    "unknown ones": lambda count: field(3, (pb_number(900 << 3) + b"\x01") * count),
}


@pytest.mark.parametrize("shape", LISTS)
def test_a_message_has_so_many_parts_and_not_one_more(shape: str) -> None:
    check_parts(LISTS[shape](MAX_MESSAGE_PARTS - AROUND), KIND)
    with pytest.raises(InvalidRequest, match=f"more than {MAX_MESSAGE_PARTS} parts"):
        check_parts(LISTS[shape](MAX_MESSAGE_PARTS - AROUND + 1), KIND)


def test_parts_of_parts_count() -> None:
    calls = field(4, b"")
    message = field(3, field(1, calls * (MAX_MESSAGE_PARTS - 2)))
    check_parts(message, KIND)
    with pytest.raises(InvalidRequest, match="parts"):
        check_parts(message + calls, KIND)


def test_packed_ids_are_counted_by_number() -> None:
    ids = [1 << 21, 1] * (MAX_PACKED_NUMBERS // 2)
    raw = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids)).SerializeToString()
    check_parts(raw, KIND)
    with pytest.raises(InvalidRequest, match=f"more than {MAX_PACKED_NUMBERS} numbers"):
        check_parts(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[*ids, 1])).SerializeToString(), KIND)


def test_long_texts_are_few_parts_whatever_they_look_like() -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="\n\0" * 500_000)])
    check_parts(pb.GenerateRequest(chat=chat).SerializeToString(), KIND)
    check_parts(field(2, LONG), None)


@pytest.mark.parametrize(
    "raw",
    [LONG, b"\xff" * (1 << 20), field(3, LONG)[:-5], b"\x08" + b"\x80" * (1 << 20), field(2, LONG) + b"\x08"],
)
def test_what_is_no_message_is_left_to_its_reader(raw: bytes) -> None:
    try:
        check_parts(raw, KIND)
    except InvalidRequest as error:
        assert "parts" in str(error)  # noqa: PT017 - either is a refusal


def test_a_message_of_another_contract_is_counted_by_its_own_fields() -> None:
    with pytest.raises(InvalidRequest, match="parts"):
        check_parts(field(1, b"") * (MAX_MESSAGE_PARTS + 1), None)
