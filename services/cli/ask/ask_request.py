"""The options of `penstock ask`, and the GenerateRequest they make."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.arguments import finite, logit_bias, natural, seconds, token_id_list
from services.cli.ask.gateway_channel import add_gateway_options
from services.cli.ask.piped_text import is_piped, read_piped_text
from services.cli.ask.retrieval_options import PASSAGE_ORDERS, add_search_options, metadata_filters
from services.cli.ask.trimming_options import add_trimming_options, set_trimming
from shared.errors import PenstockError
from shared.sampling.parameters import SCALARS

PRIORITIES = {"low": pb.PRIORITY_LOW, "normal": pb.PRIORITY_NORMAL, "high": pb.PRIORITY_HIGH}
SCALAR_OPTIONS = {
    name: definition for name, definition in SCALARS.items() if name in pb.Sampling.DESCRIPTOR.fields_by_name
}
"""One option each, `--top-k` for `top_k`; what is not given is not sent."""
CONSTRAINTS = ("json_object", "json_schema", "regex", "grammar")
FROM_STDIN = "-"
MAX_FILE_BYTES = 1 << 20
"""The largest file of a schema or grammar; the gateway allows less and says how much."""

EFFORTS = {
    "none": pb.REASONING_EFFORT_NONE,
    "minimal": pb.REASONING_EFFORT_MINIMAL,
    "low": pb.REASONING_EFFORT_LOW,
    "medium": pb.REASONING_EFFORT_MEDIUM,
    "high": pb.REASONING_EFFORT_HIGH,
}
CACHE_MODES = {
    "off": pb.CACHE_MODE_OFF,
    "exact": pb.CACHE_MODE_EXACT,
    "semantic": pb.CACHE_MODE_SEMANTIC,
}


def build_ask_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock ask",
        usage="%(prog)s [options] [TEXT]",
        description="Send one prompt to the running stack and stream the answer to stdout. A model with a "
        "chat template gets TEXT as a message of a chat, any other one as plain text. What is piped in "
        "stands before TEXT, or is the prompt where there is none.",
        epilog="Exit code: 0 finished, 1 failed, 2 wrong usage, 3 expired, 4 shed, 5 cancelled, 130 Ctrl-C, "
        "141 nobody reads the answer any more.",
        allow_abbrev=False,  # an --api-key that nobody offers must not be taken for --api-key-file
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the prompt; - is what is piped in alone")
    _add_prompt(parser)
    add_trimming_options(parser)
    add_sampling(parser)
    add_thinking(parser)
    _add_constraint(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument("--deadline", type=seconds, metavar="SECONDS", help="for the whole answer")
    limits.add_argument("--ttft-deadline", type=seconds, metavar="SECONDS", help="for the first token")
    limits.add_argument(
        "--inter-token-deadline", type=seconds, metavar="SECONDS", help="from one token to the next"
    )
    limits.add_argument("--priority", choices=tuple(PRIORITIES), default="normal")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON object per event instead of text")
    output.add_argument("--timeline", action="store_true", help="show where the time went")
    add_gateway_options(parser)
    return parser


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    prompt = parser.add_argument_group("prompt")
    template = prompt.add_mutually_exclusive_group()
    template.add_argument(
        "--raw", action="store_true", help="continue TEXT as it is, without a chat template"
    )
    template.add_argument("--chat", action="store_true", help="refuse a model that has no chat template")
    prompt.add_argument("--system", metavar="TEXT", help="system message, before TEXT")
    prompt.add_argument(
        "--token-ids", type=token_id_list, metavar="1,2,3", help="the prompt as ids instead of TEXT"
    )
    prompt.add_argument(
        "--model", default="", help="which one answers, or a virtual name by whose rules one is chosen"
    )
    others = prompt.add_mutually_exclusive_group()
    others.add_argument(
        "--fallback",
        action="append",
        default=[],
        metavar="MODEL",
        help="answers where the one before it is shed, down or too slow; several in order",
    )
    others.add_argument(
        "--no-fallback", action="store_true", help="only the model that a virtual name chooses answers"
    )
    prompt.add_argument(
        "--sticky-key",
        default="",
        metavar="TEXT",
        help="with the same one the same of several models answers",
    )
    prompt.add_argument(
        "--session",
        default="",
        metavar="NAME",
        help="the agent that this is a call of: its calls share what they have waited, and its KV stays",
    )
    prompt.add_argument("--retrieve", action="store_true", help="answer from the indexed folder")
    prompt.add_argument("--k", type=natural, help="passages to retrieve, 1 to 16 (default 3)")
    add_search_options(prompt)
    prompt.add_argument(
        "--order", choices=PASSAGE_ORDERS, help="how passages stand in the prompt (default: shared_prefix)"
    )
    prompt.add_argument(
        "--cache", choices=CACHE_MODES, help="whether an earlier answer will do (default: the gateway's)"
    )
    prompt.add_argument("--no-degrade", action="store_true", help="fail rather than answer without passages")


def add_thinking(parser: argparse.ArgumentParser) -> None:
    thinking = parser.add_argument_group("thinking before the answer")
    thinking.add_argument(
        "--reasoning-effort", choices=EFFORTS, help="how much; none to high (default: the model's own)"
    )
    thinking.add_argument(
        "--thinking-tokens", type=natural, metavar="N", help="close it after so many tokens"
    )
    thinking.add_argument(
        "--thinking-deadline", type=seconds, metavar="SECONDS", help="close it so long after the question"
    )
    thinking.add_argument(
        "--hide-reasoning",
        action="store_true",
        help="do not show on stderr what the model thinks before it answers",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group("sampling")
    for name, definition in SCALAR_OPTIONS.items():
        option = "--" + name.replace("_", "-")
        if definition.bounds is None:
            sampling.add_argument(option, action="store_true", default=None, help=definition.help)
        elif definition.bounds.integer:
            sampling.add_argument(option, type=natural, metavar="N", help=definition.help)
        else:
            sampling.add_argument(option, type=finite, metavar="X", help=definition.help)
    sampling.add_argument("--logit-bias", type=logit_bias, action="append", default=[], metavar="ID=VALUE")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    sampling.add_argument(
        "--stop-regex", action="append", default=[], metavar="REGEX", help="end before what matches this"
    )
    sampling.add_argument("--stop-token-id", type=natural, action="append", default=[], metavar="ID")


def set_sampling(request: pb.GenerateRequest, args: argparse.Namespace) -> None:
    """Raises ValueError for a number that does not fit its field."""
    for name in SCALAR_OPTIONS:
        value = getattr(args, name)
        if value is not None:
            setattr(request.sampling, name, value)
    for token_id, bias in args.logit_bias:
        request.sampling.logit_bias[token_id] = bias
    request.sampling.stop.extend(args.stop)
    request.sampling.stop_regex.extend(args.stop_regex)
    request.sampling.stop_token_ids.extend(args.stop_token_id)


def set_thinking(request: pb.GenerateRequest, args: argparse.Namespace) -> None:
    """Raises ValueError for a number that does not fit its field."""
    if args.reasoning_effort is not None:
        request.thinking.effort = EFFORTS[args.reasoning_effort]
    if args.thinking_tokens is not None:
        request.thinking.max_tokens = args.thinking_tokens
    if args.thinking_deadline is not None:
        request.thinking.deadline_ms = _milliseconds(args.thinking_deadline)


def _add_constraint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the whole answer matches")
    constraint = group.add_mutually_exclusive_group()
    constraint.add_argument("--json-object", action="store_true", help="a JSON object")
    constraint.add_argument(
        "--json-schema", type=_text_or_file("{"), metavar="FILE|TEXT", help="JSON of this schema"
    )
    constraint.add_argument("--regex", metavar="REGEX", help="without look-around")
    constraint.add_argument(
        "--grammar", type=_text_or_file(":"), metavar="FILE|TEXT", help="in Lark's notation or in GBNF"
    )


def _text_or_file(mark: str) -> Callable[[str], str]:
    """A type of argument: the text itself when it has the mark that all such texts have, else a file's."""

    def read(value: str) -> str:
        if mark in value:
            return value
        try:
            with Path(value).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode()
        except UnicodeDecodeError as error:
            raise argparse.ArgumentTypeError(f"{value!r} is not UTF-8 text") from error
        except OSError as error:
            raise argparse.ArgumentTypeError(
                f"{value[:80]!r} has no {mark!r} and cannot be read as a file ({error.strerror})"
            ) from error
        if len(data) > MAX_FILE_BYTES:
            raise argparse.ArgumentTypeError(f"{value!r} is larger than {MAX_FILE_BYTES} bytes")
        return text

    return read


def parse_request(argv: Sequence[str]) -> tuple[argparse.Namespace, pb.GenerateRequest]:
    """Prints a sentence and exits with 2 on wrong usage."""
    parser = build_ask_parser()
    args = parser.parse_args(argv)
    if args.token_ids is not None and args.text is not None:
        parser.error("give the prompt either as TEXT or with --token-ids")
    plain = "--token-ids" if args.token_ids is not None else "--raw" if args.raw else ""
    if plain and (args.chat or args.system is not None or args.retrieve):
        parser.error(f"{plain} is sent as it is: it goes without --chat, --system and --retrieve")
    about_passages = args.k is not None or args.no_degrade or args.corpus or args.filter or args.order
    if about_passages and not args.retrieve:
        parser.error("--k, --corpus, --filter, --order and --no-degrade need --retrieve")
    if args.k is not None and not 1 <= args.k <= 16:
        parser.error("--k must be between 1 and 16")
    args.question = ""
    if args.token_ids is None:
        _read_prompt(parser, args)
    try:
        return args, _request(args)
    except ValueError as error:  # a number that does not fit its field
        parser.error(str(error))


def _read_prompt(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Set `text`, with what is piped in, and `question`: what is searched for, where that is less."""
    if is_piped(sys.stdin) or args.text == FROM_STDIN:
        try:
            piped = read_piped_text(sys.stdin)
        except PenstockError as error:
            parser.error(str(error))
        if args.text in (None, FROM_STDIN):
            args.text = piped or args.text
        elif piped.strip():
            args.question = args.text
            args.text = f"{piped.rstrip()}\n\n{args.text}"
    if args.text in (None, FROM_STDIN):
        parser.error("give the prompt as TEXT, pipe it in, or give its ids with --token-ids")


def _request(args: argparse.Namespace) -> pb.GenerateRequest:
    request = pb.GenerateRequest(
        model=args.model, priority=PRIORITIES[args.priority], sticky_key=args.sticky_key
    )
    if args.session:
        request.agent.session = args.session
    if args.fallback or args.no_fallback:
        request.fallback.allowed = not args.no_fallback
        request.fallback.models.extend(args.fallback)
    _set_prompt(request, args)
    set_sampling(request, args)
    set_thinking(request, args)
    set_trimming(request, args)
    for name in CONSTRAINTS:
        value = getattr(args, name)
        if value is not None and value is not False:  # an empty text is sent, to be refused
            setattr(request.sampling, name, value)
    if args.deadline is not None:
        request.deadline_ms = _milliseconds(args.deadline)
    if args.ttft_deadline is not None:
        request.ttft_deadline_ms = _milliseconds(args.ttft_deadline)
    if args.inter_token_deadline is not None:
        request.inter_token_deadline_ms = _milliseconds(args.inter_token_deadline)
    return request


def _set_prompt(request: pb.GenerateRequest, args: argparse.Namespace) -> None:
    if args.token_ids is not None:
        request.token_ids.ids.extend(args.token_ids)
    elif args.raw:
        request.text = args.text
    else:
        if args.system is not None:
            request.chat.messages.add(role="system", content=args.system)
        request.chat.messages.add(role="user", content=args.text)
        request.chat.template_optional = not args.chat
    if args.retrieve:
        request.retrieval.enabled = True
        request.retrieval.may_degrade = not args.no_degrade
        if args.k is not None:
            request.retrieval.k = args.k
        request.retrieval.corpus = args.corpus
        request.retrieval.query = args.question
        request.retrieval.filters.extend(metadata_filters(args.filter))
        if args.score_threshold is not None:
            request.retrieval.score_threshold = args.score_threshold
        if args.order is not None:
            request.retrieval.order = PASSAGE_ORDERS[args.order]
    if args.cache is not None:
        request.cache.mode = CACHE_MODES[args.cache]


def _milliseconds(value_s: float) -> int:
    return max(1, round(value_s * 1000))
