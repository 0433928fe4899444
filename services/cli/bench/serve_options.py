"""The options of `penstock bench serve`: what is measured, with what load, and what is said of it."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from services.cli.arguments import finite, natural, seconds
from services.cli.ask.gateway_channel import add_gateway_options
from services.cli.bench.plan.arrivals import MAX_VARIATION
from services.cli.bench.plan.conduct import Conduct, ConductShare
from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.report.service_level import FORMS, ServiceLevel
from services.cli.bench.run.rate_sweep import SweepPlan
from services.cli.bench.targets.openai_words import PATHS
from services.cli.launcher_process import ROOT
from shared.telemetry.useful_answer import UsefulMarker

MAX_RATE = 100_000.0
"""The most requests a second that are asked for."""
MAX_CLIENTS = 100_000
"""The most clients of a closed loop."""
MAX_PROCESSES = 64
"""The most processes that make one load."""
MAX_SPEED = 10_000.0
"""The most times faster that a trace is replayed."""
KINDS = ("synthetic", "mooncake", "azure", "agents", "tracelab", "prompts")
SOURCES = "synthetic, mooncake:FILE, azure:FILE, agents:FILE|DIR, tracelab:FILE or prompts:FILE"
SOURCE_NAME = re.compile(r"([A-Za-z][\w-]{0,39})=(.*)")
"""The name of a source before what it is, as objectives have it."""
LONGEST_PAUSE_S = 10.0
"""The pause that AgentX cuts those of agents to."""
CONDUCT_HELP = {
    Conduct.CANCEL: "share of clients that cancel after AMOUNT tokens",
    Conduct.DISCONNECT: "share whose connection is cut after AMOUNT tokens",
    Conduct.STALL: "share that stop to read after AMOUNT tokens",
    Conduct.OVERSIZED: "share of prompts of AMOUNT tokens",
    Conduct.HURRIED: "share with a deadline of AMOUNT ms",
    Conduct.SCHEMA: "share whose answers fit a new JSON schema of AMOUNT properties",
    Conduct.RETRIEVE: "share that waits for AMOUNT passages of the server's corpus",
}
ReadValue = TypeVar("ReadValue")


class GivenSource(NamedTuple):
    """A source as it was given; `name` is "" where it has the name of its kind."""

    weight: float
    kind: str
    file: str
    name: str = ""


SYNTHETIC = GivenSource(1.0, "synthetic", "")
"""The source where none is given."""


def build_bench_serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench serve",
        description="Put load on a server and measure it. Exit code 1 when an objective of --slo is missed, "
        "2 for bad input.",
    )
    add_target_options(parser)
    _add_load(parser)
    add_plan_options(parser)
    _add_conducts(parser)
    _add_report(parser)
    return parser


def add_target_options(parser: argparse.ArgumentParser) -> None:
    add_gateway_options(parser)
    group = parser.add_argument_group("what is measured")
    group.add_argument("--url", metavar="URL", help="a server with OpenAI's interfaces, instead of --grpc")
    group.add_argument("--interface", choices=sorted(PATHS), default="chat", help="default chat")
    group.add_argument("--model", default="", metavar="NAME", help="default: the first that is served")
    group.add_argument("--temperature", type=finite, default=0.0, metavar="T", help="default 0")
    group.add_argument(
        "--ignore-eos", action="store_true", help="answers have all their tokens, where the server knows how"
    )
    group.add_argument(
        "--server-pid",
        type=_from_one(1 << 22),
        action="append",
        default=[],
        metavar="PID",
        help="a process of the server here, whose CPU time and memory are told with those of its children; "
        "default: those of your stack, where that is measured",
    )
    group.add_argument("--connections", type=_from_one(1024), default=1, metavar="N", help="gRPC channels")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the load")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument(
        "--concurrency", type=_from_one(MAX_CLIENTS), metavar="N", help="closed loop of N clients; default 1"
    )
    kind.add_argument("--rate", type=_rate, metavar="R", help="open loop of R dialogues a second")
    kind.add_argument("--replay", action="store_true", help="open loop at the times of the one trace")
    kind.add_argument(
        "--sweep", type=_sweep, metavar="FROM-TO[xFACTOR]", help="open loops up to the knee; x1.5 each"
    )
    group.add_argument(
        "--variation",
        type=_bounded(0.0, MAX_VARIATION),
        default=1.0,
        metavar="CV",
        help="of the gaps: 1 is Poisson's, 0 equal, above 1 bursts; default 1",
    )
    group.add_argument("--duration", type=seconds, default=30.0, metavar="S", help="nothing begins later; 30")
    group.add_argument("--requests", type=_from_one(10**9), metavar="N", help="so many dialogues at most")
    group.add_argument("--warmup", type=_bounded(0.0, 1e6), default=0.0, metavar="S", help="does not count")
    group.add_argument("--deadline", type=seconds, default=600.0, metavar="S", help="of a call; default 600")
    group.add_argument(
        "--processes", type=_from_one(MAX_PROCESSES), default=1, metavar="N", help="make the load; default 1"
    )


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--source",
        type=_source,
        action="append",
        metavar="[NAME=][WEIGHT*]KIND[:FILE]",
        help=f"{SOURCES}; several are mixed; default synthetic",
    )
    lengths = said_by(TokenLengths.read)
    group.add_argument("--input-tokens", type=lengths, default=TokenLengths(256, 256), metavar="N")
    group.add_argument("--output-tokens", type=lengths, metavar="N", help="default 64, or as recorded")
    group.add_argument(
        "--shared-tokens", type=natural, default=0, metavar="N", help="begin all prompts alike"
    )
    group.add_argument(
        "--text",
        type=Path,
        default=ROOT / "shared" / "demo" / "documents",
        metavar="FILE|DIR",
        help="prompts are made of",
    )
    group.add_argument(
        "--speed", type=_bounded(1e-6, MAX_SPEED), default=1.0, metavar="X", help="of a replay"
    )
    group.add_argument("--length-scale", type=_bounded(1e-6, 1e3), default=1.0, metavar="X", help="of all")
    group.add_argument("--think", type=_bounded(0.0, 1e6), default=0.0, metavar="S", help="between turns")
    group.add_argument(
        "--longest-pause",
        type=_bounded(0.0, 1e6),
        default=LONGEST_PAUSE_S,
        metavar="S",
        help=f"of recorded agents; default {LONGEST_PAUSE_S:g}",
    )
    group.add_argument(
        "--no-hints",
        dest="hints",
        action="store_false",
        help="calls of recorded agents do not say which session they are of",
    )
    group.add_argument(
        "--cache-bust", action="store_true", help="no dialogue's prompts begin as another dialogue's do"
    )
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="the same load again; default 0")
    group.add_argument(
        "--text-seed", type=natural, default=0, metavar="N", help="other texts, of the same lengths"
    )


def _add_conducts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("clients that do not behave or are slow to serve, as 5%% or 5%%@AMOUNT")
    for conduct, text in CONDUCT_HELP.items():
        read = said_by(partial(ConductShare.read, conduct))
        group.add_argument(f"--{conduct}", type=read, metavar="SHARE", help=text)
    group.add_argument("--stall-seconds", type=seconds, default=30.0, metavar="S", help="default 30")


def _add_report(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is said")
    group.add_argument(
        "--slo",
        type=said_by(ServiceLevel.read),
        action="append",
        default=[],
        metavar="OBJECTIVE",
        help=f"{FORMS.replace('%', '%%')}; of the calls of one source NAME:OBJECTIVE",
    )
    group.add_argument(
        "--useful",
        type=said_by(UsefulMarker.read),
        default=UsefulMarker.read("sentence"),
        metavar="MARKER",
        help="when an answer is of use: sentence, json or regex:PATTERN; default sentence",
    )
    group.add_argument("--prices", type=Path, metavar="FILE", help="TOML: cost of tokens or of the machine")
    group.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    group.add_argument("--rows", action="store_true", help="every call in --json, too")
    group.add_argument("--html", type=Path, metavar="FILE", help="a page with plots")


def conduct_shares(args: argparse.Namespace) -> list[ConductShare]:
    given = [getattr(args, conduct.value) for conduct in CONDUCT_HELP]
    return [share for share in given if share is not None]


def named_sources(args: argparse.Namespace) -> list[tuple[str, GivenSource]]:
    """Return the sources of a load with their names: those given, else their kinds, the second of a
    kind with a number."""
    found: list[tuple[str, GivenSource]] = []
    unnamed: Counter[str] = Counter()
    for source in args.source or [SYNTHETIC]:
        unnamed[source.kind] += not source.name
        again = f"-{unnamed[source.kind]}" if unnamed[source.kind] > 1 else ""
        found.append((source.name or source.kind + again, source))
    return found


def checked_serve_args(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse and look at what options are together; a usage error ends the program with code 2."""
    args = parser.parse_args(argv)
    if sum(share.share for share in conduct_shares(args)) > 1 + 1e-9:
        parser.error("the shares of clients that do not behave are over 100 % together")
    names = [name for name, _ in named_sources(args)]
    if len(set(names)) < len(names):
        parser.error("two sources have one name: give each a NAME= of its own")
    if unknown := {level.source for level in args.slo} - {"", *names}:
        parser.error(f"--slo names {min(unknown)}, and the sources are {', '.join(names)}")
    if args.rows and not args.json:
        parser.error("--rows goes with --json")
    if args.interface == "completions" and args.schema:
        parser.error("--schema goes with --interface chat or responses: completions have no schemas")
    if args.interface == "responses" and not args.url:
        parser.error("--interface responses needs --url: gRPC has chats and completions")
    if args.warmup >= args.duration:
        parser.error(f"--warmup {args.warmup:g} leaves nothing of --duration {args.duration:g}")
    return args


def said_by(read: Callable[[str], ReadValue]) -> Callable[[str], ReadValue]:
    """Return a reader whose ValueError argparse says in full."""

    def value(text: str) -> ReadValue:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return value


def _bounded(least: float, most: float) -> Callable[[str], float]:
    def value(text: str) -> float:
        number = finite(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not between {least:g} and {most:g}")
        return number

    return value


def _from_one(most: int) -> Callable[[str], int]:
    def value(text: str) -> int:
        number = natural(text)
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return number

    return value


def _rate(text: str) -> float:
    return _bounded(1e-4, MAX_RATE)(text)


def _sweep(text: str) -> SweepPlan:
    span, x, factor = text.partition("x")
    first, dash, last = span.partition("-")
    if not dash:
        raise argparse.ArgumentTypeError(f"{text!r} is no sweep: write FROM-TO as 1-32, or 1-32x2")
    plan = SweepPlan(_rate(first), _rate(last), _bounded(1.01, 100.0)(factor) if x else 1.5)
    if plan.last_rate < plan.first_rate:
        raise argparse.ArgumentTypeError(f"{text!r} is no sweep: it ends below its beginning")
    return plan


def _source(text: str) -> GivenSource:
    named = SOURCE_NAME.fullmatch(text)
    name, words = named.groups() if named else ("", text)
    weight, star, rest = words.partition("*")
    kind, _, file = (rest if star else words).partition(":")
    share = _bounded(1e-6, 1e6)(weight) if star else 1.0
    if kind not in KINDS or bool(file) != (kind != "synthetic"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no source: write {SOURCES}, with NAME= before it or not"
        )
    return GivenSource(share, kind, file, name)
