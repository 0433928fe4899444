"""Prefer the instances of one region where nothing is routed: tokenizers, retrievers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from services.gateway.fleet.routing import Candidate, load_cost

C = TypeVar("C", bound=Candidate)

FULL = 1.0
"""An instance with so much load has as many requests as it takes."""


def in_region(views: Sequence[C], region: str) -> Sequence[C]:
    """Return those of `views` in the region, or all of them where there is none."""
    return [view for view in views if view.heartbeat.region == region] or views


def near_first(views: Sequence[C], region: str) -> Sequence[C]:
    """Return those of `views` in the region that have room, or all of them where there is none."""
    near = in_region(views, region)
    return [view for view in near if load_cost(view)[0] < FULL] or views
