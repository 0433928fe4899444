"""Limit what a key uses: requests per minute, at a time, and tokens per minute. Pure, with a clock.

Every limit is counted here, in one gateway. A request takes what it may need when it comes (an `Allowance`)
and gives back what it did not use when it ends. One that is refused for a limit takes nothing; one that is
refused for what it asks is one of the minute all the same, as it has been read.
"""

from __future__ import annotations

import math

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import Overloaded, TooLarge
from shared.files.api_key_file import ApiKey

MINUTE_S = 60.0
MEAN_SHARE = 0.2
"""The weight of the newest request in the mean duration of a key's requests."""
ROUNDING = 1e-6
"""The error that is forgiven: a client that waited exactly as long as it was told finds what it waits for."""


class LimitReached(Overloaded):
    """A key has used up one of its limits for now; `limit` is its name in the file of keys."""

    def __init__(self, limit: str, message: str, wait_s: float) -> None:
        super().__init__(message, hop="gateway", retry_after_ms=math.ceil(wait_s * 1000), reason="key")
        self.limit = limit


class RateBucket:
    """Holds up to one minute's worth and fills at an even rate: who was idle for a minute may use it at once.

    It may be overdrawn, by what turns out to be more than was asked for; then it fills up from below zero.
    """

    def __init__(self, per_min: int, clock: Clock) -> None:
        self._per_min = per_min
        self._clock = clock
        self._level = float(per_min)
        self._at_s = clock.monotonic_s()

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there, 0 when it is; never more than the bucket can hold is asked for."""
        self._fill()
        missing = amount - self._level
        return missing * MINUTE_S / self._per_min if missing > ROUNDING else 0.0

    def take(self, amount: float) -> None:
        """A negative amount is given back."""
        self._fill()
        self._level -= amount

    def change_rate(self, per_min: int) -> None:
        self._fill()
        self._per_min = per_min
        self._level = min(self._level, per_min)

    def _fill(self) -> None:
        now_s = self._clock.monotonic_s()
        gained = (now_s - self._at_s) * self._per_min / MINUTE_S
        self._level, self._at_s = min(self._level + gained, self._per_min), now_s


class KeyLedger:
    """The use of one key now; `live` are its requests that have not ended."""

    def __init__(self, key: ApiKey, clock: Clock = SYSTEM_CLOCK) -> None:
        self.live = 0
        self.clock = clock
        self._requests: RateBucket | None = None
        self._tokens: RateBucket | None = None
        self._mean_s = 0.0
        self.change_key(key)

    def change_key(self, key: ApiKey) -> None:
        """The name and limits of its entry from now on. What was used stays used; live requests go on."""
        self._name = key.name
        self._limits = key.limits
        self._requests = _changed(self._requests, key.limits.requests_per_min, self.clock)
        self._tokens = _changed(self._tokens, key.limits.tokens_per_min, self.clock)

    def admit(self, prompt_tokens: int, max_tokens: int, *, exact: bool) -> Allowance:
        """Take in a request that may use so many tokens; where not `exact`, those of the prompt are a guess.

        Raises LimitReached with the time to wait, TooLarge for what would never fit.
        """
        self.check_size(max_tokens + (prompt_tokens if exact else 1))
        tokens = prompt_tokens + max_tokens
        if self._limits.tokens_per_min is not None:
            tokens = min(tokens, self._limits.tokens_per_min)
        self._check_concurrency()
        self._check_bucket("tokens_per_min", self._tokens, tokens)
        self._check_bucket("requests_per_min", self._requests, 1)
        if self._tokens is not None:
            self._tokens.take(tokens)
        if self._requests is not None:
            self._requests.take(1)
        self.live += 1
        return Allowance(self, self._requests, self._tokens, tokens, max_tokens)

    def check_rate(self) -> None:
        """Raise LimitReached while no request may come, whatever it asks for."""
        self._check_bucket("requests_per_min", self._requests, 1)

    def count_refused(self) -> None:
        """A request that was let in is refused for what it asks."""
        if self._requests is not None:
            self._requests.take(1)

    def check_size(self, tokens: int) -> None:
        """Raise TooLarge when a request of so many tokens could never be admitted."""
        most = self._limits.tokens_per_min
        if most is not None and tokens > most:
            raise TooLarge(
                f"prompt and max_tokens are {tokens} tokens or more and the key {self._name} has "
                f"tokens_per_min = {most}: send a shorter prompt or a smaller max_tokens",
                hop="gateway",
            )

    def record_end(self, duration_s: float) -> None:
        self.live -= 1
        self._mean_s += MEAN_SHARE * (duration_s - self._mean_s) if self._mean_s else duration_s

    def _check_concurrency(self) -> None:
        most = self._limits.concurrency
        if most is not None and self.live >= most:
            raise LimitReached(
                "concurrency",
                f"the key {self._name} has concurrency = {most} and that many requests are live: "
                "wait for one to end",
                self._mean_s / most,
            )

    def _check_bucket(self, limit: str, bucket: RateBucket | None, amount: int) -> None:
        wait_s = 0.0 if bucket is None else bucket.wait_s(amount)
        if wait_s > 0:
            raise LimitReached(
                limit,
                f"the key {self._name} has {limit} = {getattr(self._limits, limit)} and has used them up: "
                f"come back in {wait_s:.1f} s",
                wait_s,
            )


class Allowance:
    """The part of its key's limits that one request was given; it ends once, however the request does."""

    def __init__(
        self,
        ledger: KeyLedger,
        requests: RateBucket | None,
        tokens: RateBucket | None,
        reserved: int,
        max_tokens: int,
    ) -> None:
        self._ledger = ledger
        self._requests = requests
        self._tokens = tokens
        self._reserved = reserved
        self._max_tokens = max_tokens
        self._since_s = ledger.clock.monotonic_s()
        self._ended = False

    def count_prompt(self, prompt_tokens: int) -> None:
        """The prompt's length is known now. Raises TooLarge when the request can never fit."""
        self._ledger.check_size(prompt_tokens + self._max_tokens)
        self._reserve(prompt_tokens + self._max_tokens)

    def charge(self, used_tokens: int) -> None:
        """The request has ended and used so much; later calls change nothing."""
        if not self._ended:
            self._reserve(used_tokens)
            self._end()

    def undo(self, *, counted: bool = False) -> None:
        """There will be no request, of which nothing is used; `counted`: that it was asked for counts."""
        if not self._ended:
            self._reserve(0)
            if self._requests is not None and not counted:
                self._requests.take(-1)
            self._end()

    def _reserve(self, tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens - self._reserved)
        self._reserved = tokens

    def _end(self) -> None:
        self._ended = True
        self._ledger.record_end(self._ledger.clock.monotonic_s() - self._since_s)


def _changed(bucket: RateBucket | None, per_min: int | None, clock: Clock) -> RateBucket | None:
    """A bucket that is kept keeps what was used of it."""
    if per_min is None:
        return None
    if bucket is None:
        return RateBucket(per_min, clock)
    bucket.change_rate(per_min)
    return bucket
