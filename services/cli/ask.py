"""`penstock ask`: one call of Generate, shown as it comes, its outcome as the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.answer_output import AnswerOutput, JsonOutput, TextOutput
from services.cli.ask_request import parse_request
from services.cli.exit_codes import EXIT_CANCELLED, EXIT_EXPIRED, EXIT_FAILED, EXIT_SHED, EXIT_USAGE
from services.cli.gateway_channel import open_gateway
from services.cli.generate_call import interrupted_terminal, show_answer
from shared.errors import InvalidRequest, Unavailable
from shared.quiet_end import EXIT_INTERRUPTED

EXIT_CODES = {
    pb.OUTCOME_FINISHED: 0,
    pb.OUTCOME_FAILED: EXIT_FAILED,
    pb.OUTCOME_EXPIRED: EXIT_EXPIRED,
    pb.OUTCOME_SHED: EXIT_SHED,
    pb.OUTCOME_CANCELLED: EXIT_CANCELLED,
}


def main(argv: Sequence[str]) -> int:
    args, request = parse_request(argv)
    output: AnswerOutput = (JsonOutput if args.json else TextOutput)(
        sys.stdout, sys.stderr, timeline=args.timeline
    )
    try:
        gateway = open_gateway(args)
    except Unavailable as error:
        print(f"penstock ask: {error}", file=sys.stderr)
        return EXIT_FAILED
    except InvalidRequest as error:
        print(f"penstock ask: {error}", file=sys.stderr)
        return EXIT_USAGE
    with gateway.channel:
        try:
            terminal = show_answer(gateway, request, output)
        except KeyboardInterrupt:
            output.end(interrupted_terminal())
            return EXIT_INTERRUPTED
    return EXIT_CODES.get(terminal.outcome, EXIT_FAILED)
