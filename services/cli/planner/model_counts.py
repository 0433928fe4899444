"""Read what a gateway's metrics say of each model, and take the difference of two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from prometheus_client.parser import text_string_to_metric_families

from services.cli.planner.arrival_window import ArrivalWindow
from shared.errors import Unavailable

MAX_COUNTED_MODELS = 256
"""The models of one gateway that are counted; what is beyond is left out."""
FIRST_TOKENS = "penstock_time_to_first_token_seconds_count"
TENANT_TOKENS = "penstock_tenant_tokens_total"
SAMPLES = {
    "penstock_requests_total": "ended",
    "penstock_requests_running": "live",
    "penstock_requests_waiting": "live",
    "penstock_prompt_tokens_total": "prompt_tokens",
    "penstock_generation_tokens_total": "output_tokens",
    FIRST_TOKENS: "answered",
}
"""A sample, and what it counts."""


@dataclass(slots=True)
class ModelCounts:
    """Counts of a model since its gateway began; `live` and `waiting` are of now. `ended` has requests of any
    outcome, those that were shed too: they were asked for. `lengths` counts answered prompts by the upper
    edge of their bucket."""

    ended: float = 0.0
    live: float = 0.0
    waiting: float = 0.0
    answered: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    output_tokens: float = 0.0
    lengths: dict[float, float] = field(default_factory=dict)


NOTHING_COUNTED = ModelCounts()
GatewayPages = Mapping[tuple[str, int], Mapping[str, ModelCounts]]
"""(instance, incarnation) of a gateway, and what it counts by model."""


def model_counts(page: str) -> dict[str, ModelCounts]:
    """Return the counts of a page of metrics by model. Raises Unavailable for what is no such page."""
    found: dict[str, ModelCounts] = {}
    try:
        samples = [each for family in text_string_to_metric_families(page) for each in family.samples]
    except ValueError as error:  # often without a word
        raise Unavailable(f"the metrics are none of Prometheus ({error}): ask again") from error
    for sample in samples:
        name, model = SAMPLES.get(sample.name, ""), sample.labels.get("model", "")
        is_cached = sample.name == TENANT_TOKENS and sample.labels.get("kind") == "cached"
        if not model or not (name or is_cached):
            continue
        if model not in found and len(found) >= MAX_COUNTED_MODELS:
            continue
        counts, value = found.setdefault(model, ModelCounts()), float(sample.value)
        name = "cached_tokens" if is_cached else name
        setattr(counts, name, getattr(counts, name) + value)
        if sample.name == "penstock_requests_waiting":
            counts.waiting += value
        if sample.name == FIRST_TOKENS:
            edge = float(sample.labels.get("prompt_tokens", "inf"))
            counts.lengths[edge] = counts.lengths.get(edge, 0.0) + value
    return found


class ArrivalCounter:
    """Makes windows of two readings of all gateways.

    Who came is who ended, and by how many more are live. A gateway that is heard for the first time counts
    from then on; one that has started anew counts from its start.
    """

    def __init__(self) -> None:
        self._before: GatewayPages = {}
        self._at_s = 0.0

    def windows(self, now_s: float, pages: GatewayPages) -> dict[str, ArrivalWindow]:
        """Return a window for each model, none at the first reading; `now_s` is the time of day."""
        span_s, self._at_s = now_s - self._at_s, now_s
        before, self._before = self._before, pages
        if not before or span_s <= 0:
            return {}
        known = {instance for instance, _ in before}
        grown: dict[str, ModelCounts] = {}
        for (instance, incarnation), counted in pages.items():
            was = before.get((instance, incarnation))
            if was is None and instance not in known:
                continue
            for model, counts in counted.items():
                _add(grown.setdefault(model, ModelCounts()), counts, (was or {}).get(model, NOTHING_COUNTED))
        return {model: _window(now_s, span_s, counts) for model, counts in grown.items()}


def waiting_requests(pages: GatewayPages) -> dict[str, float]:
    """Return how many requests wait for workers now, by model."""
    waiting: dict[str, float] = {}
    for counted in pages.values():
        for model, counts in counted.items():
            waiting[model] = waiting.get(model, 0.0) + counts.waiting
    return waiting


def _add(grown: ModelCounts, counts: ModelCounts, was: ModelCounts) -> None:
    for each in fields(ModelCounts):
        if each.name != "lengths":
            more = getattr(counts, each.name) - getattr(was, each.name)
            setattr(grown, each.name, getattr(grown, each.name) + more)
    for edge, count in counts.lengths.items():
        grown.lengths[edge] = grown.lengths.get(edge, 0.0) + count - was.lengths.get(edge, 0.0)


def _window(now_s: float, span_s: float, grown: ModelCounts) -> ArrivalWindow:
    return ArrivalWindow(
        now_s,
        span_s,
        max(0.0, grown.ended + grown.live),
        max(0.0, grown.answered),
        max(0.0, grown.prompt_tokens),
        max(0.0, grown.cached_tokens),
        max(0.0, grown.output_tokens),
        {edge: count for edge, count in grown.lengths.items() if count > 0},
    )
