"""Warming: computing a prefix before it is asked for, while there is nothing better to do. Pure."""

from __future__ import annotations

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import ProtocolError
from shared.messages import WARM_EPOCH, Envelope, Warm
from shared.telemetry import metrics
from shared.worker.warm_part import ONE_TOKEN, WarmPart, WarmPrefix
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
        envelope.request_id, warm.gateway, deadline, tuple(spec.token_ids), tuple(spec.block_hashes), adapter
    )


class Warming:
    """The prefix that is being warmed, at most one; none waits: a hint not taken at once is worthless.

    It goes on part by part for as long as there is nothing else to compute, and ends at the latest with its
    deadline. What is computed of it stays in the prefix cache, however it ends.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._least_tokens = 0  # that the cache has before its next part, unless something was evicted
        self.prefix: WarmPrefix | None = None

    def offer(self, prefix: WarmPrefix, *, busy: bool) -> bool:
        """Return whether it will be warmed; a later one of the same request takes the place of the earlier
        one."""
        if busy or (self.prefix is not None and self.prefix.request_id != prefix.request_id):
            _count("skipped")
            return False
        if self.prefix is not None:
            _count("replaced")
        self.prefix = prefix
        self._least_tokens = 0
        return True

    def cancel(self, request_id: str, sender: str = "") -> bool:
        """Return whether there was one that `sender` may cancel ("": it has not said who it is)."""
        prefix = self.prefix
        if prefix is None or prefix.request_id != request_id or sender not in ("", prefix.gateway):
            return False
        self._end("cancelled")
        return True

    def cancel_of(self, gateway: str) -> None:
        """Cancel what that gateway wanted: it is gone."""
        if self.prefix is not None and self.prefix.gateway == gateway:
            self._end("cancelled")

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

    def _end(self, result: str) -> None:
        self.prefix = None
        _count(result)


def _count(result: str) -> None:
    metrics.WARMED_PREFIXES.labels(result=result).inc()
