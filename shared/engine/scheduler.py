"""Which sequences exist, which rows go into the next step, and who gives way when blocks run out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine.block_pool import BlockPool
from shared.engine.sequence import LiveSequence, Phase, blocks_for
from shared.errors import InternalError, InvalidRequest, Overloaded
from shared.kv_hash import HASH_BLOCK_TOKENS

RETRY_AFTER_MS = 100


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one sequence for one step: tokens [start, start + num_tokens), then `drafts` to verify."""

    sequence: LiveSequence
    start: int
    num_tokens: int
    drafts: tuple[int, ...]
    is_prefill: bool

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def num_draws(self) -> int:
        """Rows to sample: none until the chunk reaches the last known token."""
        return 1 + len(self.drafts) if self.end == len(self.sequence.tokens) else 0

    @property
    def token_ids(self) -> list[int]:
        return [*self.sequence.tokens[self.start : self.end], *self.drafts]


@dataclass(frozen=True, slots=True)
class Plan:
    work: tuple[Work, ...]
    preempted_keys: tuple[str, ...]


class Scheduler:
    """Decode rows first, then prefill chunks, earliest admitted first. Deterministic."""

    def __init__(self, blocks: BlockPool, *, max_batch_tokens: int, max_sequences: int) -> None:
        self.sequences: dict[str, LiveSequence] = {}
        self._blocks = blocks
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences

    # --- who is here ---

    def check_room(self, key: str) -> None:
        """Raise unless a new sequence `key` may come in now."""
        if key in self.sequences:
            raise InvalidRequest(f"sequence {key!r} is already held; release it before admitting it again")
        if len(self.sequences) >= self._max_sequences:
            raise Overloaded(
                f"all {self._max_sequences} sequences are taken; try again later or raise max_sequences",
                retry_after_ms=RETRY_AFTER_MS,
            )
        if any(sequence.phase is Phase.PREEMPTED for sequence in self.sequences.values()):
            raise Overloaded(
                "KV blocks ran out and a preempted sequence waits for them; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def place(self, sequence: LiveSequence, num_tokens: int, max_cached_blocks: int) -> int:
        """Give `sequence` blocks for `num_tokens`; the first come filled from the prefix cache.

        Returns how many of them do. Raises Overloaded, changing nothing, when too few are free.
        """
        cached = self._blocks.match(sequence.chain.hashes[:max_cached_blocks])
        self._blocks.retain(cached)
        missing = blocks_for(num_tokens) - len(cached)
        if missing > self._blocks.num_free:
            self._blocks.free(cached)
            raise Overloaded(
                f"{missing} KV blocks are needed and {self._blocks.num_free} are free; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )
        sequence.blocks = cached + self._blocks.allocate(missing)
        sequence.num_computed = len(cached) * HASH_BLOCK_TOKENS
        sequence.num_committed_blocks = len(cached)
        self.sequences[sequence.key] = sequence
        return len(cached)

    def remove(self, key: str) -> bool:
        sequence = self.sequences.pop(key, None)
        if sequence is None:
            return False
        self._blocks.free(sequence.blocks)
        return True

    # --- the next step ---

    @property
    def has_work(self) -> bool:
        if any(sequence.phase is Phase.ACTIVE for sequence in self.sequences.values()):
            return True
        waiting = self._in_phase(Phase.PREEMPTED)
        return bool(waiting) and self._can_resume(waiting[0])

    def plan(self) -> Plan:
        self._resume_preempted()
        preempted: list[str] = []
        decoding = [sequence for sequence in self._in_phase(Phase.ACTIVE) if not sequence.prefilling]
        for sequence in decoding:
            self._grow(sequence, preempted)
        decoding = [sequence for sequence in decoding if sequence.phase is Phase.ACTIVE]
        prefilling = [sequence for sequence in self._in_phase(Phase.ACTIVE) if sequence.prefilling]
        budget = self._max_batch_tokens - len(decoding)
        # Drafts are a bet, prompts are certain work: while a prompt waits, drafts get half of the rest.
        drafts = self._choose_drafts(decoding, budget // 2 if prefilling else budget)
        work = [
            Work(sequence, sequence.num_computed, 1, chosen, is_prefill=False)
            for sequence, chosen in zip(decoding, drafts, strict=True)
        ]
        budget -= sum(map(len, drafts))
        for sequence in prefilling:
            num_tokens = min(sequence.num_uncomputed, budget)
            if num_tokens > 0:
                work.append(Work(sequence, sequence.num_computed, num_tokens, (), is_prefill=True))
                budget -= num_tokens
        return Plan(tuple(work), tuple(preempted))

    def advance(self, work: Work, num_tokens: int) -> None:
        """KV of `num_tokens` more tokens is final; blocks that became full enter the prefix cache."""
        sequence = work.sequence
        sequence.num_computed = work.start + num_tokens
        self.commit(sequence)

    def commit(self, sequence: LiveSequence) -> None:
        """Name the full blocks of a sequence in the prefix cache."""
        full = sequence.num_computed // HASH_BLOCK_TOKENS
        if full == sequence.num_committed_blocks or not self._blocks.prefix_cache:
            return
        sequence.chain.extend(sequence.tokens, full)
        for index in range(sequence.num_committed_blocks, min(full, len(sequence.chain.hashes))):
            self._blocks.commit(sequence.blocks[index], sequence.chain.hashes[index])
        sequence.num_committed_blocks = full

    def check(self) -> None:
        """Raise InternalError unless every block reference and every length is explained."""
        self._blocks.check([sequence.blocks for sequence in self.sequences.values()])
        for sequence in self.sequences.values():
            covered = len(sequence.blocks) * HASH_BLOCK_TOKENS
            if not 0 <= sequence.num_computed <= covered:
                raise InternalError(f"{sequence.key!r} computed {sequence.num_computed} of {covered} places")
            if (sequence.phase is Phase.PREEMPTED) != (not sequence.blocks):
                raise InternalError(
                    f"{sequence.key!r} is {sequence.phase.value} with {len(sequence.blocks)} blocks"
                )
            if sequence.phase is Phase.ACTIVE and sequence.num_uncomputed < 1:
                raise InternalError(f"{sequence.key!r} is active with nothing to compute")

    # --- blocks ---

    def _in_phase(self, phase: Phase) -> list[LiveSequence]:
        chosen = [sequence for sequence in self.sequences.values() if sequence.phase is phase]
        return sorted(chosen, key=lambda sequence: sequence.order)

    def _can_resume(self, sequence: LiveSequence) -> bool:
        cached = self._blocks.match(sequence.chain.hashes[: max_cached_blocks(sequence.tokens)])
        free = self._blocks.num_free - self._blocks.num_unheld(cached)
        return blocks_for(len(sequence.tokens)) - len(cached) <= free

    def _resume_preempted(self) -> None:
        for sequence in self._in_phase(Phase.PREEMPTED):
            if not self._can_resume(sequence):
                return
            self.place(sequence, len(sequence.tokens), max_cached_blocks(sequence.tokens))
            sequence.phase = Phase.ACTIVE

    def _grow(self, sequence: LiveSequence, preempted: list[str]) -> None:
        """Make room for the KV of the last token; the latest admitted sequence gives way."""
        if sequence.phase is not Phase.ACTIVE or blocks_for(len(sequence.tokens)) <= len(sequence.blocks):
            return
        while self._blocks.num_free == 0:
            victim = max(
                (other for other in self._in_phase(Phase.ACTIVE) if not other.pinned),
                key=lambda other: other.order,
            )
            self._preempt(victim)
            preempted.append(victim.key)
            if victim is sequence:
                return
        sequence.blocks += self._blocks.allocate(1)

    def _preempt(self, sequence: LiveSequence) -> None:
        self._blocks.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = sequence.num_committed_blocks = 0
        sequence.drafts = ()
        sequence.prefilling = True
        sequence.phase = Phase.PREEMPTED

    def _choose_drafts(self, decoding: Sequence[LiveSequence], budget: int) -> list[tuple[int, ...]]:
        """Each sequence's drafts, cut to what may be drawn, to the budget and to blocks free right now."""
        chosen: list[tuple[int, ...]] = []
        for sequence in decoding:
            drafts = sequence.drafts[: max(0, min(sequence.draw_limit - 1, budget))]
            sequence.drafts = ()
            missing = blocks_for(len(sequence.tokens) + len(drafts)) - len(sequence.blocks)
            if missing > 0:
                sequence.blocks += self._blocks.allocate(min(missing, self._blocks.num_free))
            drafts = drafts[: len(sequence.blocks) * HASH_BLOCK_TOKENS - len(sequence.tokens)]
            budget -= len(drafts)
            chosen.append(drafts)
        return chosen


def max_cached_blocks(token_ids: Sequence[int]) -> int:
    """The last token is always computed: its logits are what the next draw needs."""
    return (len(token_ids) - 1) // HASH_BLOCK_TOKENS
