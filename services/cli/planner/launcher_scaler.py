"""Scale a stack of `penstock up` here: what its launcher follows is the file that `penstock scale` writes."""

from __future__ import annotations

from pathlib import Path

from services.cli.planner.fleet_planner import Targets
from services.cli.planner.fleet_sight import FleetSight
from services.cli.stack_file import stack_roll
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Unavailable
from shared.files.scale_file import MAX_INSTANCES, StackScale, read_scale, write_scale

PATIENCE_S = 180.0
"""The time that an instance has for what it has, as it goes."""
OPTION = "--nats-url URL"


class LauncherScaler:
    asked = False

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    async def apply(self, sight: FleetSight, targets: Targets) -> str:
        """Write the file. Raises Unavailable while a roll goes on, or where a stack has no room for more."""
        _, stand_in, _ = stack_roll(self._state_dir, OPTION)
        if stand_in:
            raise Unavailable(f"{stand_in} stands in for others: a roll goes on")
        before = read_scale(self._state_dir)
        scale = scale_of(sight.models, targets, before, SYSTEM_CLOCK.unix_us())
        if before is not None and (before.counts, before.absent) == (scale.counts, scale.absent):
            return "the launcher was told already"
        write_scale(self._state_dir, scale)
        return f"the launcher is told: {_words(scale)}"


def scale_of(models: tuple[str, ...], targets: Targets, before: StackScale | None, number: int) -> StackScale:
    """Return the scale that has these instances: each of several models has the next number in turn, so what
    one has less than another is absent. Other roles stay as they were told before."""
    counts = dict(before.counts) if before else {}
    absent = dict.fromkeys(before.absent) if before else {}
    for role in {role: None for planned in targets.values() for role in planned}:
        wanted = {
            place + len(models) * nth
            for place, model in enumerate(models)
            for nth in range(targets[model][role])
        }
        count = max(wanted, default=-1) + 1
        if not 1 <= count <= MAX_INSTANCES:
            raise Unavailable(
                f"{count} {role} instances are planned; a stack has 1 to {MAX_INSTANCES}: lower their most"
            )
        counts[role] = count
        absent = {name: None for name in absent if name.rpartition("-")[0] != role}
        absent |= {f"{role}-{each}": None for each in range(count) if each not in wanted}
    return StackScale(number, counts, PATIENCE_S, tuple(absent))


def _words(scale: StackScale) -> str:
    counts = ", ".join(f"{role}={count}" for role, count in scale.counts.items())
    return f"{counts} without {', '.join(scale.absent)}" if scale.absent else counts
