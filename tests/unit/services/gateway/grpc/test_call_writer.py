"""A call that gRPC has ended by itself is the client's end, and no fault of the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.grpc.edge import _CallWriter
from shared.errors import Cancelled


class EndedCall:
    """gRPC's side of a call whose deadline has passed there."""

    async def write(self, _event: pb.GenerateEvent) -> None:
        raise grpc.aio.InternalError


class BrokenCall:
    async def write(self, _event: pb.GenerateEvent) -> None:
        raise ValueError("a bug")


@pytest.mark.parametrize("turn", [None, asyncio.Lock()])
async def test_an_event_for_a_call_that_grpc_has_ended_is_a_cancel(turn: asyncio.Lock | None) -> None:
    call: Any = EndedCall()
    with pytest.raises(Cancelled, match="gRPC has ended the call"):
        await _CallWriter(call, turn, 0).write_end(pb.Terminal())


async def test_any_other_failure_of_a_write_stays_what_it_is() -> None:
    call: Any = BrokenCall()
    with pytest.raises(ValueError, match="a bug"):
        await _CallWriter(call, None, 0).write_end(pb.Terminal())


class QuickCall:
    """The native server's side of a call: what is written, and whether there is room for more."""

    def __init__(self) -> None:
        self.room = True
        self.ended = False
        self.written: list[pb.GenerateEvent] = []

    def write_now(self, event: pb.GenerateEvent) -> bool:
        if self.ended:
            raise grpc.aio.InternalError
        self.written.append(event)
        return self.room

    async def write(self, event: pb.GenerateEvent) -> None:
        self.written.append(event)


def put(call: Any, turn: asyncio.Lock | None = None) -> tuple[_CallWriter, bool]:
    writer = _CallWriter(call, turn, 0)
    return writer, writer.put_text(7, (3, 4), "ab")


def test_a_row_is_written_at_once_as_the_event_that_it_would_be() -> None:
    call = QuickCall()
    assert put(call)[1]
    assert call.written == [pb.GenerateEvent(text=pb.TextDelta(position=7, token_ids=[3, 4], text="ab"))]


async def test_rows_behind_one_that_filled_the_client_wait_until_it_has_room() -> None:
    call = QuickCall()
    call.room = False
    writer, _ = put(call)
    call.room = True
    assert not writer.put_text(9, (5,), "c")
    await writer.write_text(pb.GenerateEvent(text=pb.TextDelta(position=9, token_ids=[5], text="c")))
    assert writer.put_text(10, (6,), "d")
    assert [event.text.text for event in call.written] == ["ab", "c", "d"]


def test_a_row_waits_where_choices_take_turns_where_grpcio_serves_and_where_the_call_has_ended() -> None:
    quick, ended = QuickCall(), QuickCall()
    ended.ended = True
    assert not put(quick, asyncio.Lock())[1]
    assert not put(BrokenCall())[1]
    assert not put(ended)[1]
    assert quick.written == ended.written == []
