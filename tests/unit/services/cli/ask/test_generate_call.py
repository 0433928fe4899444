"""One call of Generate at a real gRPC server, interrupted from the keyboard."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.generate_call import SERVICE, OpenGateway, last_cause, show_answer
from services.cli.view.answer_output import TextOutput

TIMEOUT_S = 60
TEXT = "word "


@pytest.fixture
def gateway() -> Iterator[OpenGateway]:
    """It sends one text, and no more until the call is cancelled."""

    def generate(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        over = threading.Event()
        context.add_callback(over.set)
        yield pb.GenerateEvent(text=pb.TextDelta(text=TEXT)).SerializeToString()
        over.wait(TIMEOUT_S)

    service, method = SERVICE.strip("/"), "Generate"
    handler = grpc.unary_stream_rpc_method_handler(generate)
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with grpc.insecure_channel(address) as channel:
        yield OpenGateway(address, channel, ())
    server.stop(None).wait(TIMEOUT_S)


class InterruptedOutput(TextOutput):
    """Ctrl-C is pressed as it begins to show a text."""

    def __init__(self) -> None:
        self.shown = io.StringIO()
        super().__init__(self.shown, io.StringIO())

    def text(self, delta: pb.TextDelta) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        super().text(delta)


def test_ctrl_c_cancels_the_call_and_is_not_raised_while_grpc_works(gateway: OpenGateway) -> None:
    """Raised between two lines of gRPC, it leaves a lock taken: the channel delivers nothing from then on."""
    for _ in range(2):
        output = InterruptedOutput()
        with pytest.raises(KeyboardInterrupt):
            show_answer(gateway, pb.GenerateRequest(), output)
        assert output.shown.getvalue().startswith(TEXT)


def test_of_a_connection_that_failed_the_cause_is_told() -> None:
    chain = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
    assert last_cause(f"{chain}Failed to connect to remote host: Connection refused") == "Connection refused"
    assert last_cause("DNS resolution failed") == "DNS resolution failed"
