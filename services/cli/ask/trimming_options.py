"""The options that say what may be left out of a prompt, so that it is shorter."""

from __future__ import annotations

import argparse

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.arguments import natural


def add_trimming_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("budgets of the prompt, which is shortened to them")
    group.add_argument(
        "--no-trimming", action="store_true", help="nothing is left out, whatever the gateway leaves out"
    )
    group.add_argument(
        "--max-passage-tokens",
        type=natural,
        metavar="N",
        help="of all passages together: their sentences that fit the question best stay",
    )
    group.add_argument(
        "--passage-share", type=_share, metavar="SHARE", help="of the tokens that passages have, as 0.5"
    )
    group.add_argument(
        "--max-prompt-tokens",
        type=natural,
        metavar="N",
        help="of a chat, which is sent without its oldest turns where it has more",
    )
    group.add_argument(
        "--max-summary-tokens",
        type=natural,
        metavar="N",
        help="of a summary in the place of those turns, by their sentences that say most",
    )
    group.add_argument(
        "--max-tool-tokens",
        type=natural,
        metavar="N",
        help="of all tools together: those that are asked for stay",
    )
    group.add_argument("--compact", action="store_true", help="leave out space that says nothing")
    group.add_argument(
        "--no-duplicates",
        action="store_true",
        help="leave out sentences that another passage says already",
    )


def set_trimming(request: pb.GenerateRequest, args: argparse.Namespace) -> None:
    """Raises ValueError for a number that does not fit its field."""
    if args.no_trimming:
        request.trimming.off = True
    if args.max_passage_tokens is not None:
        request.trimming.max_passage_tokens = args.max_passage_tokens
    if args.passage_share is not None:
        request.trimming.passage_share = args.passage_share
    if args.max_prompt_tokens is not None:
        request.trimming.max_prompt_tokens = args.max_prompt_tokens
    if args.max_summary_tokens is not None:
        request.trimming.max_summary_tokens = args.max_summary_tokens
    if args.max_tool_tokens is not None:
        request.trimming.max_tool_tokens = args.max_tool_tokens
    if args.compact:
        request.trimming.compact = True
    if args.no_duplicates:
        request.trimming.duplicates = True


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0 and at most 1")
    return share
