"""Show the fleet as this gateway knows it, for the console: a plain object of what heartbeats say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.gateway.context import SessionContext
from shared.bus.fleet import InstanceView
from shared.degradation import DegradationLevel
from shared.messages import BreakerReport, CorpusReport, Heartbeat
from shared.roles import ENGINE_ROLES, ROLES

MAX_SHOWN_INSTANCES = 256
"""The most instances in one answer; `left_out` counts the others."""
MAX_SHOWN_CORPORA = 64
"""The most corpora in one answer."""
MAX_SHOWN_ADAPTERS = 64
"""The most adapters of an instance in one answer."""


def fleet_picture(context: SessionContext) -> dict[str, Any]:
    """Return the instances by role, the corpora, and what is left out under pressure."""
    level = context.degradation.highest
    return {
        "gateway": context.instance,
        "roles": list(ROLES),
        **instances_picture(context.fleet.all(), context.breakers.report()),
        "degradation": {
            "level": int(level),
            "word": level.word,
            "levels": [each.word for each in DegradationLevel],
            "pressure": round(context.pressure.highest(), 4),
        },
    }


def instances_picture(views: Iterable[InstanceView], reports: Iterable[BreakerReport]) -> dict[str, Any]:
    """Return the first instances by role and name, and their corpora; `reports` are of those avoided here."""
    found = sorted(views, key=_place)
    shown = found[:MAX_SHOWN_INSTANCES]
    avoided = {(report.role, report.instance): report.state for report in reports}
    return {
        "instances": [_instance(view, avoided.get((view.heartbeat.role, _name(view)), "")) for view in shown],
        "left_out": len(found) - len(shown),
        "corpora": _corpora(view.heartbeat for view in shown),
    }


def _place(view: InstanceView) -> tuple[int, str]:
    return ROLES.index(view.heartbeat.role), _name(view)


def _name(view: InstanceView) -> str:
    return view.heartbeat.instance


def _instance(view: InstanceView, breaker: str) -> dict[str, Any]:
    beat = view.heartbeat
    shown: dict[str, Any] = {
        "role": beat.role,
        "instance": beat.instance,
        "host": beat.host,
        "pid": beat.pid,
        "state": "suspect" if view.suspect else beat.state,
        "breaker": breaker,
        "model": beat.model,
        "context_tokens": beat.context_tokens,
        "capacity": beat.capacity,
        "live": beat.live,
        "queued": beat.queued,
        "stalled_ms": beat.stalled_ms,
        "reconnects": beat.reconnects,
        "degradation": DegradationLevel.heard(beat.gateway.degradation).word,
        "engine": _engine(beat) if beat.role in ENGINE_ROLES else None,
        "adapters": [
            {"name": each.name, "rank": each.rank, "error": each.error, "tenants": list(each.tenants)}
            for each in beat.worker.adapters[:MAX_SHOWN_ADAPTERS]
        ],
    }
    return shown


def _engine(beat: Heartbeat) -> dict[str, Any]:
    worker = beat.worker
    return {
        "backend": worker.backend,
        "threads": worker.threads,
        "steps": beat.steps,
        "step_us": beat.decode.step_us,
        "tokens_per_s": round(worker.tokens_per_s, 1),
        "best_tokens_per_s": round(worker.best_tokens_per_s, 1),
        "queued_tokens": worker.queued_tokens,
        "kv_blocks": worker.kv_blocks,
        "kv_blocks_free": worker.kv_blocks_free,
    }


def _corpora(beats: Iterable[Heartbeat]) -> list[Mapping[str, Any]]:
    """Return each corpus once, as the retriever that has its newest generation says it is."""
    newest: dict[str, CorpusReport] = {}
    for beat in beats:
        for corpus in beat.retriever.corpora:
            kept = newest.get(corpus.name)
            if kept is None or corpus.generation > kept.generation:
                newest[corpus.name] = corpus
    named: Sequence[CorpusReport] = sorted(newest.values())[:MAX_SHOWN_CORPORA]
    return [
        {
            "name": corpus.name,
            "passages": corpus.passages,
            "generation": corpus.generation,
            "trouble": corpus.trouble,
        }
        for corpus in named
    ]
