"""Have as many instances as are planned: one seam, and what acts through it beside it."""

from __future__ import annotations

from typing import Protocol

from services.cli.planner.fleet_planner import Targets
from services.cli.planner.fleet_sight import FleetSight


class Scaler(Protocol):
    """Something that starts instances and lets them end.

    `asked`: it answers by the latest plan, and so has to hear of each; else of those that change something.
    """

    asked: bool

    async def apply(self, sight: FleetSight, targets: Targets) -> str:
        """Have these, and return in words what was done. Asked for the same again it does nothing more.

        Raises PenstockError where it cannot, with nothing changed.
        """
        ...
