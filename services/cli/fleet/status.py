"""`penstock status`: the fleet as its heartbeats tell it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from services.cli.exit_codes import EXIT_FAILED
from services.cli.fleet.adapter_reports import SHOWN_DIGITS, AdapterState, adapter_states
from services.cli.fleet.fleet_watch import COLLECT_S, BusAddress, Seen, add_bus_options, listening, run_on_bus
from services.cli.view.answer_output import terminal_width
from services.cli.view.live_text import LiveText
from services.cli.view.table import NOTHING, cut_to, said_columns, table
from shared.deadline import MAX_SKEW_US
from shared.degradation import DegradationLevel
from shared.messages import CorpusReport, RegionReport

WATCH_S = 1.0
LEAST_WIDTH = 20
"""A terminal that is narrower gets lines of this width."""
CONTINUED = "  "
"""Stands before the rest of a line that goes on in the next."""
HEAD = (
    "role",
    "instance",
    "state",
    "pid",
    "live",
    "queued",
    "kv used",
    "kv MB",
    "tokens/s",
    "steps",
    "threads",
    "backend",
    "stalled s",
    "left out",
    "model",
    "skew ms",
    "breaker",
    "region",
)


def build_status_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock status", description="Show the fleet. Exit code 1 when no instance is heard."
    )
    parser.add_argument(
        "--watch", action="store_true", help="again every second, until Ctrl-C; in place on a terminal"
    )
    add_bus_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_status_parser().parse_args(argv)
    return run_on_bus(args, "status", lambda address: _status(address, args))


async def _status(address: BusAddress, args: argparse.Namespace) -> int:
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        screen = LiveText(sys.stdout, redraws=sys.stdout.isatty() and not args.json)
        while args.watch:
            seen = fleet.all(since_s=time.monotonic() - 2 * COLLECT_S)
            screen.show(_shown(seen, as_json=args.json))
            await asyncio.sleep(WATCH_S)
        seen = fleet.all()
    print(_shown(seen, as_json=args.json))
    return 0 if seen else EXIT_FAILED


def _shown(seen: list[Seen], *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"instances": [_described(one, _avoiding(one, seen)) for one in seen]})
    if not seen:
        return "no instance is heard on this bus; is the stack running?"
    edges = [line for one in seen if (line := _edges(one))]
    rows = [_row(one, _avoiding(one, seen)) for one in seen]
    notes = [*edges, *_regions(seen), *_models(seen), *_adapters(seen), *_corpora(seen)]
    if sys.stdout.isatty():
        return "\n".join(_fitting(rows, notes, max(LEAST_WIDTH, terminal_width() - 1)))
    return "\n".join([table(HEAD, rows), *notes])


def _fitting(rows: list[tuple[str, ...]], notes: list[str], width: int) -> list[str]:
    """Cut the lines of the table to a width, without columns that say nothing; wrap the notes below it."""
    head, said = said_columns(HEAD, _told_models(rows))
    cut = [cut_to(line, width) for line in table(head, said).splitlines()]
    return cut + [part for note in notes for part in textwrap.wrap(note, width, subsequent_indent=CONTINUED)]


def _told_models(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows without a model that is the only one: a note below the table names it."""
    column = HEAD.index("model")
    if len({row[column] for row in rows} - set(NOTHING)) > 1:
        return rows
    return [(*row[:column], NOTHING[0], *row[column + 1 :]) for row in rows]


def _models(seen: list[Seen]) -> list[str]:
    """List what is served, and by whom: two models of one name differ in what they are made of."""
    instances: dict[tuple[str, str, str], list[str]] = {}
    for beat in (one.beat for one in seen):
        if beat.weights_digest or beat.tokenizer_digest:
            identity = (beat.model, beat.weights_digest, beat.tokenizer_digest)
            instances.setdefault(identity, []).append(beat.instance)
    return [
        ", ".join([f"model {name}", *_shortened("weights", weights), *_shortened("tokenizer", tokenizer)])
        + f": {' '.join(names)}"
        for (name, weights, tokenizer), names in sorted(instances.items())
    ]


def _regions(seen: list[Seen]) -> list[str]:
    """Say of each gateway how far other regions are, and how much of its work has left its own."""
    told = []
    for beat in (one.beat for one in seen if one.beat.gateway.regions):
        own, *others = beat.gateway.regions
        routes = own.routes + sum(other.routes for other in others)
        said = [_region_words(other) for other in others] or ["no other region is known"]
        told.append(f"{beat.instance} in {own.region or NOTHING[1]}, {routes} routes: {'; '.join(said)}")
    return told


def _region_words(other: RegionReport) -> str:
    far = f"{other.round_trip_us / 1e3:.1f} ms away" if other.round_trip_us else "not measured yet"
    return f"{other.region} {far}, {other.routes} there"


def _adapters(seen: list[Seen]) -> list[str]:
    """List what is loaded over the models, and by whom; also what could not be."""
    states = adapter_states(one.beat for one in seen)
    return [f"{_state_words(state)}: {' '.join(names)}" for state, names in states.items()]


def _corpora(seen: list[Seen]) -> list[str]:
    """List what is searched, and by whom; also why something is not."""
    instances: dict[CorpusReport, list[str]] = {}
    for beat in (one.beat for one in seen):
        for report in beat.retriever.corpora:
            instances.setdefault(report, []).append(beat.instance)
    return [f"{_corpus_words(report)}: {' '.join(names)}" for report, names in sorted(instances.items())]


def _corpus_words(report: CorpusReport) -> str:
    there = f"{report.passages} passages, generation {report.generation}" if report.generation else "no index"
    trouble = f" ({report.trouble})" if report.trouble else ""
    return f"corpus {report.name}, {there}{trouble}"


def _state_words(state: AdapterState) -> str:
    loaded = [*_shortened("digest", state.digest), f"rank {state.rank}"] if state.digest else []
    failed = [f"cannot be loaded ({state.error})"] if state.error else []
    return ", ".join([f"adapter {state.adapter}", *loaded, *failed])


def _shortened(what: str, digest: str) -> list[str]:
    return [f"{what} {digest[:SHOWN_DIGITS]}"] if digest else []


def _edges(one: Seen) -> str:
    """Say where a gateway takes requests; "" for everybody else."""
    places = {"grpc": one.beat.gateway.grpc, "http": one.beat.gateway.http}
    said = [f"{name}={address}" for name, address in places.items() if address]
    return " ".join([one.beat.instance, "takes requests at", *said]) if said else ""


def _avoiding(one: Seen, seen: list[Seen]) -> dict[str, str]:
    """The gateways that keep their requests away from this life of the instance, and in which state."""
    life = (one.beat.role, one.beat.instance, one.beat.incarnation)
    return {
        gateway.beat.instance: report.state
        for gateway in seen
        for report in gateway.beat.gateway.breakers
        if (report.role, report.instance, report.incarnation) == life
    }


def _row(one: Seen, avoiding: dict[str, str]) -> tuple[str, ...]:
    beat = one.beat
    kv = (
        f"{beat.worker.kv_blocks - beat.worker.kv_blocks_free}/{beat.worker.kv_blocks}"
        if beat.worker.kv_blocks
        else "-"
    )
    resident_bytes = beat.worker.kv_blocks_resident * beat.worker.kv_block_bytes
    says = beat.worker.kv_blocks and beat.worker.kv_blocks_resident >= 0
    resident = f"{resident_bytes / 1e6:.0f}" if says else "-"
    skewed = " !" if abs(one.skew_us) > MAX_SKEW_US else ""
    live = f"{beat.live}/{beat.capacity}" if beat.capacity else str(beat.live)
    return (
        beat.role,
        beat.instance,
        beat.state,
        str(beat.pid),
        live,
        str(beat.queued),
        kv,
        resident,
        f"{one.tokens_per_s:.1f}" if one.tokens_per_s else "-",
        str(beat.steps),
        f"{beat.worker.threads}/{beat.worker.most_threads}" if beat.worker.most_threads else "-",
        beat.worker.backend or "-",
        f"{beat.stalled_ms / 1e3:.1f}" if beat.stalled_ms else "-",
        DegradationLevel.heard(beat.gateway.degradation).word if beat.gateway.degradation else "-",
        beat.model or "-",
        f"{one.skew_us / 1e3:.1f}{skewed}",
        ", ".join(f"{state} ({gateway})" for gateway, state in avoiding.items()),
        "/".join(part for part in (beat.region, beat.zone) if part) or "-",
    )


def _described(one: Seen, avoiding: dict[str, str]) -> dict[str, Any]:
    beat = one.beat
    return {
        "role": beat.role,
        "id": beat.instance,
        "state": beat.state,
        "host": beat.host,
        "region": beat.region,
        "zone": beat.zone,
        "regions": [asdict(report) for report in beat.gateway.regions],
        "pid": beat.pid,
        "metrics": beat.metrics,
        "grpc": beat.gateway.grpc,
        "http": beat.gateway.http,
        "model": beat.model,
        "weights_digest": beat.weights_digest,
        "tokenizer_digest": beat.tokenizer_digest,
        "capacity": beat.capacity,
        "live": beat.live,
        "queued": beat.queued,
        "queued_tokens": beat.worker.queued_tokens,
        "kv_blocks": beat.worker.kv_blocks,
        "kv_blocks_free": beat.worker.kv_blocks_free,
        "kv_blocks_resident": beat.worker.kv_blocks_resident,
        "tokens_per_s": one.tokens_per_s,
        "steps": beat.steps,
        "threads": beat.worker.threads,
        "most_threads": beat.worker.most_threads,
        "backend": beat.worker.backend,
        "stalled_ms": beat.stalled_ms,
        "degradation": DegradationLevel.heard(beat.gateway.degradation).word,
        "skew_us": one.skew_us,
        "skewed": abs(one.skew_us) > MAX_SKEW_US,
        "breakers": avoiding,
        "adapters": [
            {
                "name": each.name,
                "digest": each.digest,
                "rank": each.rank,
                "error": each.error,
                "tenants": list(each.tenants),
            }
            for each in beat.worker.adapters
        ],
        "corpora": [asdict(report) for report in beat.retriever.corpora],
    }
