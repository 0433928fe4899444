"""Waiting for an instance that is not there yet: a worker that restarts comes back within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from shared.deadline import Deadline
from shared.errors import Unavailable

POLL_S = 0.02
"""As often as heartbeats of one instance can come."""

V = TypeVar("V")


async def wait_for_instances(views: Callable[[], Sequence[V]], role: str, deadline: Deadline) -> Sequence[V]:
    """The first non-empty answer of `views`; raises Unavailable naming `role` at the deadline."""
    while True:
        found = views()
        if found:
            return found
        if deadline.expired():
            raise Unavailable(f"no {role} instance is ready: start one or retry later", hop=role)
        await asyncio.sleep(min(POLL_S, deadline.remaining_s()))
