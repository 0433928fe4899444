"""One answer, its events shown as they come: a call of Generate, and of Resume where its gateway is gone."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its warnings would stand between the words of the answer
import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.stream_place import StreamPlace
from services.cli.exit_codes import EXIT_CANCELLED, EXIT_EXPIRED, EXIT_FAILED, EXIT_SHED
from services.cli.view.answer_output import AnswerOutput
from shared.process.quiet_end import interrupt_at_end

SERVICE = "/penstock.v1.Inference/"

STATUS_OUTCOMES = {
    grpc.StatusCode.CANCELLED: pb.OUTCOME_CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: pb.OUTCOME_EXPIRED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: pb.OUTCOME_SHED,
}
"""Outcomes of calls that end without a terminal event; every other status is a failure."""

EXIT_CODES = {
    pb.OUTCOME_FINISHED: 0,
    pb.OUTCOME_FAILED: EXIT_FAILED,
    pb.OUTCOME_EXPIRED: EXIT_EXPIRED,
    pb.OUTCOME_SHED: EXIT_SHED,
    pb.OUTCOME_CANCELLED: EXIT_CANCELLED,
}

REQUEST_ID = "x-request-id"
"""The metadata that a gateway ends every call with; a call that reached none has no such."""
BACKSTOP_S = 5.0
"""Beyond the request's own deadline: the gateway should have ended the call by itself."""


@dataclass(frozen=True, slots=True)
class OpenGateway:
    """The gateway that requests go to; `metadata` is sent with each of them."""

    address: str
    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]


def show_answer(gateway: OpenGateway, request: pb.GenerateRequest, output: AnswerOutput) -> pb.Terminal:
    """The terminal event, which is shown last.

    What interrupts it (Ctrl-C, a reader that went away) cancels the call and is passed on.
    """
    place = StreamPlace(request)
    request.client_sent_unix_us = time.time_ns() // 1000
    terminal, wait_s = _show_call(gateway, request, place, output)
    while wait_s is not None:
        time.sleep(wait_s)
        terminal, wait_s = _show_call(gateway, place.resume_request(), place, output)
    output.end(terminal)
    return terminal


def _show_call(
    gateway: OpenGateway,
    message: pb.GenerateRequest | pb.ResumeRequest,
    place: StreamPlace,
    output: AnswerOutput,
) -> tuple[pb.Terminal, float | None]:
    """Show one call; return how it ended, and how long to wait before another gateway goes on, None: nobody
    does."""
    request = message.request if isinstance(message, pb.ResumeRequest) else message
    timeout_s = request.deadline_ms / 1e3 + BACKSTOP_S if request.HasField("deadline_ms") else None
    terminal: pb.Terminal | None = None
    with interrupt_at_end() as interrupt:
        call = start_call(gateway, message, timeout_s)
        interrupt.stops(call.cancel)
        try:
            for event in call:
                place.take_event(event)
                if not (place.resumed and event.HasField("prompt")):
                    terminal = _show(event, output) or terminal
        except grpc.RpcError as error:
            gone = error.code() == grpc.StatusCode.UNAVAILABLE
            finished = terminal is not None and terminal.outcome == pb.OUTCOME_FINISHED
            wait_s = None if finished else place.wait_s(unavailable=gone, terminal=terminal)
            # After a terminal event the status only repeats it.
            return terminal or terminal_of(error, gateway.address), wait_s
        except (KeyboardInterrupt, BrokenPipeError):
            call.cancel()
            raise
    if terminal is None:
        terminal = _failed("protocol", "the call ended without a terminal event; is that a Penstock gateway?")
    return terminal, None


def start_call(
    gateway: OpenGateway, message: pb.GenerateRequest | pb.ResumeRequest, timeout_s: float | None
) -> Any:
    """Return a call of gRPC, whose events are iterated over."""
    start = gateway.channel.unary_stream(
        SERVICE + ("Resume" if isinstance(message, pb.ResumeRequest) else "Generate"),
        request_serializer=type(message).SerializeToString,
        response_deserializer=pb.GenerateEvent.FromString,
    )
    return start(message, timeout=timeout_s, metadata=gateway.metadata)


def interrupted_terminal() -> pb.Terminal:
    """The end of a call that Ctrl-C cancelled: the gateway's own is not waited for."""
    error = pb.Error(code="cancelled", message="interrupted from the keyboard")
    return pb.Terminal(outcome=pb.OUTCOME_CANCELLED, error=error)


def _show(event: pb.GenerateEvent, output: AnswerOutput) -> pb.Terminal | None:
    """Show an event; the terminal one is returned instead, to be shown when the call has ended."""
    kind = event.WhichOneof("event")
    if kind == "prompt":
        output.prompt(event.prompt)
    elif kind == "prompt_logprobs":
        output.prompt_logprobs(event.prompt_logprobs)
    elif kind == "text":
        output.text(event.text)
    elif kind == "end":
        return event.end
    return None


def terminal_of(error: grpc.RpcError, address: str) -> pb.Terminal:
    """Say how a call ended that has no terminal event."""
    status, details = error.code(), error.details() or ""
    is_answered = any(each.key == REQUEST_ID for each in error.trailing_metadata() or ())
    if status == grpc.StatusCode.UNAVAILABLE and not is_answered:
        advice = "is the stack running? Over TLS it needs --tls-ca"
        return _failed("unavailable", f"no gateway answers at {address}: {last_cause(details)}; {advice}")
    return pb.Terminal(
        outcome=STATUS_OUTCOMES.get(status, pb.OUTCOME_FAILED),
        error=pb.Error(code=status.name.lower(), message=details or f"the call ended with {status.name}"),
    )


def last_cause(details: str) -> str:
    """Return what stands last in gRPC's chain of reasons for a connection that failed."""
    return details.rpartition("Failed to connect to remote host: ")[2]


def _failed(code: str, message: str) -> pb.Terminal:
    return pb.Terminal(outcome=pb.OUTCOME_FAILED, error=pb.Error(code=code, message=message))
