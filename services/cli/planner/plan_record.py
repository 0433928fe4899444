"""Tell of every change that a planner makes: in the log, in metrics, and in a file of its own that stays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from services.cli.planner.change_budget import RoleChange
from services.cli.planner.fleet_planner import PlanRound
from services.cli.planner.seasons import Seasons, write_seasons
from shared.telemetry import metrics

log = structlog.get_logger()

AUDIT_NAME = "planner.jsonl"
SEASONS_NAME = "planner-seasons.json"
MAX_AUDIT_BYTES = 4 << 20
"""The file goes on in a new one then; the one before it stays as `.1`."""


class PlanRecord:
    """`path` None: changes are kept in no file; `seasons_path` None: nor is what was learnt."""

    def __init__(self, path: Path | None, seasons_path: Path | None = None) -> None:
        self._path = path
        self._seasons_path = seasons_path
        self._said: tuple[str, ...] = ()

    def planned(self, round_: PlanRound) -> None:
        """Show what is planned, and say what is not as often as that changes."""
        for model, plan in round_.plans.items():
            for role in plan.roles:
                metrics.PLANNED_INSTANCES.labels(model=model, role=role.role).set(role.wanted)
        metrics.PLAN_ROUNDS.labels(
            result="planned" if round_.plans and not round_.troubles else "lacking"
        ).inc()
        if round_.troubles != self._said:
            self._said = round_.troubles
            for trouble in round_.troubles:
                log.warning("nothing_planned", why=trouble)
        for change in round_.put_off:
            log.warning(
                "change_put_off", change=change.words, why="as many as may came and went in this minute"
            )

    def changed(self, at_s: float, changes: Sequence[RoleChange], done: str) -> None:
        """Tell of changes that were made, and how."""
        for change in changes:
            direction = "out" if change.wanted > change.now else "in"
            metrics.PLAN_CHANGES.labels(model=change.model, role=change.role, direction=direction).inc(
                change.size
            )
            log.info("instances_planned", change=change.words, done=done)
            self._keep(
                {
                    "unix_s": round(at_s, 3),
                    "model": change.model,
                    "role": change.role,
                    "from": change.now,
                    "to": change.wanted,
                    "why": change.why,
                    "done": done,
                }
            )

    def failed(self, at_s: float, changes: Sequence[RoleChange], why: str) -> None:
        """Tell of changes that could not be made."""
        metrics.PLAN_ROUNDS.labels(result="failed").inc()
        log.error("instances_not_changed", why=why, changes=[change.words for change in changes])
        self._keep({"unix_s": round(at_s, 3), "failed": why, "changes": [change.words for change in changes]})

    def learnt(self, seasons: Mapping[str, Seasons]) -> None:
        """Keep what is usual, for the next planner."""
        if self._seasons_path is not None:
            try:
                write_seasons(self._seasons_path, seasons)
            except OSError as error:
                log.warning(
                    "seasons_not_kept", path=str(self._seasons_path), error=error.strerror or str(error)
                )

    def _keep(self, line: dict[str, object]) -> None:
        if self._path is None:
            return
        try:
            if self._path.exists() and self._path.stat().st_size > MAX_AUDIT_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("plan_not_kept", path=str(self._path), error=error.strerror or str(error))
