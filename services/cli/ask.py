"""`penstock ask`: one call of Generate, shown as it comes, its outcome as the exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its warnings would stand between the words of the answer
import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.answer_output import AnswerOutput, JsonOutput, TextOutput
from services.cli.ask_request import parse_request
from services.cli.exit_codes import EXIT_CANCELLED, EXIT_EXPIRED, EXIT_FAILED, EXIT_SHED, EXIT_USAGE
from services.cli.gateway_channel import call_metadata, open_channel
from services.cli.stack_file import stack_address
from shared.errors import InvalidRequest, Unavailable

METHOD = "/penstock.v1.Inference/Generate"

EXIT_CODES = {
    pb.OUTCOME_FINISHED: 0,
    pb.OUTCOME_FAILED: EXIT_FAILED,
    pb.OUTCOME_EXPIRED: EXIT_EXPIRED,
    pb.OUTCOME_SHED: EXIT_SHED,
    pb.OUTCOME_CANCELLED: EXIT_CANCELLED,
}

STATUS_OUTCOMES = {
    grpc.StatusCode.CANCELLED: pb.OUTCOME_CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: pb.OUTCOME_EXPIRED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: pb.OUTCOME_SHED,
}
"""For calls that end without a terminal event; every other status is a failure."""

ADDRESS_VARIABLE = "PENSTOCK_GRPC"
BACKSTOP_S = 5.0
"""Beyond the request's own deadline: the gateway should have ended the call by itself."""


def main(argv: Sequence[str]) -> int:
    args, request = parse_request(argv)
    output: AnswerOutput = (JsonOutput if args.json else TextOutput)(
        sys.stdout, sys.stderr, timeline=args.timeline
    )
    try:
        address = args.grpc or os.environ.get(ADDRESS_VARIABLE, "")
        address = address or stack_address(args.state_dir, "grpc", "--grpc HOST:PORT")
        metadata = call_metadata(args)
        channel = open_channel(address, args)
    except Unavailable as error:
        print(f"penstock ask: {error}", file=sys.stderr)
        return EXIT_FAILED
    except InvalidRequest as error:
        print(f"penstock ask: {error}", file=sys.stderr)
        return EXIT_USAGE
    with channel:
        return _ask(channel, address, request, output, metadata)


def _ask(
    channel: grpc.Channel,
    address: str,
    request: pb.GenerateRequest,
    output: AnswerOutput,
    metadata: tuple[tuple[str, str], ...],
) -> int:
    timeout_s = request.deadline_ms / 1e3 + BACKSTOP_S if request.HasField("deadline_ms") else None
    generate = channel.unary_stream(
        METHOD,
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateEvent.FromString,
    )
    request.client_sent_unix_us = time.time_ns() // 1000
    call = generate(request, timeout=timeout_s, metadata=metadata)
    terminal: pb.Terminal | None = None
    try:
        for event in call:
            terminal = _show(event, output) or terminal
    except grpc.RpcError as error:
        # After a terminal event the status only repeats it.
        terminal = terminal or _terminal_of(error, address)
    except KeyboardInterrupt:
        call.cancel()  # type: ignore[no-untyped-call]  # the stubs leave it without types
        terminal = _cancelled("interrupted from the keyboard")
    except BrokenPipeError:  # the reader of stdout went away: nobody wants the rest
        call.cancel()  # type: ignore[no-untyped-call]  # the stubs leave it without types
        _discard_stdout()
        return EXIT_CANCELLED
    if terminal is None:
        terminal = _failed("protocol", "the call ended without a terminal event; is that a Penstock gateway?")
    output.end(terminal)
    return EXIT_CODES.get(terminal.outcome, EXIT_FAILED)


def _show(event: pb.GenerateEvent, output: AnswerOutput) -> pb.Terminal | None:
    """Show an event; the terminal one is returned instead, to be shown when the call has ended."""
    kind = event.WhichOneof("event")
    if kind == "prompt":
        output.prompt(event.prompt)
    elif kind == "text":
        output.text(event.text)
    elif kind == "end":
        return event.end
    return None


def _terminal_of(error: grpc.RpcError, address: str) -> pb.Terminal:
    status, details = error.code(), error.details() or ""
    if status == grpc.StatusCode.UNAVAILABLE:
        advice = "is the stack running? Over TLS it needs --tls-ca"
        return _failed("unavailable", f"no gateway answers at {address}: {details}; {advice}")
    return pb.Terminal(
        outcome=STATUS_OUTCOMES.get(status, pb.OUTCOME_FAILED),
        error=pb.Error(code=status.name.lower(), message=details or f"the call ended with {status.name}"),
    )


def _cancelled(message: str) -> pb.Terminal:
    return pb.Terminal(outcome=pb.OUTCOME_CANCELLED, error=pb.Error(code="cancelled", message=message))


def _failed(code: str, message: str) -> pb.Terminal:
    return pb.Terminal(outcome=pb.OUTCOME_FAILED, error=pb.Error(code=code, message=message))


def _discard_stdout() -> None:
    """Python flushes stdout once more at exit: let that go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
