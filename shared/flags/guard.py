"""Bound what the requests of a change may be like, and say when a bound is shown to be exceeded. Pure.

`p99_ttft<300ms` says that at most 1 % of requests have a first token after 300 ms, `errors<1%` that at most
1 % fail. A guard burns when what is seen would be chance once in a thousand times if it held: two bad ones of
two are enough for that, one of a hundred is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shared.errors import InvalidRequest

DOUBT = 0.001
"""The probability below which what is seen is not put down to chance."""
LEAST_BAD = 2
"""A single request proves nothing."""
MAX_BOUNDS = 8
"""The most bounds of one guard."""
TTFT, TPOT, TOTAL, ERRORS = "ttft", "tpot", "total", "errors"
FAILED_OUTCOMES = ("failed", "expired", "shed")
_TIME = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)_(ttft|tpot|total)<(\d{1,9}(?:\.\d{1,3})?)(ms|s)")
_ERRORS = re.compile(r"errors<(\d{1,2}(?:\.\d{1,3})?)%")
_HOW = "write p99_ttft<300ms, p50_tpot<20ms, p95_total<5s or errors<1%, with commas between them"


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times of a request, as far as they are known. `outcome` is "" while it runs; `ttft_ms` None while
    there is no token."""

    elapsed_ms: float
    ttft_ms: float | None
    tokens: int
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class GuardBound:
    """A bound: at most `share` of requests may be bad, which is to fail, or to take longer than `limit_ms`.
    `text` as it was said."""

    text: str
    quantity: str
    share: float
    limit_ms: float = 0.0

    def is_bad(self, times: RequestTimes) -> bool | None:
        """Return whether the request is; None while that is not known, or cannot be said of it."""
        ended = bool(times.outcome)
        if self.quantity == ERRORS:
            return times.outcome in FAILED_OUTCOMES if ended else None
        if self.quantity == TPOT:
            if not ended or times.ttft_ms is None or times.tokens <= 1:
                return None
            return (times.elapsed_ms - times.ttft_ms) / (times.tokens - 1) > self.limit_ms
        is_there = times.outcome == "finished" if self.quantity == TOTAL else times.ttft_ms is not None
        took_ms = times.ttft_ms if self.quantity == TTFT and times.ttft_ms is not None else times.elapsed_ms
        if took_ms > self.limit_ms:
            return True
        return False if is_there else None

    def burns(self, times: Iterable[RequestTimes]) -> str:
        """Return why it does, "" where it does not."""
        verdicts = [self.is_bad(each) for each in times]
        known = [verdict for verdict in verdicts if verdict is not None]
        bad = sum(known)
        if bad < LEAST_BAD or chance_of(bad, len(known), self.share) > DOUBT:
            return ""
        return f"{self.text} burns: {bad} of {len(known)} requests"


def parse_guard(text: str) -> tuple[GuardBound, ...]:
    """Return the bounds, none of "". Raises InvalidRequest."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if len(parts) > MAX_BOUNDS:
        raise InvalidRequest(f"the guard has {len(parts)} bounds: send at most {MAX_BOUNDS}")
    return tuple(map(_bound, parts))


def chance_of(bad: int, count: int, share: float) -> float:
    """Return how probable it is that at least `bad` of `count` are, where a `share` is, above 0 and below
    1."""
    if bad <= 0:
        return 1.0
    log_first = (
        math.lgamma(count + 1)
        - math.lgamma(bad + 1)
        - math.lgamma(count - bad + 1)
        + bad * math.log(share)
        + (count - bad) * math.log1p(-share)
    )
    mass, total = math.exp(log_first), 0.0
    for number in range(bad, count + 1):
        total += mass
        mass *= (count - number) / (number + 1) * share / (1 - share)
    return min(1.0, total)


def _bound(text: str) -> GuardBound:
    if found := _TIME.fullmatch(text):
        percent, quantity, limit, unit = found.groups()
        share = round(1 - float(percent) / 100, 9)
        if 0 < share < 1:
            return GuardBound(text, quantity, share, float(limit) * (1000 if unit == "s" else 1))
    elif found := _ERRORS.fullmatch(text):
        share = float(found.group(1)) / 100
        if share > 0:
            return GuardBound(text, ERRORS, share)
    raise InvalidRequest(f"the guard has {text[:80]!r}: {_HOW}")
