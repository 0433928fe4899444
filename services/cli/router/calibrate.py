"""`penstock router calibrate`: find below which confidence a cascade asks its large model anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.arguments import finite, seconds
from services.cli.ask.ask_request import add_sampling, set_sampling
from services.cli.ask.gateway_channel import add_gateway_options, open_gateway
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.router.accepted_questions import AcceptedQuestion, read_questions
from services.cli.router.asked_answers import ask_both
from services.cli.router.cascade_curve import (
    EVERYBODY,
    NOBODY,
    JudgedPair,
    cascade_curve,
    cascade_point,
    fewest_anew,
    surer_share,
)
from services.cli.router.cascade_words import advice_words, confidence_words, curve_words
from shared.errors import InvalidRequest, PenstockError
from shared.process.quiet_end import EXIT_INTERRUPTED

DEFAULT_KEEP = 0.95
DEFAULT_DEADLINE_S = 120.0


def add_calibrate_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="find the threshold of a cascade",
        description="Ask two models of the running stack the same questions, and say for each threshold of "
        "min_logprob how many questions the large one would answer anew, how many answers would be right, "
        "and what that costs. Half of the questions chooses a threshold, the rest says what it is worth.",
    )
    parser.add_argument(
        "questions", type=Path, metavar="FILE", help='lines of {"text": "…", "accepted": ["REGEX", "…"]}'
    )
    parser.add_argument("--small", required=True, metavar="MODEL", help="answers first")
    parser.add_argument("--large", required=True, metavar="MODEL", help="answers anew")
    parser.add_argument(
        "--keep",
        type=_share,
        default=DEFAULT_KEEP,
        metavar="SHARE",
        help="of the most right answers that any threshold gives (default: %(default)s)",
    )
    parser.add_argument("--retrieve", action="store_true", help="answer from the indexed documents")
    parser.add_argument("--corpus", default="", metavar="NAME", help="those, where there are several")
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEFAULT_DEADLINE_S,
        metavar="SECONDS",
        help="for each answer (default: %(default)g)",
    )
    add_sampling(parser)
    add_gateway_options(parser)


def calibrate(args: argparse.Namespace) -> int:
    """Ask both models, and print the curve and the threshold; return the exit code."""
    try:
        questions = read_questions(args.questions)
        request = _request(args)
        gateway = open_gateway(args)
    except (InvalidRequest, ValueError) as error:
        print(f"penstock router: {error}", file=sys.stderr)
        return EXIT_USAGE
    except PenstockError as error:
        print(f"penstock router: {error}", file=sys.stderr)
        return EXIT_FAILED
    models: tuple[str, str] = (args.small, args.large)
    with gateway.channel:
        try:
            pairs = ask_both(gateway, request, models, questions, lambda done: _show(done, questions))
        except PenstockError as error:
            _end_line()
            print(f"penstock router: {error}", file=sys.stderr)
            return EXIT_FAILED
        except KeyboardInterrupt:
            _end_line()
            return EXIT_INTERRUPTED
    _end_line()
    print(curve_words(cascade_curve(pairs)), end="\n\n")
    print(confidence_words(args.small, surer_share(pairs)))
    print(_advice(models, pairs, args.keep))
    return 0


def _advice(models: tuple[str, str], pairs: Sequence[JudgedPair], keep: float) -> str:
    """Choose by every other question, and judge by the rest."""
    chosen = fewest_anew(cascade_curve(pairs[::2]), keep)
    held_out = [cascade_point(pairs[1::2], each) for each in (NOBODY, chosen.min_logprob, EVERYBODY)]
    return advice_words(models, chosen, held_out)


def _request(args: argparse.Namespace) -> pb.GenerateRequest:
    """Raises ValueError for a number that does not fit its field."""
    request = pb.GenerateRequest(deadline_ms=max(1, round(args.deadline * 1000)))
    set_sampling(request, args)
    if args.retrieve:
        request.retrieval.enabled = True
        request.retrieval.corpus = args.corpus
    return request


def _show(done: int, questions: Sequence[AcceptedQuestion]) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {len(questions)} questions are answered", end="", file=sys.stderr, flush=True)


def _end_line() -> None:
    """Let what follows stand below the count."""
    if sys.stderr.isatty():
        print(file=sys.stderr)


def _share(text: str) -> float:
    share = finite(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0, up to 1")
    return share
