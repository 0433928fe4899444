"""Warming: computing a prefix before it is asked for, while there is nothing better to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import ProtocolError
from shared.messages import WARM_EPOCH, Envelope, Warm
from shared.telemetry import metrics
from shared.worker.warming.warm_part import ONE_TOKEN, WarmPart, WarmPrefix
from shared.worker.wire import read_sequence


def read_warm(
    envelope: Envelope,
    warm: Warm,
    deadline: Deadline | None,
    *,
    adapter: str,
    vocab_size: int,
    max_model_len: int,
) -> WarmPrefix:
    """A checked prefix; `adapter` is what the engine calls its adapter.

    Raises ProtocolError, or InvalidRequest for what this model cannot compute.
    """
    if deadline is None or not envelope.request_id or envelope.epoch != WARM_EPOCH:
        raise ProtocolError(f"Warm needs a request_id, epoch {WARM_EPOCH} and a deadline in its envelope")
    count = len(warm.token_ids) // 4  # bytes each, as `read_sequence` checks
    spec = read_sequence(
        warm.token_ids,
        count,
        warm.block_hashes,
        ONE_TOKEN,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
    )
    return WarmPrefix(
        envelope.request_id,
        warm.gateway,
        deadline,
        tuple(spec.token_ids),
        tuple(spec.block_hashes),
        adapter,
        warm.patient,
    )


MAX_PATIENT = 32
"""The prefixes that wait at a worker until there is nothing else to do; one more is not taken."""


class Warming:
    """The prefix that is being warmed, at most one. Those that are patient wait for their turn, the one that
    is needed first goes first; any other is taken at once or never.

    It goes on part by part for as long as there is nothing else to compute, and ends at the latest with its
    deadline. What is computed of it stays in the prefix cache, however it ends.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._least_tokens = 0  # that the cache has before its next part, unless something was evicted
        self.prefix: WarmPrefix | None = None
        self._waiting: dict[str, WarmPrefix] = {}  # the patient ones, by their requests

    def offer(self, prefix: WarmPrefix, *, busy: bool) -> bool:
        """Return whether it will be warmed; a later one of the same request takes the place of the earlier
        one."""
        if prefix.patient:
            return self._await_turn(prefix)
        if self.prefix is not None and self.prefix.patient:
            self._put_off()
        if busy or (self.prefix is not None and self.prefix.request_id != prefix.request_id):
            _count("skipped")
            return False
        if self.prefix is not None:
            _count("replaced")
        self.prefix = prefix
        self._least_tokens = 0
        return True

    def choose(self, *, busy: bool) -> WarmPrefix | None:
        """Return the prefix whose turn it is, None for none: patient ones give way and come back."""
        if busy and self.prefix is not None and self.prefix.patient:
            self._put_off()
        while self.prefix is None and self._waiting and not busy:
            first = min(self._waiting.values(), key=lambda prefix: prefix.deadline.at_s)
            del self._waiting[first.request_id]
            if first.deadline.expired(self._clock):
                _count("expired")
            else:
                self.prefix, self._least_tokens = first, 0
        return self.prefix

    @property
    def known(self) -> Iterator[WarmPrefix]:
        """Iterate over the one that is being warmed, and those that wait."""
        return chain(() if self.prefix is None else (self.prefix,), self._waiting.values())

    def cancel(self, request_id: str, sender: str = "") -> bool:
        """Return whether there was one that `sender` may cancel ("": it has not said who it is)."""
        found = [each for each in self.known if each.request_id == request_id]
        if not found or sender not in ("", found[0].gateway):
            return False
        self._drop(found[0], "cancelled")
        return True

    def cancel_of(self, gateway: str) -> None:
        """Cancel what that gateway wanted: it is gone."""
        for prefix in [each for each in self.known if each.gateway == gateway]:
            self._drop(prefix, "cancelled")

    def record_part(self, part: WarmPart) -> bool:
        """A part has been computed, or could not be; whether there is more KV than before."""
        if part.error is not None:
            if part.prefix is self.prefix:
                self._end("refused")
            return False
        metrics.WARMED_TOKENS.inc(part.num_tokens)
        return part.num_tokens > 0

    def next_start(self, known_tokens: int, *, busy: bool) -> int | None:
        """Return where its next part begins, with `known_tokens` in the cache; None when there is none."""
        if self.prefix is None:
            return None
        if known_tokens >= self.prefix.num_tokens:
            self._end("done")
        elif busy:
            self._end("given_up")
        elif self.prefix.deadline.expired(self._clock):
            self._end("expired")
        elif known_tokens < self._least_tokens:
            self._end("evicted")  # by others, or by its own end where the cache is too small for all of it
        else:
            self._least_tokens = known_tokens + HASH_BLOCK_TOKENS
            return known_tokens
        return None

    def _await_turn(self, prefix: WarmPrefix) -> bool:
        earlier = next((each for each in self.known if each.request_id == prefix.request_id), None)
        if earlier is not None:
            self._drop(earlier, "replaced")
        for late in [each for each in self._waiting.values() if each.deadline.expired(self._clock)]:
            self._drop(late, "expired")
        if len(self._waiting) >= MAX_PATIENT:
            _count("skipped")
            return False
        self._waiting[prefix.request_id] = prefix
        return True

    def _put_off(self) -> None:
        if self.prefix is not None:
            self._waiting[self.prefix.request_id] = self.prefix
            self.prefix = None

    def _drop(self, prefix: WarmPrefix, result: str) -> None:
        if prefix is self.prefix:
            self._end(result)
        elif self._waiting.pop(prefix.request_id, None) is not None:
            _count(result)

    def _end(self, result: str) -> None:
        self.prefix = None
        _count(result)


def _count(result: str) -> None:
    metrics.WARMED_PREFIXES.labels(result=result).inc()
