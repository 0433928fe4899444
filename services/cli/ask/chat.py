"""`penstock chat`: a conversation in the terminal. Ctrl-C cancels an answer, never the conversation."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.ask_request import add_sampling, add_thinking, set_sampling, set_thinking
from services.cli.ask.chat_session import ChatSession, TextView
from services.cli.ask.gateway_channel import add_gateway_options, open_gateway
from services.cli.ask.line_input import line_input
from services.cli.ask.served_models import ServedModels
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.view.live_text import redraws_text
from services.cli.view.reasoning_view import ReasoningView
from services.cli.view.terminal_text import text_sink
from shared.errors import InvalidRequest, Unavailable
from shared.process.quiet_end import EXIT_INTERRUPTED, interrupts_end_at_once

LEAVE = "/quit or Ctrl-D leaves"


def build_chat_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock chat",
        usage="%(prog)s [options]",
        description="Talk with the model. Ctrl-C cancels an answer or clears the line; /quit and Ctrl-D "
        "leave, /help lists what else can be typed. Lines are edited as in a shell, with a history that is "
        "kept, and a pasted text is one message. A model without a template gets the conversation as plain "
        "text. Answers are shown as Markdown where stdout is a terminal, without colours where NO_COLOR is "
        "set. Where stdin is no terminal, each line of it is a message.",
        allow_abbrev=False,
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--model", default="", help="refuse to be answered by another model")
    parser.add_argument("--retrieve", action="store_true", help="answer from the indexed folder")
    add_sampling(parser)
    add_thinking(parser)
    add_gateway_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_chat_parser()
    args = parser.parse_args(argv)
    template = pb.GenerateRequest(model=args.model)
    try:
        set_sampling(template, args)
        set_thinking(template, args)
    except ValueError as error:  # a number that does not fit its field
        parser.error(str(error))
    try:
        gateway = open_gateway(args)
    except Unavailable as error:
        print(f"penstock chat: {error}", file=sys.stderr)
        return EXIT_FAILED
    except InvalidRequest as error:
        print(f"penstock chat: {error}", file=sys.stderr)
        return EXIT_USAGE
    with gateway.channel:
        try:
            models = ServedModels.of(gateway)
        except Unavailable as error:
            print(f"penstock chat: {error}", file=sys.stderr)
            return EXIT_FAILED
        session = ChatSession(
            gateway,
            template,
            models,
            args.system,
            text_sink(sys.stdout),
            text_sink(sys.stderr),
            retrieve=args.retrieve,
            view=_markdown_view(),
            reasoning=None if args.hide_reasoning else ReasoningView(sys.stderr),
        )
        if sys.stdin.isatty():
            print(models.banner(args.model, retrieve=args.retrieve), file=text_sink(sys.stderr))
        return _talk(session)


def _markdown_view() -> TextView | None:
    """Return a view of Markdown; None where stdout is no terminal that text can be shown in again."""
    if not redraws_text(sys.stdout):
        return None
    with interrupts_end_at_once():
        from services.cli.view.markdown_view import MarkdownView  # noqa: PLC0415 - a pipe does without its libraries

    return MarkdownView(sys.stdout)


def _talk(session: ChatSession) -> int:
    """Return the exit code: 0 when the user has enough; a Ctrl-C where nobody types ends it."""
    with interrupts_end_at_once():
        lines = line_input()
    while not session.ended:
        try:
            line = lines.read()
        except EOFError:
            print(file=sys.stderr)
            return 0
        except UnicodeDecodeError:
            print("penstock chat: that is not UTF-8 text", file=sys.stderr)
            continue
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if not sys.stdin.isatty():
                return EXIT_INTERRUPTED
            print(LEAVE, file=sys.stderr)
            continue
        with contextlib.suppress(KeyboardInterrupt):  # just before the answer began, or just after its end
            session.take_line(line)
    return 0
