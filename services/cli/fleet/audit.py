"""`penstock audit`: what every instance holds, per request; finds what nobody will give back."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_FAILED
from services.cli.fleet.fleet_watch import BusAddress, add_bus_options, listening, run_on_bus
from services.cli.view.table import table
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import AuditReport, AuditRequest, Heartbeat

ASK_TIMEOUT_S = 2.0
RETRY_S = 0.1
SESSION = "session"
HEAD = ("request", "role", "instance", "kind", "count", "phase")


@dataclass(frozen=True, slots=True)
class Audit:
    """Everybody's answers; `silent` are the instances without one, each with the reason."""

    reports: tuple[AuditReport, ...]
    silent: tuple[tuple[str, str], ...]

    @property
    def nothing_held(self) -> bool:
        return not self.silent and not any(report.held for report in self.reports)

    @property
    def live_requests(self) -> int:
        """Sessions of the gateways: while there is one, holding something is right."""
        return sum(
            held.kind == SESSION
            for report in self.reports
            for held in report.held
            if report.role == "gateway"
        )

    @property
    def clean(self) -> bool:
        return not self.silent and bool(self.reports) and (self.nothing_held or self.live_requests > 0)


def build_audit_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock audit",
        description="Show what every instance holds. Exit code 1 when something is held although no request "
        "is live, or when an instance does not answer.",
    )
    parser.add_argument("--wait", type=seconds, default=0.0, metavar="SECONDS", help="until nothing is held")
    add_bus_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_audit_parser().parse_args(argv)
    return run_on_bus(args, "audit", lambda address: _audit(address, args))


async def _audit(address: BusAddress, args: argparse.Namespace) -> int:
    async with listening(address) as (bus, fleet):
        give_up_s = time.monotonic() + args.wait
        await fleet.collect(address.expected)
        audit = await audit_all(bus, [seen.beat for seen in fleet.all()])
        while not audit.nothing_held and time.monotonic() < give_up_s:
            await asyncio.sleep(RETRY_S)
            audit = await audit_all(bus, [seen.beat for seen in fleet.all()])
    print(json.dumps(_described(audit)) if args.json else _shown(audit))
    return 0 if audit.clean else EXIT_FAILED


async def audit_all(bus: Bus, beats: list[Heartbeat]) -> Audit:
    """Ask whoever sent these heartbeats what it holds; one that does not answer is silent."""
    deadline = Deadline.after(ASK_TIMEOUT_S)
    answers = await asyncio.gather(*(_ask(bus, beat, deadline) for beat in beats))
    return Audit(
        reports=tuple(answer for answer in answers if isinstance(answer, AuditReport)),
        silent=tuple(
            (beat.instance, answer)
            for beat, answer in zip(beats, answers, strict=True)
            if not isinstance(answer, AuditReport)
        ),
    )


async def _ask(bus: Bus, beat: Heartbeat, deadline: Deadline) -> AuditReport | str:
    """The report, or why there is none."""
    subject = inbox(beat.role, beat.instance)
    try:
        answer = await bus.ask(subject, AuditRequest(), bus.envelope(deadline=deadline), deadline)
    except PenstockError as error:
        return str(error)
    return answer if isinstance(answer, AuditReport) else f"answered with {type(answer).__name__}"


def _shown(audit: Audit) -> str:
    rows = [
        (held.request_id, report.role, report.instance, held.kind, str(held.count), held.phase)
        for report in audit.reports
        for held in report.held
    ]
    lines = [table(HEAD, sorted(rows))] if rows else []
    lines += [f"{instance} does not answer: {why}" for instance, why in audit.silent]
    if not audit.reports and not audit.silent:
        lines.append("no instance is heard on this bus; is the stack running?")
    else:
        lines.append(
            f"{len(audit.reports)} instances hold {len(rows)} things for {audit.live_requests} live requests"
        )
    return "\n".join(lines)


def _described(audit: Audit) -> dict[str, Any]:
    return {
        "clean": audit.clean,
        "live_requests": audit.live_requests,
        "instances": [
            {
                "role": report.role,
                "id": report.instance,
                "held": [
                    {
                        "request_id": held.request_id,
                        "kind": held.kind,
                        "count": held.count,
                        "phase": held.phase,
                    }
                    for held in report.held
                ],
            }
            for report in audit.reports
        ],
        "silent": [{"id": instance, "why": why} for instance, why in audit.silent],
    }
