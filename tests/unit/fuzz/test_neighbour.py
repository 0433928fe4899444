"""A neighbour of hostile inputs notes its tokens, and says when they took from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.fuzz import neighbour as neighbour_module
from tests.fuzz.neighbour import MAX_TIMES, NOTICED_MS, Gaps, Neighbour
from tests.fuzz.target import Fault

WAIT_S = 60.0


class _Heard(list[float]):
    """Times, and whether there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.any = threading.Event()

    def append(self, value: float) -> None:
        super().append(value)
        self.any.set()


class _Gateway(rpc.InferenceServicer):
    """Streams as many texts as it is asked for, of long answers without an end."""

    def __init__(self) -> None:
        self.quiet = threading.Event()

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateEvent]:  # type: ignore[override]  # noqa: N802 - as generated
        is_long = request.sampling.max_tokens == neighbour_module.STREAM_TOKENS
        ended = threading.Event()
        context.add_callback(ended.set)
        if is_long:
            self.quiet.clear()
        try:
            for number in range(request.sampling.max_tokens):
                yield pb.GenerateEvent(text=pb.TextDelta(text=str(number)))
                if is_long and ended.wait(0.001):
                    return
        finally:
            if is_long:
                self.quiet.set()


@pytest.fixture
def gateway() -> Iterator[tuple[_Gateway, str]]:
    played = _Gateway()
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_InferenceServicer_to_server(played, server)  # type: ignore[arg-type]  # of grpc.aio
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield played, f"127.0.0.1:{port}"
    server.stop(None).wait(WAIT_S)


def test_it_streams_beside_the_inputs_and_holds_nothing_while_it_is_silent(
    gateway: tuple[_Gateway, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played, address = gateway
    monkeypatch.setattr(neighbour_module, "ORDINARY_S", 0.05)
    neighbour = Neighbour()
    neighbour.hostile.ms = heard = _Heard()
    with neighbour.beside(address):
        with neighbour.silent():
            assert played.quiet.wait(WAIT_S)
        heard.any.clear()
        assert heard.any.wait(WAIT_S)
    assert neighbour.hostile.broken == []


@pytest.mark.parametrize(
    ("ordinary_ms", "hostile_ms", "breaks"),
    [
        (1.0, NOTICED_MS, False),
        (1.0, NOTICED_MS + 0.1, True),
        (2 * NOTICED_MS, 2 * MAX_TIMES * NOTICED_MS, False),
        (2 * NOTICED_MS, 2 * MAX_TIMES * NOTICED_MS + 0.1, True),
    ],
)
def test_its_tokens_may_be_as_late_as_beside_ordinary_calls_and_half_as_late_again(
    ordinary_ms: float, hostile_ms: float, breaks: bool
) -> None:
    neighbour = Neighbour()
    neighbour.ordinary, neighbour.hostile = Gaps([ordinary_ms] * 200, []), Gaps([hostile_ms] * 200, [])
    if breaks:
        with pytest.raises(Fault, match="a neighbour's tokens"):
            neighbour.check()
    else:
        neighbour.check()


def test_a_stream_that_broke_is_a_fault() -> None:
    neighbour = Neighbour()
    neighbour.hostile.broken.append("UNAVAILABLE")
    with pytest.raises(Fault, match="1 streams of a neighbour broke: UNAVAILABLE"):
        neighbour.check()
