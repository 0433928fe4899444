"""Heartbeats and pages of metrics of a small fleet, for tests."""

from __future__ import annotations

from services.cli.fleet.fleet_watch import Seen
from services.cli.planner.fleet_sight import FleetSight
from services.cli.planner.model_counts import ModelCounts
from shared.messages import Heartbeat
from tests.support.heartbeats import make_heartbeat

NOW_S = 100.0


def beat(role: str, number: int = 0, model: str = "large", **fields: object) -> Heartbeat:
    return make_heartbeat(role, f"{role}-{number}", model="" if role == "gateway" else model, **fields)


def fleet(*more: Heartbeat, decodes: int = 1) -> list[Heartbeat]:
    workers = [beat("decode", 2 * number) for number in range(decodes)]
    return [
        beat("gateway", metrics="127.0.0.1:1"),
        beat("tokenizer"),
        beat("prefill"),
        *workers,
        *more,
    ]


def small(*, awake: bool = True) -> list[Heartbeat]:
    """A second model, whose instances have odd numbers."""
    workers = [beat("prefill", 1, "small"), beat("decode", 1, "small")] if awake else []
    return [beat("tokenizer", 1, "small"), *workers]


def sight(beats: list[Heartbeat], seen_s: float = NOW_S) -> FleetSight:
    return FleetSight.of([Seen(each, 0, seen_s, seen_s) for each in beats], NOW_S)


def counted(requests: float, model: str = "large", waiting: float = 0.0) -> dict[str, ModelCounts]:
    return {
        model: ModelCounts(
            requests, waiting, waiting, requests, 256 * requests, 0.0, 64 * requests, {512.0: requests}
        )
    }
