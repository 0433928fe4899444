"""One sequence that the engine holds: its tokens, its tables of blocks, how far it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile

from shared.blocks.block_hash import HASH_BLOCK_TOKENS, BlockHasher, max_cached_blocks
from shared.engine.batch import PackedAdapter
from shared.engine.block_table import BlockTable, held_blocks
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.sampling.parameters import SamplingParams


class SequenceStatus(Enum):
    RESERVED = "reserved"  # its blocks wait for KV from outside
    ACTIVE = "active"  # in the batch: prefilling or decoding
    PREEMPTED = "preempted"  # lost its blocks, will be computed again or restored
    HELD = "held"  # drew what it was asked for, or was halted; keeps its blocks until released
    LENT = "lent"  # holds blocks of another sequence, which goes on, for whoever reads them


@dataclass(slots=True)
class HashChain:
    """The names of a sequence's full blocks; continues where the caller's hashes end.

    Without hashes and without a seed there is nothing to continue from: such a sequence never enters the
    prefix cache, because a wrong salt would let two tenants meet.
    """

    hashes: list[bytes]
    seed: bytes | None
    hasher: BlockHasher

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Name the first `num_blocks` blocks of `token_ids`, as far as the chain can."""
        start = self.hashes[-1] if self.hashes else self.seed
        if start is not None and len(self.hashes) < num_blocks:
            self.hasher.extend(self.hashes, token_ids, num_blocks, start)


@dataclass(slots=True)
class LiveSequence:
    """Position i of the sequence is tokens[i]; KV of tokens[:num_computed] is in the blocks of its tables,
    one for each group of layers, as far as rows to come read it."""

    key: str
    order: int  # admission number
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    status: SequenceStatus
    chain: HashChain
    adapter: PackedAdapter | None = None
    end_len: int = 0  # "length" when this many tokens exist
    hold_len: int | None = None  # HELD when this many tokens exist
    end_ids: frozenset[int] = frozenset()
    on_layer: Callable[[int, int, int], None] | None = None
    share: TenantShare = OPEN_SHARE
    answer_scope: str = ""  # for whose sequences its answer is kept to draft from; "": nobody's
    stay_s: float = 0.0  # its KV is kept so long for whoever goes on from it; below 0: for nobody
    num_charged: int = 0  # tokens that its tenant was charged for computing, or need not be
    priority: int = 1  # 0 high, 1 normal, 2 low
    deadline_us: int = 0  # on the scheduler's clock
    inter_token_us: float = math.inf  # how long its client waits from token to token
    due_us: float = math.inf  # when its next token is wanted, the first or a further one; on that clock too
    waiting_since_us: int = 0  # when it was admitted, preempted, or last got rows of a prefill chunk
    times_preempted: int = 0
    rests: int = 0  # the last steps in a row in which it was decoding and had no row
    tables: list[BlockTable] = field(default_factory=list)
    num_computed: int = 0
    num_scored: int = 0  # prompt tokens whose log-probabilities were told, or are not wanted
    prefilling: bool = True  # has not drawn a token since its KV was (re)started
    drafts: tuple[int, ...] = ()
    num_candidates: int = 0  # outcomes of each draw that are told with it
    offloaded_tokens: int = 0  # preempted: KV of this many tokens waits outside of the pool

    @property
    def all_blocks(self) -> list[int]:
        """Every block that it holds a reference to, in the order in which BlockPool.free wants them."""
        return held_blocks(self.tables)

    @property
    def num_held(self) -> int:
        """Blocks that it holds."""
        tables = self.tables
        return tables[0].num_held if len(tables) == 1 else sum(table.num_held for table in tables)

    @property
    def pinned(self) -> bool:
        """Its KV is promised to somebody else, so its blocks must not move."""
        return self.hold_len is not None

    @property
    def reusable_names(self) -> list[bytes]:
        """The hashes of those first blocks whose KV may come from the prefix cache."""
        return self.chain.hashes[: self.max_reusable_blocks]

    @property
    def next_block_name(self) -> bytes | None:
        """The hash of the block that it computes next; None where nobody else's would do."""
        index = self.num_computed // HASH_BLOCK_TOKENS
        names = self.chain.hashes
        return names[index] if index < min(len(names), self.max_reusable_blocks) else None

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def max_reusable_blocks(self) -> int:
        """Return how many of its blocks may come filled: those before its last token, and before the logits
        that
        are still to be computed for log-probabilities of its prompt."""
        blocks = max_cached_blocks(len(self.tokens))
        if self.num_scored < self.prompt_len:
            blocks = min(blocks, (self.num_scored - 1) // HASH_BLOCK_TOKENS)
        return blocks

    @property
    def draw_limit(self) -> int:
        """Return how many tokens may still be drawn before it ends or is held."""
        return min(self.end_len, self.hold_len or self.end_len) - len(self.tokens)

    def common_tokens(self, base: int, token_ids: Sequence[int]) -> int:
        """Return how many of its first tokens stay when those from `base` on become `token_ids`."""
        pairs = zip(islice(self.tokens, base, None), token_ids, strict=False)
        return base + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def may_end_at(self, position: int) -> bool:
        """False while min_tokens forbids an end token at `position`."""
        return position - self.prompt_len >= self.params.min_tokens


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // HASH_BLOCK_TOKENS)
