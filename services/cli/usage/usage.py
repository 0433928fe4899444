"""`penstock usage`: what each tenant has used of each model, and what that costs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from services.cli.bench.report.prices import Prices
from services.cli.exit_codes import EXIT_FAILED
from services.cli.fleet.fleet_watch import BusAddress, Fleet, add_bus_options, listening, run_on_bus
from services.cli.usage.usage_sums import GatewayUsage, Sums, total, used_since
from services.cli.view.table import said_columns, table
from services.cli.view.terminal_text import escaped_controls
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import InvalidRequest, PenstockError
from shared.messages import AccountRequest, Message, RequestAccount, UsageReport, UsageRequest, UsageRow
from shared.seams.clock import SYSTEM_CLOCK

ASK_TIMEOUT_S = 2.0
NOBODY = "no gateway is heard on this bus; is the stack running?"
MIN_EVERY_S, MAX_EVERY_S = 1.0, 86_400.0
"""The shortest and longest period of an export."""
HEAD = (
    *("tenant", "model", "requests", "prompt", "cached", "shared", "output", "kept", "coalesced", "drafted"),
    *("core s", "gpu s", "KV MiB·s", "cost"),
)


def build_usage_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock usage",
        description="Say what each tenant has used of each model since the gateways started: tokens by where "
        "they came from, time of cores and GPUs, KV by its time. Exit code 1 when a gateway does not answer.",
    )
    parser.add_argument(
        "--prices", type=_prices, metavar="FILE", help="TOML: what tokens, cores, GPUs and KV cost"
    )
    parser.add_argument("--request", default="", metavar="ID", help="what one request has used, by its id")
    parser.add_argument(
        "--every",
        type=_seconds,
        metavar="SECONDS",
        help="go on, and print what was used in each such period, one line of JSON for each tenant and model",
    )
    add_bus_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_usage_parser().parse_args(argv)
    return run_on_bus(args, "usage", lambda address: _usage(address, args))


async def _usage(address: BusAddress, args: argparse.Namespace) -> int:
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        if args.request:
            return await _of_request(bus, fleet, args)
        readings, silent = await read_all(bus, fleet)
        for why in silent:
            print(escaped_controls(why), file=sys.stderr)
        if args.every:
            await _export(bus, fleet, args, readings)
        elif args.json:
            _print_lines(total(readings), args.prices, _began_us(readings), SYSTEM_CLOCK.unix_us())
        else:
            print(escaped_controls(usage_table(total(readings), args.prices)))
    return EXIT_FAILED if silent or not readings else 0


async def _of_request(bus: Bus, fleet: Fleet, args: argparse.Namespace) -> int:
    """Print what one request has used that has ended."""
    gateways = _gateways(fleet)
    answers = await asyncio.gather(
        *(_ask(bus, gateway, AccountRequest(args.request)) for gateway in gateways)
    )
    found = [answer for answer in answers if isinstance(answer, RequestAccount) and answer.usage]
    if not found:
        print(f"no gateway knows what {escaped_controls(args.request)} has used", file=sys.stderr)
        return EXIT_FAILED
    account = max(found, key=lambda each: each.began_unix_us)
    used = {("", ""): account.usage[0]}
    if args.json:
        _print_lines(used, args.prices, account.began_unix_us, account.began_unix_us + account.total_us)
    else:
        print(escaped_controls(usage_table(used, args.prices)))
    return 0


async def _export(bus: Bus, fleet: Fleet, args: argparse.Namespace, before: Sequence[GatewayUsage]) -> None:
    """Print one period after another, until the command is ended."""
    began_us = SYSTEM_CLOCK.unix_us()
    while True:
        await asyncio.sleep(args.every)
        readings, silent = await read_all(bus, fleet)
        for why in silent:
            print(escaped_controls(why), file=sys.stderr)
        ended_us = SYSTEM_CLOCK.unix_us()
        _print_lines(used_since(before, readings), args.prices, began_us, ended_us)
        kept = {reading.instance: reading for reading in (*before, *readings)}  # of who is silent, the last
        before, began_us = tuple(kept.values()), ended_us


def _print_lines(used: Sums, prices: Prices | None, began_us: int, ended_us: int) -> None:
    for row in used.values():
        line = {"from_unix_us": began_us, "to_unix_us": ended_us, **asdict(row)}
        if prices is not None:
            line |= {"cost": round(prices.cost_of_usage(row), 9), "currency": prices.currency}
        print(json.dumps(line), flush=True)


async def read_all(bus: Bus, fleet: Fleet) -> tuple[list[GatewayUsage], list[str]]:
    """Ask every gateway that is heard; return what they say, and a sentence for each that says nothing."""
    gateways = _gateways(fleet)
    answers = await asyncio.gather(*(_ask(bus, gateway, UsageRequest()) for gateway in gateways))
    told = dict(zip(gateways, answers, strict=True))
    readings = [GatewayUsage(name, said) for name, said in told.items() if isinstance(said, UsageReport)]
    silent = [
        f"{name} does not answer: {said if isinstance(said, str) else type(said).__name__}"
        for name, said in told.items()
        if not isinstance(said, UsageReport)
    ]
    return readings, silent if gateways else [NOBODY]


async def _ask(bus: Bus, gateway: str, question: UsageRequest | AccountRequest) -> Message | str:
    """Return the answer, or why there is none."""
    deadline = Deadline.after(ASK_TIMEOUT_S)
    try:
        return await bus.ask(inbox("gateway", gateway), question, bus.envelope(deadline=deadline), deadline)
    except PenstockError as error:
        return str(error)


def _gateways(fleet: Fleet) -> list[str]:
    return [seen.beat.instance for seen in fleet.all() if seen.beat.role == "gateway"]


# ---- what is shown --------------------------------------------------------------------------------------


def usage_table(used: Sums, prices: Prices | None) -> str:
    """Return one line for each tenant and model; columns in which nobody has anything are left out."""
    rows = [_cells(row, prices) for row in used.values()]
    return table(*said_columns(HEAD, rows)) if rows else "nothing has been used yet"


def _cells(row: UsageRow, prices: Prices | None) -> tuple[str, ...]:
    counts = (
        *(row.requests, row.prompt_tokens, row.cached_tokens, row.shared_prompt_tokens, row.output_tokens),
        *(row.kept_tokens, row.coalesced_tokens, row.drafted_tokens),
    )
    cost = "" if prices is None else f"{prices.cost_of_usage(row):.6g} {prices.currency}".strip()
    return (
        row.tenant or "(nobody)",
        row.model,
        *(str(count) if count else "-" for count in counts),
        _amount((row.prefill_core_us + row.decode_core_us) / 1e6),
        _amount((row.prefill_device_us + row.decode_device_us) / 1e6),
        _amount(row.kv_kib_s / 1024),
        cost,
    )


def _amount(value: float) -> str:
    return f"{value:.2f}" if value else "-"


def _began_us(readings: Sequence[GatewayUsage]) -> int:
    return min((reading.report.since_unix_us for reading in readings), default=SYSTEM_CLOCK.unix_us())


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not MIN_EVERY_S <= value <= MAX_EVERY_S:
        raise argparse.ArgumentTypeError(f"{text!r}: send seconds from {MIN_EVERY_S:g} to {MAX_EVERY_S:g}")
    return value


def _prices(text: str) -> Prices:
    try:
        return Prices.of(Path(text))
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from error
