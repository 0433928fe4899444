"""Show changes of settings in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from services.cli.flags.blast_radius import BlastRadius
from services.cli.view.table import said_columns, table
from shared.flags.flag_history import FlagHistory
from shared.messages import FlagChange, FlagSetting

IN_FORCE_HEAD = ("version", "setting", "usual", "for", "since", "until", "guard", "author", "reason")
HISTORY_HEAD = ("version", "made", "change", "for", "state", "guard", "author", "reason")
SETTINGS_HEAD = ("setting", "usual", "values", "what it does")
LOAD_HEAD = ("tenant", "requests/min", "ttft p50 ms", "p99 ms", "failed")


def said_target(change: FlagChange) -> str:
    """Return for whom a change is."""
    of = [f"tenant {change.tenant}"] if change.tenant else []
    of += [f"model {change.model}"] if change.model else []
    whose = ", ".join(of) or "all"
    return whose if change.share >= 1 else f"{100 * change.share:g}% of {whose}"


def in_force_table(changes: Sequence[FlagChange], settings: Mapping[str, FlagSetting]) -> str:
    rows = [
        (
            change.version,
            f"{change.setting}={change.value}",
            settings[change.setting].value if change.setting in settings else "?",
            said_target(change),
            _time(change.made_unix_us),
            _time(change.ends_unix_us) if change.ends_unix_us else "-",
            change.guard,
            change.author,
            change.reason,
        )
        for change in changes
    ]
    return table(*said_columns(IN_FORCE_HEAD, rows)) if rows else "nothing is changed"


def history_table(history: FlagHistory, now_unix_us: int) -> str:
    ended, in_force = history.rolled_back(), history.in_force(now_unix_us)
    rows = [
        (
            change.version,
            _time(change.made_unix_us),
            f"rolls back {change.rolls_back}" if change.rolls_back else f"{change.setting}={change.value}",
            "" if change.rolls_back else said_target(change),
            _state(change, ended, in_force),
            change.guard,
            change.author,
            change.reason,
        )
        for change in history.changes
    ]
    return table(*said_columns(HISTORY_HEAD, rows)) if rows else "nothing was ever changed"


def settings_table(settings: Sequence[FlagSetting]) -> str:
    return table(SETTINGS_HEAD, [(each.name, each.value, each.allowed, each.help) for each in settings])


def diff_lines(before: Sequence[FlagChange], after: Sequence[FlagChange]) -> list[str]:
    """Return what was in force before and is not after, and the other way round."""
    gone = [change for change in before if change not in after]
    come = [change for change in after if change not in before]
    return [
        f"{mark} {change.setting}={change.value} for {said_target(change)}: {change.version}, {change.reason}"
        for mark, changes in (("-", gone), ("+", come))
        for change in changes
    ] or ["no difference"]


def radius_lines(change: FlagChange, radius: BlastRadius, usual: str) -> list[str]:
    """Return whom a change reaches, before it is made."""
    rows = [
        (
            load.tenant,
            f"{load.per_minute:.1f}",
            f"{load.ttft_p50_ms:.0f}" if load.ttft_p50_ms else "-",
            f"{load.ttft_p99_ms:.0f}" if load.ttft_p99_ms else "-",
            str(load.failed),
        )
        for load in radius.loads
    ]
    reached = change.share * radius.reached_per_minute
    lines = [
        f"{change.setting}={change.value} in place of {usual or 'nothing'}, for {said_target(change)}",
        *([table(LOAD_HEAD, rows)] if rows else ["none of the last minutes' requests was of that kind"]),
        f"it reaches about {reached:.1f} of {radius.per_minute:.1f} requests a minute, at {radius.gateways} "
        f"gateway{'' if radius.gateways == 1 else 's'}",
    ]
    if radius.overrides:
        lines.append(f"{', '.join(radius.overrides)} set the same for some of them: the most specific counts")
    return lines


def _state(change: FlagChange, ended: Mapping[str, FlagChange], in_force: Sequence[FlagChange]) -> str:
    if change.rolls_back:
        return ""
    if change.version in ended:
        return f"rolled back by {ended[change.version].version}"
    return "in force" if change in in_force else "its time was up"


def _time(unix_us: int) -> str:
    return datetime.fromtimestamp(unix_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
