"""Limit what a key uses: requests per minute, at a time, and tokens per minute. Pure, with a clock.

A request takes what it may need when it comes and gives back what it did not use when it ends. One that is
refused for a limit takes nothing; one that is refused for what it asks is one of the minute all the same, as
it has been read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.gateway.keys.rate_bucket import RateBucket
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import Overloaded, TooLarge
from shared.files.api_key_file import ApiKey, KeyLimits

MEAN_SHARE = 0.2
"""The weight of the newest request in the mean duration of a key's requests."""

Use = tuple[str, int]
"""One request of a key: the gateway that it came to, and its number there."""
Levels = tuple[float, float]
"""The requests and the tokens that may be taken now."""
NO_LIMIT = 1e12
"""The level where there is no limit."""


class LimitReached(Overloaded):
    """A key has used up one of its limits for now; `limit` is its name in the file of keys."""

    def __init__(self, limit: str, message: str, wait_s: float) -> None:
        super().__init__(message, hop="gateway", retry_after_ms=math.ceil(wait_s * 1000), reason="key")
        self.limit = limit
        self.wait_s = wait_s

    @classmethod
    def of(cls, name: str, limits: KeyLimits, limit: str, wait_s: float) -> LimitReached:
        """The sentence about the limit of that name of the key `name`."""
        most = getattr(limits, limit)
        if limit == "concurrency":
            said = f"concurrency = {most} and that many requests are live: wait for one to end"
        else:
            said = f"{limit} = {most} and has used them up: come back in {wait_s:.1f} s"
        return cls(limit, f"the key {name} has {said}", wait_s)


@dataclass(frozen=True, slots=True)
class UseRecord:
    """A live request: when it began, and what it was taken from."""

    since_s: float
    requests: RateBucket | None
    tokens: RateBucket | None

    def take(self, requests: int, tokens: int) -> None:
        """Negative amounts are given back."""
        if self.requests is not None:
            self.requests.take(requests)
        if self.tokens is not None:
            self.tokens.take(tokens)


class KeyLedger:
    """The use of one key now, by requests of any gateway that have not ended."""

    def __init__(self, key: ApiKey, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._live: dict[Use, UseRecord] = {}
        self._requests: RateBucket | None = None
        self._tokens: RateBucket | None = None
        self._mean_s = 0.0
        self.change_key(key)

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def limits(self) -> KeyLimits:
        return self._limits

    @property
    def limited(self) -> bool:
        """Return whether there is anything to count."""
        return self._limits != KeyLimits()

    def change_key(self, key: ApiKey) -> None:
        """The name and limits of its entry from now on. What was used stays used; live requests go on."""
        self.name = key.name
        self._limits = key.limits
        self._requests = _changed(self._requests, key.limits.requests_per_min, self.clock)
        self._tokens = _changed(self._tokens, key.limits.tokens_per_min, self.clock)

    # ---- requests ----------------------------------------------------------------------------------

    def check_rate(self) -> None:
        """Raise LimitReached while no request may come, whatever it asks for."""
        self._check_bucket("requests_per_min", self._requests, 1)

    def count_refused(self, count: int = 1) -> None:
        """Requests that were let in are refused for what they ask."""
        if self._requests is not None:
            self._requests.take(count)

    def check_size(self, tokens: int) -> None:
        """Raise TooLarge when a request of so many tokens could never be admitted."""
        most = self._limits.tokens_per_min
        if most is not None and tokens > most:
            raise TooLarge(
                f"prompt and max_tokens are {tokens} tokens or more and the key {self.name} has "
                f"tokens_per_min = {most}: send a shorter prompt or a smaller max_tokens",
                hop="gateway",
            )

    def reserved(self, tokens: int) -> int:
        """Return how much is taken for a request that may use so many tokens, where some are a guess."""
        most = self._limits.tokens_per_min
        return tokens if most is None else min(tokens, most)

    def begin(self, uses: Sequence[Use], tokens: Sequence[int]) -> None:
        """Take in these requests, all or none. Raises LimitReached with the time to wait."""
        self.end_silently(uses)  # one that its gateway has told of already
        self._check_concurrency(len(uses))
        self._check_bucket("tokens_per_min", self._tokens, sum(tokens))
        self._check_bucket("requests_per_min", self._requests, len(uses))
        for use, amount in zip(uses, tokens, strict=True):
            self._live[use] = record = self._new_record()
            record.take(1, amount)

    def settle(self, use: Use, *, tokens: int, requests: int, ended: bool) -> None:
        """Take so much more for this request, or less. For one that is not known nothing is given back."""
        record = self._live.get(use)
        if record is None:
            self._new_record().take(max(0, requests), max(0, tokens))
            return
        record.take(requests, tokens)
        if ended:
            del self._live[use]
            duration_s = self.clock.monotonic_s() - record.since_s
            self._mean_s += MEAN_SHARE * (duration_s - self._mean_s) if self._mean_s else duration_s

    def end_silently(self, uses: Iterable[Use]) -> None:
        """Know nothing of these any more, whatever they used."""
        for use in uses:
            self._live.pop(use, None)

    # ---- what other gateways say -------------------------------------------------------------------

    def levels(self) -> Levels:
        return _level(self._requests), _level(self._tokens)

    def lower(self, levels: Levels) -> None:
        """Hold no more than that from now on."""
        for bucket, level in zip((self._requests, self._tokens), levels, strict=True):
            if bucket is not None:
                bucket.lower(level)

    def taken(self) -> Levels:
        """Return the requests and tokens that were taken here so far, less what was given back."""
        requests, tokens = self._requests, self._tokens
        return 0.0 if requests is None else requests.taken, 0.0 if tokens is None else tokens.taken

    def take(self, taken: Levels) -> None:
        """Count what was used elsewhere."""
        for bucket, amount in zip((self._requests, self._tokens), taken, strict=True):
            if bucket is not None:
                bucket.take(amount)

    def refill(self, levels: Levels, since_s: float) -> None:
        """Hold what those levels at that time have become, with nothing taken since."""
        for bucket, level in zip((self._requests, self._tokens), levels, strict=True):
            if bucket is not None:
                bucket.refill(level, since_s)

    def replace_uses(self, gateway: str, numbers: Iterable[int]) -> None:
        """The live requests of that gateway are these, as it says."""
        stated = {(gateway, number) for number in numbers}
        self.end_silently([use for use in self._live if use[0] == gateway and use not in stated])
        for use in stated - self._live.keys():
            self._live[use] = self._new_record()

    # ---- inside --------------------------------------------------------------------------------------

    def _new_record(self) -> UseRecord:
        return UseRecord(self.clock.monotonic_s(), self._requests, self._tokens)

    def _check_concurrency(self, count: int) -> None:
        most = self._limits.concurrency
        if most is not None and self.live + count > most:
            raise LimitReached.of(self.name, self._limits, "concurrency", self._mean_s / most)

    def _check_bucket(self, limit: str, bucket: RateBucket | None, amount: int) -> None:
        wait_s = 0.0 if bucket is None else bucket.wait_s(amount)
        if wait_s > 0:
            raise LimitReached.of(self.name, self._limits, limit, wait_s)


def _level(bucket: RateBucket | None) -> float:
    return NO_LIMIT if bucket is None else bucket.level


def _changed(bucket: RateBucket | None, per_min: int | None, clock: Clock) -> RateBucket | None:
    """A bucket that is kept keeps what was used of it."""
    if per_min is None:
        return None
    if bucket is None:
        return RateBucket(per_min, clock)
    bucket.change_rate(per_min)
    return bucket
