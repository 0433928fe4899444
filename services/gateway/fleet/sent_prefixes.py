"""Know the prompts that workers were asked to compute lately, so that calls that begin alike meet at one.

Calls that come together are told of no cached block yet. At one worker what they share is computed once; at
two workers it would be computed twice, each of them waiting for the other's work as for its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from shared.deadline import SYSTEM_CLOCK, Clock

REMEMBERED_S = 10.0
"""The time after which what was asked for is computed, and told by its worker, or never will be."""
PROMPTS_REMEMBERED = 64
"""The prompts of a worker that are remembered, the latest ones."""
LEAST_SHARED_BLOCKS = 4
"""The fewest blocks for which a call goes to another worker than it would alone."""


@dataclass(frozen=True, slots=True)
class SentPrompt:
    names: frozenset[bytes]
    sent_s: float


class SentPrefixes:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._sent: defaultdict[str, deque[SentPrompt]] = defaultdict(
            lambda: deque(maxlen=PROMPTS_REMEMBERED)
        )

    def add(self, prefill: str, block_hashes: Sequence[bytes]) -> None:
        """A prefill worker is asked to compute a prompt of these blocks."""
        if len(block_hashes) >= LEAST_SHARED_BLOCKS:
            self._sent[prefill].append(SentPrompt(frozenset(block_hashes), self._clock.monotonic_s()))

    def shared_blocks(self, prefill: str, block_hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of a prompt the worker was asked for lately."""
        sent = self._sent.get(prefill)
        if not sent:
            return 0
        oldest_s = self._clock.monotonic_s() - REMEMBERED_S
        while sent and sent[0].sent_s < oldest_s:
            sent.popleft()
        return max((len(list(takewhile(each.names.__contains__, block_hashes))) for each in sent), default=0)
