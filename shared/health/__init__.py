"""Progress, not presence: what a process does is watched from a thread of its own."""

from shared.health.activity import Activity, LoopActivity
from shared.health.watchdog import Stall, Watchdog

__all__ = ["Activity", "LoopActivity", "Stall", "Watchdog"]
