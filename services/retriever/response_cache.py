"""Answers that finished, by what they depend on: bounded in bytes, number and age, each tenant for itself.

When room is needed, the tenant that holds most gives up what it used least lately: who fills the cache takes
room from nobody that holds less.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InvalidRequest, TooLarge
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
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._removed = removed
        self._tenants: dict[str, OrderedDict[bytes, KeptEntry]] = {}
        self._tenant_bytes: dict[str, int] = {}
        self._bytes = 0
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def find(self, key: ResponseKey, generation: str, max_age_s: float = 0.0) -> KeptEntry | None:
        """The answer to the same request, from the index of `generation`; `max_age_s` 0: of any age."""
        entry = self._entry_of(key)
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
        self._tenants[entry.key.tenant].move_to_end(entry.key.exact)
        return True

    def age_s(self, entry: KeptEntry) -> float:
        return self._clock.monotonic_s() - entry.stored_s

    def put(
        self, key: ResponseKey, response: KeptResponse, generation: str, more_bytes: int = 0
    ) -> KeptEntry:
        """Keep it in place of what was there; `more_bytes` are kept for it elsewhere. Raises TooLarge for
        what does not fit even alone."""
        size = ENTRY_BYTES + more_bytes + _size_of(key, response)
        if size > self._max_bytes or not self._max_entries:
            raise TooLarge(f"an answer of {size} bytes is over the cache's {self._max_bytes}; raise cache_mb")
        if (old := self._entry_of(key)) is not None:
            self.remove(old, "")
        while self._bytes + size > self._max_bytes or self._entries >= self._max_entries:
            self.remove(self._least_missed(), "room")
        entry = KeptEntry(key, response, generation, self._clock.monotonic_s(), size)
        self._tenants.setdefault(key.tenant, OrderedDict())[key.exact] = entry
        self._count(entry, 1)
        return entry

    def remove(self, entry: KeptEntry, why: str) -> None:
        """`why` is counted; "": another one takes its place."""
        kept = self._tenants[entry.key.tenant]
        del kept[entry.key.exact]
        self._count(entry, -1)
        self._removed(entry)
        if not kept:
            del self._tenants[entry.key.tenant], self._tenant_bytes[entry.key.tenant]
        if why:
            metrics.RESPONSE_CACHE_EVICTIONS.labels(why=why).inc()

    def drop_generations(self, current: Collection[str]) -> None:
        """Drop answers from indexes that are not searched any more; `current` are those that are."""
        entries = [entry for kept in self._tenants.values() for entry in kept.values()]
        for entry in entries:
            if entry.generation and entry.generation not in current:
                self.remove(entry, "generation")

    def _entry_of(self, key: ResponseKey) -> KeptEntry | None:
        kept = self._tenants.get(key.tenant)
        return None if kept is None else kept.get(key.exact)

    def _least_missed(self) -> KeptEntry:
        largest = max(self._tenant_bytes, key=self._tenant_bytes.__getitem__)
        return next(iter(self._tenants[largest].values()))

    def _count(self, entry: KeptEntry, sign: int) -> None:
        tenant = entry.key.tenant
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + sign * entry.size
        self._bytes += sign * entry.size
        self._entries += sign
        metrics.RESPONSE_CACHE_BYTES.set(self._bytes)
        metrics.RESPONSE_CACHE_ENTRIES.set(self._entries)


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
