"""`penstock why`: where the time of one request went, and which hop was slow."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict

from services.cli.exit_codes import EXIT_FAILED
from services.cli.fleet.fleet_watch import BusAddress, add_bus_options, listening, run_on_bus
from services.cli.view.request_words import request_words
from services.cli.view.terminal_text import escaped_controls
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import AccountRequest, NoAccount, RequestAccount

ASK_TIMEOUT_S = 2.0
MAX_NAME_CHARS = 256
"""The longest id of a request that is asked for."""
ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""The beginnings of ids in OpenAI's answers; behind them stands our id of the request."""

Answers = dict[str, RequestAccount | NoAccount | str]
"""Gateway → its answer, or why there is none."""


def build_why_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock why",
        description="Say where the time of a request went that has ended, which hop was slow, and against "
        "what is usual for others of its length. Exit code 1 when no gateway knows the request.",
    )
    parser.add_argument(
        "id", type=_request_name, help="of the answer, or the x-request-id that the client sent"
    )
    add_bus_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_why_parser().parse_args(argv)
    return run_on_bus(args, "why", lambda address: _why(address, args))


async def _why(address: BusAddress, args: argparse.Namespace) -> int:
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        gateways = [seen.beat.instance for seen in fleet.all() if seen.beat.role == "gateway"]
        answers = dict(zip(gateways, await _ask_all(bus, gateways, args.id), strict=True))
    found = [answer for answer in answers.values() if isinstance(answer, RequestAccount)]
    if not found:
        print(escaped_controls(unknown_words(args.id, answers)))
        return EXIT_FAILED
    latest = max(found, key=lambda account: account.began_unix_us)
    print(json.dumps(asdict(latest)) if args.json else request_words(latest))
    return 0


async def _ask_all(bus: Bus, gateways: Sequence[str], name: str) -> list[RequestAccount | NoAccount | str]:
    deadline = Deadline.after(ASK_TIMEOUT_S)
    return await asyncio.gather(*(_ask(bus, gateway, name, deadline) for gateway in gateways))


async def _ask(bus: Bus, gateway: str, name: str, deadline: Deadline) -> RequestAccount | NoAccount | str:
    envelope = bus.envelope(deadline=deadline)
    try:
        answer = await bus.ask(inbox("gateway", gateway), AccountRequest(name), envelope, deadline)
    except PenstockError as error:
        return str(error)
    if isinstance(answer, RequestAccount | NoAccount):
        return answer
    return f"answered with {type(answer).__name__}"


def unknown_words(name: str, answers: Answers) -> str:
    """Say why nothing can be told of the request."""
    running = [
        f"{name} is still running at {gateway}, in its phase {answer.phase}: ask again when it has ended"
        for gateway, answer in answers.items()
        if isinstance(answer, NoAccount) and answer.phase
    ]
    if running:
        return "\n".join(running)
    if not answers:
        return "no gateway is heard on this bus; is the stack running?"
    owner, _, token = name.rpartition(".")
    lines = [f"{gateway} does not answer: {a}" for gateway, a in answers.items() if isinstance(a, str)]
    if owner.startswith("gateway") and token and owner not in answers:
        return "\n".join([*lines, f"{owner}, which had the request {name}, is not heard on this bus"])
    kept = [f"the last {a.kept} of {gateway}" for gateway, a in answers.items() if isinstance(a, NoAccount)]
    known = f"; what is known are {', '.join(kept)}" if kept else ""
    return "\n".join([*lines, f"no gateway knows a request {name}: it never came, or it is too old{known}"])


def _request_name(text: str) -> str:
    for prefix in ID_PREFIXES:
        text = text.removeprefix(prefix)
    if not 0 < len(text) <= MAX_NAME_CHARS:
        raise argparse.ArgumentTypeError(f"the id has {len(text)} characters; send 1 to {MAX_NAME_CHARS}")
    return text
