"""Say a plan: as text for a terminal, or as JSON."""

from __future__ import annotations

from typing import Any

from services.cli.planner.fleet_planner import PlanRound
from services.cli.view.table import table
from services.cli.view.terminal_text import escaped_controls

HEAD = ("model", "role", "now", "planned", "why")


def plan_words(round_: PlanRound, cold_start_s: float) -> str:
    """Return a table of what is planned, and sentences on what that is for."""
    rows = [
        (model, each.role, str(each.now), str(each.wanted), each.why)
        for model, plan in round_.plans.items()
        for each in plan.roles
    ]
    lines = [table(HEAD, rows)] if rows else []
    for model, plan in round_.plans.items():
        if plan.trouble:
            continue
        gateways = f"; gateways: {plan.prediction.counts.gateway}" if plan.prediction else ""
        lines.append(
            f"{model}: {plan.ratio} for {plan.rate:.3g} requests/s within {plan.ahead_s:.0f} s{gateways}"
        )
    lines += [f"put off: {change.words}" for change in round_.put_off]
    lines += [f"nothing is planned: {trouble}" for trouble in round_.troubles]
    lines.append(f"a worker takes {cold_start_s:.1f} s from the decision to its first work")
    return escaped_controls("\n".join(lines))


def plan_json(round_: PlanRound, cold_start_s: float) -> dict[str, Any]:
    return {
        "unix_s": round_.at_s,
        "cold_start_s": cold_start_s,
        "models": {
            model: {
                "forecast": {
                    "rate": plan.forecast.rate,
                    "low": plan.forecast.low,
                    "high": plan.forecast.high,
                    "way": plan.forecast.way,
                },
                "rate": plan.rate,
                "ahead_s": plan.ahead_s,
                "trouble": plan.trouble,
                "gateways": plan.prediction.counts.gateway if plan.prediction else None,
                "roles": {
                    each.role: {"now": each.now, "planned": each.wanted, "why": each.why}
                    for each in plan.roles
                },
            }
            for model, plan in round_.plans.items()
        },
        "changes": [change.words for change in round_.changes],
        "put_off": [change.words for change in round_.put_off],
        "troubles": list(round_.troubles),
    }
