"""`penstock search`: the passages that fit a question, without an answer from them."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.arguments import natural, seconds
from services.cli.ask.gateway_channel import add_gateway_options, open_gateway
from services.cli.ask.generate_call import EXIT_CODES, OpenGateway, terminal_of
from services.cli.ask.retrieval_options import add_search_options, metadata_filters
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.view.answer_output import sentence, terminal_width
from services.cli.view.degraded_words import degraded_words
from services.cli.view.passage_view import passage_fields, passage_head
from services.cli.view.terminal_text import escaped_controls, json_sink, text_sink
from shared.errors import InvalidRequest, Unavailable

METHOD = "/penstock.v1.Inference/Retrieve"
FROM_STDIN = "-"
MAX_FOUND = 50
INDENT = "   "


def build_search_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock search",
        usage="%(prog)s [options] QUESTION",
        description="Show the passages of the indexed documents that fit a question, best first.",
        epilog="Exit code: 0 searched, also where nothing was found; otherwise as `penstock ask` has them.",
        allow_abbrev=False,  # an --api-key that nobody offers must not be taken for --api-key-file
    )
    parser.add_argument("question", metavar="QUESTION", help="what to look for; - reads it from stdin")
    search = parser.add_argument_group("search")
    search.add_argument("--k", type=natural, help=f"passages wanted, 1 to {MAX_FOUND} (default 5)")
    add_search_options(search)
    search.add_argument("--no-rerank", action="store_true", help="in the order in which they are found")
    search.add_argument("--no-degrade", action="store_true", help="fail rather than show worse ones")
    search.add_argument("--deadline", type=seconds, metavar="SECONDS", help="for the whole search")
    search.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_gateway_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_search_parser()
    args = parser.parse_args(argv)
    if args.k is not None and not 1 <= args.k <= MAX_FOUND:
        parser.error(f"--k must be between 1 and {MAX_FOUND}")
    try:
        request = _request(args)
        gateway = open_gateway(args)
    except UnicodeDecodeError:
        parser.error("stdin is not UTF-8 text")
    except Unavailable as error:
        print(f"penstock search: {error}", file=sys.stderr)
        return EXIT_FAILED
    except InvalidRequest as error:
        print(f"penstock search: {error}", file=sys.stderr)
        return EXIT_USAGE
    with gateway.channel:
        try:
            found = _search(gateway, request, args.deadline)
        except grpc.RpcError as error:
            terminal = terminal_of(error, gateway.address)
            print(f"penstock search: {sentence(terminal)}", file=text_sink(sys.stderr))
            return EXIT_CODES.get(terminal.outcome, EXIT_FAILED)
    _show(found, as_json=args.json)
    return 0


def _request(args: argparse.Namespace) -> pb.RetrieveRequest:
    question = sys.stdin.read() if args.question == FROM_STDIN else args.question
    return pb.RetrieveRequest(
        corpus=args.corpus,
        query=question,
        k=args.k,
        filters=metadata_filters(args.filter),
        rerank=not args.no_rerank,
        may_degrade=not args.no_degrade,
        score_threshold=args.score_threshold,
    )


def _search(
    gateway: OpenGateway, request: pb.RetrieveRequest, deadline_s: float | None
) -> pb.RetrieveResponse:
    """Raises RpcError. The deadline of the call is the gateway's."""
    method = gateway.channel.unary_unary(
        METHOD,
        request_serializer=pb.RetrieveRequest.SerializeToString,
        response_deserializer=pb.RetrieveResponse.FromString,
    )
    found: pb.RetrieveResponse = method(request, timeout=deadline_s, metadata=gateway.metadata)
    return found


def _show(found: pb.RetrieveResponse, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(found), ensure_ascii=False), file=json_sink(sys.stdout))
        return
    width, out, err = terminal_width(), text_sink(sys.stdout), text_sink(sys.stderr)
    shown = escaped_controls if sys.stdout.isatty() else str  # before lines are cut, for their width
    for number, passage in enumerate(found.passages, start=1):
        lines = _lines(number, passage, shown(passage.text), width)
        print("\n".join(lines), end="\n\n" if number < len(found.passages) else "\n", file=out)
    if not found.passages:
        print("penstock search: nothing was found", file=err)
    if found.degraded:
        print(f"penstock search: searched with less: {degraded_words(found.degraded)}", file=err)
    if found.warning:
        print(f"penstock search: {found.warning}", file=err)


def _lines(number: int, passage: pb.RetrievedPassage, text: str, width: int) -> Iterator[str]:
    yield f"{number}. {passage_head(passage)}"
    for line in text.splitlines():
        yield from textwrap.wrap(line, width, initial_indent=INDENT, subsequent_indent=INDENT, tabsize=4) or [
            ""
        ]


def _plain(found: pb.RetrieveResponse) -> dict[str, object]:
    return {
        "corpus": found.corpus,
        "passages": [passage_fields(passage) for passage in found.passages],
        "degraded": found.degraded,
        "warning": found.warning,
    }
