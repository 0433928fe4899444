"""Answers that finished, by what they depend on: bounded in bytes, number and age, and shared out by tenant.

A tenant is that of the key, whatever `cache_salt` its requests have: a salt is in the digests alone, so that
answers are told apart by it and no room is won. `FairCache` says who gives way when room is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InvalidRequest, TooLarge
from shared.fair_cache import FairCache
from shared.messages import (
    CACHE_DIGEST_BYTES,
    MAX_COMPARED_BYTES,
    MAX_KEPT_BYTES,
    MAX_KEPT_TOKENS,
    KeptResponse,
    ResponseKey,
    passage_bytes,
)
from shared.telemetry import metrics

ENTRY_BYTES = 1024
"""The memory of an entry beside its texts and ids."""
ID_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class KeptEntry:
    """`generation` is that of the index that it was answered from, "" where it was answered from none."""

    key: ResponseKey
    response: KeptResponse
    generation: str
    stored_s: float
    size: int


class ResponseCache:
    def __init__(
        self,
        max_bytes: int,
        max_entries: int,
        ttl_s: float,
        clock: Clock = SYSTEM_CLOCK,
        removed: Callable[[KeptEntry], None] = lambda _: None,
    ) -> None:
        """`removed` hears of each entry that is not kept any more."""
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._removed = removed
        self._kept: FairCache[bytes, KeptEntry] = FairCache(max_entries, max_bytes, self._on_pushed_out)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held_bytes(self) -> int:
        return self._kept.held_bytes

    def find(self, key: ResponseKey, generation: str, max_age_s: float = 0.0) -> KeptEntry | None:
        """The answer to the same request, from the index of `generation`; `max_age_s` 0: of any age."""
        entry = self._kept.peek(key.tenant, key.exact)
        return entry if entry is not None and self.is_good(entry, generation, max_age_s) else None

    def is_good(self, entry: KeptEntry, generation: str, max_age_s: float = 0.0) -> bool:
        """Return whether it may be given out; then it counts as used. What nobody may be given any more
        goes."""
        if entry.generation not in ("", generation):
            self.remove(entry, "generation")
            return False
        age_s = self.age_s(entry)
        if age_s > self._ttl_s:
            self.remove(entry, "age")
            return False
        if max_age_s and age_s > max_age_s:
            return False
        self._kept.get(entry.key.tenant, entry.key.exact)
        return True

    def age_s(self, entry: KeptEntry) -> float:
        return self._clock.monotonic_s() - entry.stored_s

    def put(
        self, key: ResponseKey, response: KeptResponse, generation: str, more_bytes: int = 0
    ) -> KeptEntry:
        """Keep it in place of what was there; `more_bytes` are kept for it elsewhere. Raises TooLarge for
        what does not fit, alone or into its tenant's share."""
        size = ENTRY_BYTES + more_bytes + _size_of(key, response)
        if size > self._max_bytes:
            raise TooLarge(f"an answer of {size} bytes is over the cache's {self._max_bytes}; raise cache_mb")
        if (old := self._kept.peek(key.tenant, key.exact)) is not None:
            self.remove(old, "")
        entry = KeptEntry(key, response, generation, self._clock.monotonic_s(), size)
        is_kept = self._kept.put(key.tenant, key.exact, entry, size)
        self._count()
        if not is_kept:
            raise TooLarge(
                f"an answer of {size} bytes is over its tenant's share of the cache; raise cache_mb"
            )
        return entry

    def remove(self, entry: KeptEntry, why: str) -> None:
        """`why` is counted; "": another one takes its place."""
        self._kept.pop(entry.key.tenant, entry.key.exact)
        self._count()
        self._removed(entry)
        if why:
            metrics.RESPONSE_CACHE_EVICTIONS.labels(why=why).inc()

    def drop_generations(self, current: Collection[str]) -> None:
        """Drop answers from indexes that are not searched any more; `current` are those that are."""
        for entry in list(self._kept):
            if entry.generation and entry.generation not in current:
                self.remove(entry, "generation")

    def _on_pushed_out(self, entry: KeptEntry) -> None:
        self._removed(entry)
        metrics.RESPONSE_CACHE_EVICTIONS.labels(why="room").inc()

    def _count(self) -> None:
        metrics.RESPONSE_CACHE_BYTES.set(self._kept.held_bytes)
        metrics.RESPONSE_CACHE_ENTRIES.set(len(self._kept))


def check_key(key: ResponseKey) -> None:
    """Raises InvalidRequest for what no gateway sends."""
    if len(key.exact) != CACHE_DIGEST_BYTES or len(key.near) != CACHE_DIGEST_BYTES:
        raise InvalidRequest(
            f"a key has digests of other lengths than {CACHE_DIGEST_BYTES}; update the gateway"
        )
    if len(key.question.encode(errors="surrogatepass")) > MAX_COMPARED_BYTES:
        raise InvalidRequest(f"a question is over {MAX_COMPARED_BYTES} bytes; ask without it")


def check_response(response: KeptResponse) -> None:
    """Raises InvalidRequest or TooLarge for what no gateway sends."""
    if len(response.token_ids) % ID_BYTES:
        raise InvalidRequest(f"{len(response.token_ids)} bytes are no list of ids; update the gateway")
    tokens, size = len(response.token_ids) // ID_BYTES, _text_bytes(response)
    if tokens > MAX_KEPT_TOKENS or size > MAX_KEPT_BYTES:
        raise TooLarge(
            f"an answer of {tokens} tokens and {size} bytes is not kept: at most {MAX_KEPT_TOKENS} and "
            f"{MAX_KEPT_BYTES}"
        )


def _size_of(key: ResponseKey, response: KeptResponse) -> int:
    return _text_bytes(response) + len(response.token_ids) + len(key.question.encode(errors="surrogatepass"))


def _text_bytes(response: KeptResponse) -> int:
    texts = (response.text, response.retrieval_query)
    return sum(len(text.encode()) for text in texts) + sum(map(passage_bytes, response.passages))
