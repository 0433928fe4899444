"""Write a profile of a running stack, as far as its heartbeats and its metrics say one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from services.cli.capacity.metrics_page import PHASE_SUM, Samples, read_metrics
from services.cli.capacity.profile_file import CURVES, FIELDS, MAX_SLOTS, MAX_STEP_POINTS
from services.cli.exit_codes import EXIT_FAILED
from services.cli.fleet.fleet_watch import BusAddress, Seen, listening
from shared.errors import InvalidRequest, Unavailable
from shared.files.atomic_write import write_file
from shared.messages import Heartbeat
from shared.process.cores import usable_cores

LOOK_S = 0.1
"""The time between two looks at the latest heartbeats."""
KEPT_SIGHTINGS = 4096
"""The latest of one kind that count."""
FRONT_ROLES = ("gateway", "tokenizer", "detokenizer")
OVERHEAD_PHASES = ("admit", "tokenize", "route", "bus", "deliver")
"""Phases on the way to the first token that are neither a queue nor a computation of prefill's."""
CPU = "process_cpu_seconds_total"
HOW_TO_KNOW = {
    "decode.step_ms": "let answers be generated meanwhile, as with `penstock bench serve`",
    "prefill.tokens_per_s": "let prompts be computed by prefill workers meanwhile",
    "gateway.cpu_ms": "let requests end meanwhile",
}


def _latest() -> deque[float]:
    return deque(maxlen=KEPT_SIGHTINGS)


@dataclass(slots=True)
class StackSightings:
    """Heartbeats as they were heard over time. `steps_ms`: times of steps by sequences that were live;
    `local_prompt_rates`: of prompts that decode workers computed themselves; `last_step_ms` is what a worker
    that has nothing to do now tells of its last steps, whose batch nobody knows."""

    beats: dict[str, Heartbeat] = field(default_factory=dict)
    steps_ms: defaultdict[int, deque[float]] = field(default_factory=lambda: defaultdict(_latest))
    prompt_rates: deque[float] = field(default_factory=_latest)
    local_prompt_rates: deque[float] = field(default_factory=_latest)
    transfers_ms: deque[float] = field(default_factory=_latest)
    last_step_ms: float = 0.0

    def look(self, seen: Sequence[Seen]) -> None:
        """Note each heartbeat once."""
        self.look_at(one.beat for one in seen)

    def look_at(self, beats: Iterable[Heartbeat]) -> None:
        """Note each heartbeat once, of who is in the fleet now."""
        for beat in beats:
            before = self.beats.get(beat.instance)
            if before is not None and before.sent_unix_us == beat.sent_unix_us:
                continue
            self.beats[beat.instance] = beat
            if beat.role == "decode" and beat.live and beat.decode.step_us:
                batch = min(beat.live, beat.capacity or beat.live, MAX_SLOTS)
                self.steps_ms[batch].append(beat.decode.step_us / 1e3)
            if beat.role == "decode" and not beat.live and beat.decode.step_us:
                self.last_step_ms = beat.decode.step_us / 1e3
            if beat.role == "decode" and beat.decode.transfer_us:
                self.transfers_ms.append(beat.decode.transfer_us / 1e3)
            if beat.role == "decode" and beat.decode.prompt_tokens_per_s:
                self.local_prompt_rates.append(beat.decode.prompt_tokens_per_s)
            if beat.role == "prefill" and beat.worker.tokens_per_s:
                self.prompt_rates.append(beat.worker.tokens_per_s)

    def keep(self, instances: Collection[str]) -> None:
        """Forget the heartbeats of all others: they have gone."""
        for gone in self.beats.keys() - set(instances):
            del self.beats[gone]

    def of(self, role: str) -> list[Heartbeat]:
        return [beat for beat in self.beats.values() if beat.role == role]


async def write_stack_profile(address: BusAddress, out: Path, watch_s: float) -> int:
    """Listen, write, and say what is not known. Raises Unavailable, InvalidRequest."""
    sightings = StackSightings()
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        sightings.look(fleet.all())
        before, _ = await _metrics(sightings)
        end_s = time.monotonic() + watch_s
        while time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)
            sightings.look(fleet.all())
        after, notes = await _metrics(sightings)
    if not sightings.beats:
        raise Unavailable("no instance is heard on this bus: start the stack")
    document = profile_document(sightings, before, after, usable_cores())
    try:
        write_file(out, json.dumps(document, indent=1).encode() + b"\n")
    except OSError as error:
        raise InvalidRequest(f"{out} cannot be written ({error.strerror}); name another file") from error
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    missing = missing_fields(document)
    for path in missing:
        print(f"not known: {path}; {HOW_TO_KNOW.get(path, 'write it into the file')}", file=sys.stderr)
    print(f"{out} has what {len(sightings.beats)} instances said")
    return EXIT_FAILED if missing else 0


def profile_document(
    sightings: StackSightings,
    before: Mapping[str, Samples],
    after: Mapping[str, Samples],
    host_cores: int,
) -> dict[str, Any]:
    """Return the tables of a profile; metrics are by instance, at the beginning and at the end."""
    decode, prefill = sightings.of("decode"), sightings.of("prefill")
    document: dict[str, Any] = {
        "name": next((beat.model for beat in decode if beat.model), "stack"),
        "host": {"cores": host_cores},
        "gateway": _front(sightings, before, after),
        "prefill": {"cores": _cores(prefill, host_cores)},
        "decode": {"cores": _cores(decode, host_cores)},
    }
    if rates := sightings.prompt_rates or sightings.local_prompt_rates:
        document["prefill"]["tokens_per_s"] = median(rates)
    if capacities := [beat.capacity for beat in decode if beat.capacity]:
        document["decode"]["slots"] = min(MAX_SLOTS, *capacities)
    if blocks := [_sequence_blocks(beat) for beat in decode if beat.worker.kv_blocks]:
        document["decode"]["kv_blocks"] = min(blocks)
    if sightings.transfers_ms:
        document["decode"]["transfer_ms"] = median(sightings.transfers_ms)
    if sightings.steps_ms:
        document["decode"]["step_ms"] = rising_steps(sightings.steps_ms)
    return document


def rising_steps(steps_ms: Mapping[int, Sequence[float]]) -> list[list[float]]:
    """Return the median time at each batch, none below that of a smaller batch: a busy machine's noise."""
    points: list[list[float]] = []
    for batch in sorted(steps_ms)[-MAX_STEP_POINTS:]:
        longest = points[-1][1] if points else 0.0
        points.append([batch, max(longest, median(steps_ms[batch]))])
    return points


def missing_fields(document: Mapping[str, Any]) -> list[str]:
    """Return the fields without which a profile cannot be used."""
    needed = [field for field in FIELDS if field.default is None]
    missing = [field.path for field in needed if field.name not in document.get(field.table, {})]
    return missing + ([] if "step_ms" in document["decode"] else [CURVES["decode"]])


async def _metrics(sightings: StackSightings) -> tuple[dict[str, Samples], list[str]]:
    """Return the metrics of whoever requests pass in front of workers, and why some have none."""
    found: dict[str, Samples] = {}
    notes: list[str] = []
    for beat in list(sightings.beats.values()):
        if beat.role in FRONT_ROLES and beat.metrics:
            try:
                found[beat.instance] = await read_metrics(beat.metrics)
            except Unavailable as error:
                notes.append(f"{beat.instance}: {error}")
    return found, notes


def _front(
    sightings: StackSightings, before: Mapping[str, Samples], after: Mapping[str, Samples]
) -> dict[str, float]:
    """Return what a request costs at gateways, tokenizers and detokenizers; those cost by the token."""

    def grown(name: str, *roles: str) -> float:
        instances = [beat.instance for beat in sightings.beats.values() if beat.role in roles]
        both = [one for one in instances if one in before and one in after]
        return sum(max(0.0, after[one].get(name, 0.0) - before[one].get(name, 0.0)) for one in both)

    requests = grown("penstock_requests_total", "gateway")
    tokens = grown("penstock_generation_tokens_total", "gateway")
    table: dict[str, float] = {}
    if requests:
        table["cpu_ms"] = grown(CPU, "gateway", "tokenizer") / requests * 1e3
        on_way = sum(grown(f"{PHASE_SUM}/{phase}", "gateway") for phase in OVERHEAD_PHASES)
        table["overhead_ms"] = max(0.0, on_way / requests * 1e3 - table["cpu_ms"])  # which is a part of it
    if tokens:
        table["token_cpu_ms"] = grown(CPU, "detokenizer") / tokens * 1e3
    return table


def _sequence_blocks(beat: Heartbeat) -> int:
    """Return how many times 16 tokens there is KV for: each group of layers has a block of its own."""
    return beat.worker.kv_blocks // max(1, beat.worker.kv_groups.count)


def _cores(beats: Sequence[Heartbeat], host_cores: int) -> int:
    threads = [beat.worker.most_threads for beat in beats if beat.worker.most_threads]
    return min(max(threads, default=1), host_cores)
