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
