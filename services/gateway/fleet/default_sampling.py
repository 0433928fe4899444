"""Settle the sampling that a request leaves open, once, before it is routed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import Announced, ModelIdentity
from services.gateway.request.cache_use import settled_cache_use
from services.gateway.request.request import Request
from shared.sampling.defaults import DEFAULTED, SamplingDefault, all_defaults
from shared.sampling.parameters import SamplingParams

MAX_SETS = 64
"""The sets of defaults, about one a model, whose values are remembered as requests have them."""


def defaults_in_force(
    model: ModelIdentity, instances: Callable[[str], Sequence[Announced]]
) -> tuple[SamplingDefault, ...]:
    """One for each of DEFAULTED.

    Where decode workers of the model differ, as while another configuration is rolled out, those that most of
    them have; of as many, those of the one that started last.
    """
    beats = [view.heartbeat for view in instances("decode") if model.base.is_served_by(view.heartbeat)]
    counts = Counter(beat.decode.default_sampling for beat in beats)
    chosen = max(
        beats,
        key=lambda beat: (counts[beat.decode.default_sampling], beat.incarnation, beat.instance),
        default=None,
    )
    return all_defaults() if chosen is None else all_defaults(chosen.decode.default_sampling)


def resolve_sampling(request: Request, defaults: Iterable[SamplingDefault]) -> Request:
    """The request as one that says all of it. Raises InvalidRequest where its cache does not go with that."""
    values: dict[str, Any] = {
        name: value
        for name, value in _in_force(tuple(defaults))
        if name in request.open_sampling and getattr(request.sampling, name) != value
    }
    sampling = replace(request.sampling, **values) if values else request.sampling
    cache = settled_cache_use(request.cache, sampling)
    if not request.open_sampling and sampling is request.sampling and cache is request.cache:
        return request
    return replace(request, sampling=sampling, open_sampling=(), cache=cache)


@lru_cache(MAX_SETS)
def _in_force(defaults: tuple[SamplingDefault, ...]) -> tuple[tuple[str, int | float], ...]:
    return tuple((each.name, each.in_force) for each in defaults if each.name in DEFAULTED)


def sampling_in_force(sampling: SamplingParams) -> pb.Sampling:
    """Return what a client is told of its sampling: all that has a default but the seed, told elsewhere."""
    values: dict[str, Any] = {name: getattr(sampling, name) for name in (*DEFAULTED, "max_tokens")}
    return pb.Sampling(**values)
