"""Waiting for an instance that is not there yet: a worker that restarts comes back within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from shared.deadline import Deadline
from shared.errors import Unavailable
from shared.roles import ROUTED_ROLES, TARGET_ROLES

POLL_S = 0.02
"""The time between two looks: heartbeats of one instance cannot come more often."""

V = TypeVar("V")


async def wait_for_instances(
    views: Callable[[], Sequence[V]], role: str, deadline: Deadline, *, model: str = ""
) -> Sequence[V]:
    """The first non-empty answer of `views`; raises Unavailable naming `role`, and the `model` that they are
    to have, at the deadline."""
    while not (found := views()):
        await _wait_a_little(role, deadline, model=model)
    return found


async def wait_for_routed_roles(
    views: Callable[[str], Sequence[V]], deadline: Deadline, *, adapter: str = ""
) -> Mapping[str, Sequence[V]]:
    """Return instances by role, once every role that a request is routed to has one at the same time.

    Raises Unavailable naming the first role that has none at the deadline. `adapter`: what workers must have
    loaded, "" for nothing.
    """
    while True:
        fleet = {role: views(role) for role in ROUTED_ROLES}
        missing = [role for role, found in fleet.items() if not found]
        if not missing:
            return fleet
        await _wait_a_little(missing[0], deadline, adapter if missing[0] in TARGET_ROLES else "")


async def _wait_a_little(role: str, deadline: Deadline, adapter: str = "", *, model: str = "") -> None:
    if deadline.expired() and adapter:
        raise Unavailable(
            f"no {role} instance that is ready has the adapter {adapter!r} any more, or yet: see `penstock "
            "adapter list`, or retry later",
            hop=role,
        )
    if deadline.expired():
        of_model = f" of the model {model!r}" if model else ""
        raise Unavailable(f"no {role} instance{of_model} is ready: start one or retry later", hop=role)
    await asyncio.sleep(min(POLL_S, deadline.remaining_s()))
