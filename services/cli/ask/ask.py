"""`penstock ask`: one call of Generate, shown as it comes, its outcome as the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services.cli.ask.ask_request import parse_request
from services.cli.ask.gateway_channel import open_gateway
from services.cli.ask.generate_call import EXIT_CODES, interrupted_terminal, show_answer
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.view.answer_output import AnswerOutput, JsonOutput, TextOutput
from services.cli.view.reasoning_view import ReasoningView
from services.cli.view.terminal_text import json_sink, text_sink
from shared.errors import InvalidRequest, Unavailable
from shared.process.quiet_end import EXIT_INTERRUPTED


def main(argv: Sequence[str]) -> int:
    args, request = parse_request(argv)
    output: AnswerOutput
    if args.json:
        output = JsonOutput(json_sink(sys.stdout), text_sink(sys.stderr), timeline=args.timeline)
    else:
        tell_cut = args.max_tokens is None
        out, err = text_sink(sys.stdout), text_sink(sys.stderr)
        reasoning = None if args.hide_reasoning else ReasoningView(sys.stderr)
        output = TextOutput(out, err, timeline=args.timeline, tell_cut=tell_cut, reasoning=reasoning)
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
