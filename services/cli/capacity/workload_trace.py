"""A workload as a trace recorded it: its busiest window, its lengths, and which prefixes come again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from services.cli.bench.plan.azure import AzureSource
from services.cli.bench.plan.dialogue import DialogueSource
from services.cli.bench.plan.mooncake import MooncakeSource
from services.cli.bench.plan.prompt_writer import MAX_PROMPT_TOKENS, PromptWriter
from services.cli.bench.plan.prose import LEAST_SENTENCES, Prose
from services.cli.bench.stats.quantiles import Floats
from services.cli.capacity.workload import Workload, squared_variation
from shared.errors import InvalidRequest

MAX_TRACE_REQUESTS = 200_000
"""The requests of a trace that are read; what is beyond is left out."""
LEAST_GAPS = 20
"""The gaps below which the variation of arrivals is taken for Poisson's."""
TRACES: dict[str, type[MooncakeSource | AzureSource]] = {"mooncake": MooncakeSource, "azure": AzureSource}
UNREAD = Prose("It is. " * (LEAST_SENTENCES + 1), "no text")


@dataclass(frozen=True, slots=True)
class LengthWriter(PromptWriter):
    """Writes a character for each token, and counts those of texts that it has written before."""

    seen: set[str] = field(default_factory=set)
    tokens: dict[str, int] = field(default_factory=lambda: {"all": 0, "again": 0})

    def text(self, tokens: float, key: str) -> str:
        count = max(1, round(min(tokens * self.length_scale, MAX_PROMPT_TOKENS)))
        self.tokens["all"] += count
        self.tokens["again"] += count if key in self.seen else 0
        self.seen.add(key)
        return "x" * count

    def block(self, tokens: float, key: str) -> str:
        return self.text(tokens, key)

    @property
    def again_share(self) -> float:
        return self.tokens["again"] / max(1, self.tokens["all"])


def traced_workload(
    kind: str, path: Path, window_s: float, speed: float, length_scale: float, cached_share: float | None
) -> Workload:
    """Return the load of the busiest window. Raises InvalidRequest.

    `cached_share` None: that of the trace where it tells which blocks are equal, as of a cache that forgets
    nothing; one that forgets finds less.
    """
    rows, again_share = trace_rows(kind, path, speed, length_scale)
    times = np.array([at_s for at_s, _, _ in rows])
    rate, arrival_scv = busiest_window(times, window_s)
    share = again_share if cached_share is None else cached_share
    return Workload.of_pairs(rate, arrival_scv, [(prompt, answer) for _, prompt, answer in rows], share)


def trace_rows(
    kind: str, path: Path, speed: float, length_scale: float
) -> tuple[list[tuple[float, int, int]], float]:
    """Return when each request comes, the tokens of its prompt and of its answer; and the share of prompts
    that comes again, as of a cache that forgets nothing. Raises InvalidRequest."""
    writer = LengthWriter(UNREAD, 1.0, length_scale)
    rows = list(islice(_rows(TRACES[kind](path, writer, speed)), MAX_TRACE_REQUESTS))
    if not rows:
        raise InvalidRequest(f"{path} has no request; name another trace")
    return rows, writer.again_share


def busiest_window(times_s: Floats, window_s: float) -> tuple[float, float]:
    """Return requests a second and the squared variation of gaps in the busiest window.

    A window begins with an arrival; a trace that is shorter is one by itself.
    """
    span_s = float(times_s[-1] - times_s[0])
    if span_s <= window_s:
        return len(times_s) / (span_s or window_s), _gap_scv(times_s)
    ends = np.searchsorted(times_s, times_s + window_s)
    first = int(np.argmax(ends - np.arange(len(times_s))))
    within = times_s[first : ends[first]]
    return len(within) / window_s, _gap_scv(within)


def _gap_scv(times_s: Floats) -> float:
    gaps = np.diff(times_s)
    return squared_variation(gaps) if len(gaps) >= LEAST_GAPS else 1.0


def _rows(source: DialogueSource) -> Iterator[tuple[float, int, int]]:
    for dialogue in source.dialogues():
        turn = dialogue.turns[0]
        yield dialogue.at_s or 0.0, len(turn.text), turn.max_tokens
