"""Know how much of a prompt every prefill worker has, and of whom each could fetch more. Pure.

It is counted once a placement: looking up the blocks of a long prompt at every worker takes most of its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from services.gateway.fleet.routing import Candidate, Need, load_cost, tokens_before
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.prefix_fetch import LEAST_BLOCKS, is_worth_fetching
from shared.messages import NO_LENDER, PrefixLender, WorkerReport

DEFAULT_PREFILL_TOKENS_PER_S = 1000.0
"""Taken for an instance that has not measured its rate yet; only the comparison matters."""


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """The first `blocks` of a prompt need no computing at a worker, `ready_s` from now on: it has them, or
    fetches some. `lender` has notably more than it has now, NO_LENDER where nobody does."""

    blocks: int
    ready_s: float = 0.0
    lender: PrefixLender = NO_LENDER

    @property
    def tokens(self) -> int:
        return self.blocks * HASH_BLOCK_TOKENS

    @property
    def is_fetched(self) -> bool:
        return self.ready_s > 0.0


class KnownPrefixes:
    """The known prefixes of the prompt that `need` tells of, at `prefills`, which all may lend."""

    def __init__(self, prefills: Sequence[Candidate], need: Need) -> None:
        self._tokens, self._left_s = need.tokens, need.left_s
        self._hashes = need.reusable_hashes
        self._cached = {view.heartbeat.instance: view.overlap(self._hashes) for view in prefills}
        self._lenders = [self._as_lender(view) for view in self._richest(prefills)]

    def at(self, view: Candidate) -> KnownPrefix:
        """Return what a prefill worker knows, or will have fetched where that is notably sooner there than
        computed, as it decides itself."""
        own, worker = self._blocks(view), view.heartbeat.worker
        lender = self._lender_of(view.heartbeat.instance, own)
        fetch = worker.fetch
        if not lender.instance or not fetch.tokens_per_s > 0:
            return KnownPrefix(own, lender=lender)
        more = min(lender.blocks - own, fetch.most_tokens // HASH_BLOCK_TOKENS)
        fetch_s = fetch.answer_us / 1e6 + more * HASH_BLOCK_TOKENS / fetch.tokens_per_s
        if not is_worth_fetching(more, fetch_s, worker.tokens_per_s or lender.tokens_per_s):
            return KnownPrefix(own, lender=lender)
        return KnownPrefix(own + more, fetch_s, lender)

    def first_token_s(self, view: Candidate, tokens_per_s: float = 0.0) -> float:
        """Predict when a prefill worker has the first token, at its measured rate or at `tokens_per_s`: what
        is due before it is computed while the prefix comes, then what is left of the prompt."""
        known, worker = self.at(view), view.heartbeat.worker
        rate, tokens = tokens_per_s or prefill_rate(worker), self._tokens - known.tokens
        return max(tokens_before(worker, tokens, self._left_s) / rate, known.ready_s) + tokens / rate

    def cost(self, view: Candidate) -> tuple[float, ...]:
        """Return the cost of computing the prompt there: the time to the first token, then the load."""
        return (round(self.first_token_s(view), 3), load_cost(view)[0])

    # ---- lenders ------------------------------------------------------------------------------------

    def _richest(self, prefills: Sequence[Candidate]) -> list[Candidate]:
        """Return the two that have most of the prompt, among equals those with least in the queue: one of
        them lends to whoever asks."""
        rich = [view for view in prefills if self._cached[view.heartbeat.instance] >= LEAST_BLOCKS]
        return nlargest(2, rich, lambda view: (self._blocks(view), -view.heartbeat.worker.queued_tokens))

    def _as_lender(self, view: Candidate) -> PrefixLender:
        beat, worker = view.heartbeat, view.heartbeat.worker
        return PrefixLender(
            beat.instance, beat.incarnation, self._blocks(view), worker.queued_tokens, worker.tokens_per_s
        )

    def _lender_of(self, instance: str, own_blocks: int) -> PrefixLender:
        for lender in self._lenders:
            if lender.instance != instance:
                return lender if lender.blocks >= own_blocks + LEAST_BLOCKS else NO_LENDER
        return NO_LENDER

    def _blocks(self, view: Candidate) -> int:
        """Return how much of the prompt a worker has, which may be none of those that lend."""
        known = self._cached.get(view.heartbeat.instance)
        return view.overlap(self._hashes) if known is None else known


def prefill_rate(worker: WorkerReport) -> float:
    """Return how fast a worker computes prompts, in tokens per second; a guess while it is not measured."""
    return worker.tokens_per_s if worker.tokens_per_s > 0 else DEFAULT_PREFILL_TOKENS_PER_S
