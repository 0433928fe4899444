"""Take sequences into the engine, and change what they are to compute while they are in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shared.engine.adapters import AdapterRegistry, LoadedAdapter
from shared.engine.batch import PackedAdapter
from shared.engine.engine_config import MAX_DRAFT_TOKENS
from shared.engine.input_processor import InputProcessor
from shared.engine.memory.allocation import Allocation
from shared.engine.memory.block_manager import BlockManager
from shared.engine.memory.kv_pool import BLOCK_TOKENS, KvPool
from shared.engine.model_runner import LayerCallback
from shared.engine.results import AdmitResult, Reservation
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.order import NORMAL_PRIORITY, check_priority
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from shared.errors import InvalidRequest
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.sampling.parameters import SamplingParams


class Intake:
    """The part of an `Engine` that takes sequences in; each call changes everything it has to, or nothing."""

    def __init__(
        self,
        input_processor: InputProcessor,
        adapters: AdapterRegistry,
        kv_pool: KvPool,
        allocation: Allocation,
        block_manager: BlockManager,
        scheduler: Scheduler,
        sampler: Sampler,
    ) -> None:
        self.kv_pool = kv_pool
        self._input_processor = input_processor
        self._adapters = adapters
        self._allocation = allocation
        self._block_manager = block_manager
        self._scheduler = scheduler
        self._sampler = sampler

    def admit(
        self,
        key: str,
        token_ids: Sequence[int],
        prompt_len: int,
        params: SamplingParams,
        block_hashes: Sequence[bytes] | None = None,
        *,
        stop_after: int | None = None,
        on_layer: LayerCallback | None = None,
        tenant: str = "",
        adapter: str = "",
        share: TenantShare = OPEN_SHARE,
        priority: int = NORMAL_PRIORITY,
        deadline_us: int | None = None,
        first_token_us: float = math.inf,
        inter_token_us: float = math.inf,
        stay_s: float = 0.0,
        answer_scope: str = "",
    ) -> AdmitResult:
        """Take in a sequence whose KV is computed here; its cached prefix is not computed again, unless
        `params.prompt_logprobs` are wanted.

        `token_ids` is the prompt and, on recovery, what was generated before; `prompt_len` is the border.
        `block_hashes` name its first full blocks; None lets the engine name them, an empty list keeps a
        sequence without full blocks out of the prefix cache. With `stop_after` n the sequence is held
        (keeps its blocks, leaves the batch) once n tokens were drawn, until `release`; only then may
        `on_layer` be given. `adapter` is the name of a loaded one, "" for the model alone. Names that the
        engine makes are `tenant`'s and the adapter's own. Who goes first is decided by what the tenant of
        `share` has had here, then by `priority` 0 (high) to 2 (low), then `deadline_us` of time.monotonic.
        Where its first token would come after `first_token_us` of that clock, steps are longer as far as
        streams beside it can wait. Prompts beside it leave steps so short that its tokens come within
        `inter_token_us` of each other.
        When it has gone its KV stays for `stay_s` in the prefix cache before that of others, below 0 after
        it. Its answer is kept to draft from for sequences of the same `answer_scope`, and theirs for it; "":
        of none. Raises Overloaded, InvalidRequest or DeadlineExpired (the prompt cannot be computed by then),
        changing nothing; nothing ends later.
        """
        if stop_after is not None and stop_after < 1:
            raise InvalidRequest(f"stop_after must be at least 1, not {stop_after}")
        if on_layer is not None and stop_after is None:
            raise InvalidRequest("on_layer needs stop_after: KV that is sent away must stay until released")
        check_priority(priority)
        self._input_processor.check_tokens(token_ids)  # before they are hashed
        loaded = self._adapters.find(adapter)
        chain = self._input_processor.chain(token_ids, block_hashes, tenant, _digest(loaded))
        sequence = self._input_processor.sequence(key, token_ids, prompt_len, params, chain)
        sequence.adapter = packed_of(loaded)
        num_tokens = len(token_ids)
        if stop_after is not None:
            sequence.hold_len = num_tokens + stop_after
            num_tokens = min(sequence.hold_len, sequence.end_len) - 1  # the last token drawn needs no KV
        sequence.on_layer = on_layer
        sequence.share, sequence.stay_s, sequence.answer_scope = share, stay_s, answer_scope
        sequence.due_us, sequence.inter_token_us = first_token_us, inter_token_us
        self._scheduler.check_room(key, priority, share)
        self._scheduler.check_time(sequence, deadline_us)
        self._allocation.allocate_blocks(sequence, num_tokens, sequence.max_reusable_blocks)
        self._add_sequence(sequence, priority, deadline_us)
        return AdmitResult.of(sequence)

    def reserve(
        self,
        key: str,
        num_tokens: int,
        block_hashes: Sequence[bytes],
        *,
        share: TenantShare = OPEN_SHARE,
        spare_tokens: int = 0,
        inter_token_us: float = math.inf,
        stay_s: float = 0.0,
    ) -> Reservation:
        """Blocks for the KV of `num_tokens` tokens that arrives from outside, for a sequence of `share`, and
        for as many as `spare_tokens` that may come with them; `inter_token_us` and `stay_s` as in `admit`.
        Raises Overloaded when full."""
        sequence = self._input_processor.reservation(key, num_tokens, block_hashes)
        spare_tokens = min(spare_tokens, self._input_processor.max_model_len - 1 - num_tokens)
        sequence.share, sequence.stay_s, sequence.inter_token_us = share, stay_s, inter_token_us
        self._scheduler.check_room(key, share=share)
        num_cached = self._allocation.reserve_blocks(sequence, num_tokens, spare_tokens)
        self._scheduler.hold_sequence(sequence)
        return Reservation.of(sequence, num_cached)

    def attach(
        self,
        key: str,
        token_ids: Sequence[int],
        prompt_len: int,
        params: SamplingParams,
        *,
        adapter: str = "",
        priority: int = NORMAL_PRIORITY,
        deadline_us: int | None = None,
        inter_token_us: float = math.inf,
        answer_scope: str = "",
    ) -> None:
        """KV of `token_ids[:-1]` is now complete in the blocks reserved for `key`: it joins the batch.

        `adapter`, with which that KV was computed, `priority`, `deadline_us`, `inter_token_us` and
        `answer_scope` as in `admit`; the share is that of the reservation. Raises InvalidRequest when nothing
        is reserved or the reservation is too small; it then stays.
        """
        check_priority(priority)
        reserved = self._scheduler.sequences.get(key)
        if reserved is None or reserved.status is not SequenceStatus.RESERVED:
            raise InvalidRequest(f"no KV is reserved for sequence {key!r}; reserve before attaching")
        sequence = self._input_processor.sequence(key, token_ids, prompt_len, params, reserved.chain)
        num_filled = len(token_ids) - 1
        in_window = self._block_manager.can_share(reserved, num_filled)
        num_blocks = len(reserved.tables[0].blocks)  # as many in every group
        if (
            not in_window
            or not reserved.num_computed <= num_filled <= num_blocks * BLOCK_TOKENS
            or not num_filled
        ):
            raise InvalidRequest(
                f"{num_filled} filled tokens do not fit the {num_blocks} blocks reserved for "
                f"{key!r}; reserve as many tokens as arrive"
            )
        sequence.adapter = packed_of(self._adapters.find(adapter))
        sequence.share, sequence.stay_s = reserved.share, reserved.stay_s
        sequence.inter_token_us, sequence.answer_scope = inter_token_us, answer_scope
        sequence.tables = reserved.tables
        sequence.num_computed = num_filled
        sequence.num_scored = prompt_len  # by whoever computed the prompt
        sequence.prefilling = False
        self._block_manager.trim(sequence)
        for table in sequence.tables:
            self.kv_pool.take_in(table.blocks[table.num_committed :])
        self._sampler.track(sequence)
        self._scheduler.add_sequence(sequence, priority, deadline_us)
        self._block_manager.commit(sequence)

    def take_prefix(self, key: str) -> None:
        """KV of all that was reserved for `key` is there, whole blocks with names: it goes to the prefix
        cache, and nobody holds it. Raises InvalidRequest where nothing is reserved."""
        reserved = self._scheduler.sequences.get(key)
        if reserved is None or reserved.status is not SequenceStatus.RESERVED:
            raise InvalidRequest(
                f"no KV is reserved for sequence {key!r}; reserve before its prefix is taken"
            )
        for table in reserved.tables:
            self.kv_pool.take_in(table.blocks[table.num_committed :])
        reserved.num_computed = len(reserved.tables[0].blocks) * BLOCK_TOKENS
        self._block_manager.commit(reserved)
        self._scheduler.remove_sequence(key)

    def fork(self, key: str, new_key: str, params: SamplingParams) -> None:
        """A new sequence with the prompt of `key`, drawn from with `params` as if it had been admitted.

        It shares the blocks of `key` by reference and computes only the prompt's last token; whoever writes
        into a shared block gets a copy of it. Raises InvalidRequest while the prompt of `key` is not
        computed, when its KV is promised to somebody (`stop_after`) or when its window has left the
        prompt's end, Overloaded as `admit` does."""
        source = self._scheduler.sequences.get(key)
        if source is None or source.status is not SequenceStatus.ACTIVE or source.pinned:
            raise InvalidRequest(f"sequence {key!r} is not running here; fork one that is")
        if source.num_computed < source.prompt_len - 1:
            raise InvalidRequest(f"the prompt of {key!r} is not computed yet; fork it after its first token")
        if not self._block_manager.can_share(source, source.prompt_len - 1):
            raise InvalidRequest(f"KV of the prompt of {key!r} is behind its window now; admit it once more")
        prompt = source.tokens[: source.prompt_len]
        names = source.chain.hashes[: len(prompt) // BLOCK_TOKENS]
        sequence = self._input_processor.sequence(
            new_key, prompt, len(prompt), params, HashChain(names, source.chain.seed, source.chain.hasher)
        )
        sequence.adapter, sequence.share = source.adapter, source.share
        sequence.inter_token_us = source.inter_token_us
        self._scheduler.check_room(new_key, source.priority, source.share)
        sequence.num_scored = len(prompt)  # the source's are the same
        self._block_manager.share_blocks(sequence, source)
        self._add_sequence(sequence, source.priority, source.deadline_us)

    def revise(self, key: str, base: int, token_ids: Sequence[int], *, stop_after: int) -> bool:
        """A sequence that is held after its last draw goes on: what follows its first `base` tokens becomes
        `token_ids`, and `stop_after` more are drawn. KV of tokens that stay as they were is kept.

        False, and nothing happens, when it is not held here, when its KV was promised to somebody
        (`on_layer`) or when its prompt would change. Raises as `admit` does: it is still held then.
        """
        if stop_after < 1:
            raise InvalidRequest(f"stop_after must be at least 1, not {stop_after}")
        sequence = self._scheduler.sequences.get(key)
        if sequence is None or sequence.status is not SequenceStatus.HELD or sequence.on_layer is not None:
            return False
        if not sequence.prompt_len <= base <= len(sequence.tokens):
            return False
        self._input_processor.check_revision(sequence, base, token_ids)
        common = sequence.common_tokens(base, token_ids)
        num_tokens = base + len(token_ids)
        hold_len = num_tokens + stop_after
        num_kept = min(common, sequence.num_computed, num_tokens - 1)
        self._block_manager.rewind(sequence, common, num_kept, min(hold_len, sequence.end_len) - 1)
        sequence.tokens[base:] = token_ids
        sequence.hold_len = hold_len
        sequence.prefilling, sequence.due_us = True, math.inf
        self._sampler.forget(key)
        self._sampler.track(sequence)
        sequence.status = SequenceStatus.ACTIVE
        self._scheduler.add_sequence(sequence, sequence.priority, None)
        return True

    def propose(self, key: str, base_position: int, draft_ids: Sequence[int]) -> bool:
        """Offer guesses of the next tokens, to be verified in the next step; later offers replace earlier.

        False, and nothing happens, when the sequence is not decoding here, when `base_position` is not its
        next position (a stale draft), or when an id is not in the vocabulary. At most MAX_DRAFT_TOKENS are
        used, fewer when budget, blocks or the sequence's own limits say so.
        """
        sequence = self._scheduler.sequences.get(key)
        if sequence is None or sequence.status is not SequenceStatus.ACTIVE or sequence.prefilling:
            return False
        if base_position != len(sequence.tokens) or sequence.on_layer is not None:
            return False
        if key in self._sampler.postponed:  # its next token needs no guess any more, only its mask
            return False
        drafts = tuple(draft_ids[:MAX_DRAFT_TOKENS])
        vocab_size = self._input_processor.vocab_size
        if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in drafts):
            return False
        sequence.drafts = drafts
        return True

    def _add_sequence(self, sequence: LiveSequence, priority: int, deadline_us: int | None) -> None:
        """The last part of coming in. A grammar may find no memory for its state: then nothing is kept."""
        try:
            self._sampler.track(sequence)
        except BaseException:
            self._block_manager.free_blocks(sequence)
            raise
        self._scheduler.add_sequence(sequence, priority, deadline_us)


def packed_of(loaded: LoadedAdapter | None) -> PackedAdapter | None:
    return None if loaded is None else loaded.packed


def _digest(loaded: LoadedAdapter | None) -> str:
    return "" if loaded is None else loaded.info.digest
