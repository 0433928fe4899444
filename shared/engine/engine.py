"""The engine: sequences in, tokens out, one `step` at a time.

Owned by one worker thread; nothing here is safe to call from two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shared.cores import usable_cores
from shared.engine.adapters import AdapterInfo, AdapterRegistry, LoadedAdapter
from shared.engine.affinity import stay_on
from shared.engine.backends import build_model, build_pool, is_native
from shared.engine.batch import PackedAdapter
from shared.engine.core_board import CoreSeat
from shared.engine.cost_model import CostModel
from shared.engine.engine_config import MAX_DRAFT_TOKENS, EngineConfig
from shared.engine.engine_core import EngineCore
from shared.engine.input_processor import InputProcessor
from shared.engine.loading.config import load_model_config
from shared.engine.loading.weights import LoadProgress
from shared.engine.memory.allotment import Allotment
from shared.engine.memory.block_manager import BlockManager
from shared.engine.memory.block_pool import BlockPool
from shared.engine.memory.kv_pool import BLOCK_TOKENS
from shared.engine.memory.offload import OffloadStats, OffloadStore
from shared.engine.memory.offloader import Offloader
from shared.engine.model_runner import LayerCallback, ModelRunner
from shared.engine.results import (
    AdmitResult,
    Computed,
    PromptScores,
    Reservation,
    StepResult,
    TokenOutput,
)
from shared.engine.sampling.grammar import Grammars
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.order import NORMAL_PRIORITY, check_priority
from shared.engine.scheduling.scheduler import Scheduler, monotonic_us
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus, blocks_for
from shared.errors import InvalidRequest
from shared.kv_hash import BlockHasher
from shared.sampling import SamplingParams, TokenLogprob

__all__ = [
    "AdapterInfo",
    "AdmitResult",
    "Computed",
    "Engine",
    "EngineConfig",
    "LayerCallback",
    "PromptScores",
    "Reservation",
    "StepResult",
    "TokenLogprob",
    "TokenOutput",
]

LOOKUP_TOKENS = 8
"""Drafted of a sequence's own text at most, where nothing else is configured."""
CHECK_BLOCKS = 4096
"""What an idle engine checks at a time; what waits for it waits no longer than that."""


class Engine:
    """One model, one KV pool, the sequences in it.

    `pool_buffer(nbytes)` supplies the pool's memory when the caller wants to own it. `on_loaded` is told of
    every layer read, since a large model takes minutes. `max_model_len` is the longest sequence (prompt and
    output): the model's limit, the configured one, or the pool's size, whichever is least. `hasher` has the
    key with which blocks are named; without one it is that of development.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool_buffer: Callable[[int], memoryview] | None = None,
        on_loaded: LoadProgress | None = None,
        now_us: Callable[[], int] = monotonic_us,
        *,
        hasher: BlockHasher | None = None,
    ) -> None:
        config.validate()
        stay_on(config.cpus)
        config = replace(config, threads=config.threads or usable_cores())
        torch.set_num_threads(config.threads)
        self.model_config = load_model_config(config.model_dir, config.dtype)
        self.kv_pool = build_pool(config, self.model_config, pool_buffer)
        self.layout = self.kv_pool.layout
        self.config = config = replace(
            config, kv_blocks=self.kv_pool.num_blocks, lookup_tokens=_lookup_tokens(config)
        )
        self._input_processor = InputProcessor(
            config, self.model_config, hasher or BlockHasher(), self.layout.fingerprint()
        )
        self.max_model_len = self._input_processor.max_model_len
        groups = self.layout.groups
        self.blocks = BlockPool(config.kv_blocks, groups.counts, prefix_cache=config.prefix_cache)
        self._check_from = 0
        self._seat: CoreSeat | None = None
        self._offloads = OffloadStore.of(config)
        self._model = build_model(config, self.model_config, self.kv_pool, self.max_model_len, on_loaded)
        self._adapters = AdapterRegistry(self._model, self.model_config, config)
        self._model_runner = ModelRunner(self._model)
        self.cost = CostModel(config.max_batch_tokens)
        offloader = Offloader(self.kv_pool, self._offloads, self.cost) if self._offloads else None
        self._allotment = Allotment(self.blocks, groups.windows, config.max_batch_tokens)
        self._block_manager = BlockManager(self.blocks, self.kv_pool.copy_block, offloader, self._allotment)
        self._scheduler = Scheduler(
            self._block_manager,
            self.cost,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            max_step_us=1000 * config.max_step_ms,
            max_step_ratio=config.max_step_ratio,
            lookup_tokens=config.lookup_tokens,
            lookup_batch_tokens=config.lookup_batch_tokens,
            now_us=now_us,
        )
        self._sampler = Sampler(self.model_config.vocab_size)
        self._core = EngineCore(
            self._model_runner,
            self._scheduler,
            self._sampler,
            self.cost,
            num_layers=self.layout.num_layers,
        )
        self.logits([0])  # the first forward pass initialises kernels; no request should pay for it

    # --- sequences ---

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
        priority: int = NORMAL_PRIORITY,
        deadline_us: int | None = None,
    ) -> AdmitResult:
        """Take in a sequence whose KV is computed here; its cached prefix is not computed again, unless
        `params.prompt_logprobs` are wanted.

        `token_ids` is the prompt and, on recovery, what was generated before; `prompt_len` is the border.
        `block_hashes` name its first full blocks; None lets the engine name them, an empty list keeps a
        sequence without full blocks out of the prefix cache. With `stop_after` n the sequence is held
        (keeps its blocks, leaves the batch) once n tokens were drawn, until `release`; only then may
        `on_layer` be given. `adapter` is the name of a loaded one, "" for the model alone. Names that the
        engine makes are `tenant`'s and the adapter's own. `priority` 0 (high) to 2 (low), then `deadline_us`
        of time.monotonic decide who goes first. Raises Overloaded, InvalidRequest or DeadlineExpired (the
        prompt cannot be computed by then), changing nothing; nothing ends later.
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
        sequence.adapter = _packed(loaded)
        num_tokens = len(token_ids)
        if stop_after is not None:
            sequence.hold_len = num_tokens + stop_after
            num_tokens = min(sequence.hold_len, sequence.end_len) - 1  # the last token drawn needs no KV
        sequence.on_layer = on_layer
        self._scheduler.check_room(key, priority)
        self._scheduler.check_time(sequence, deadline_us)
        self._allotment.allocate_blocks(sequence, num_tokens, sequence.max_reusable_blocks)
        self._add_sequence(sequence, priority, deadline_us)
        return AdmitResult.of(sequence)

    def reserve(self, key: str, num_tokens: int, block_hashes: Sequence[bytes]) -> Reservation:
        """Blocks for the KV of `num_tokens` tokens that arrives from outside. Raises Overloaded when full."""
        sequence = self._input_processor.reservation(key, num_tokens, block_hashes)
        self._scheduler.check_room(key)
        num_cached = self._allotment.reserve_blocks(sequence, num_tokens)
        self._scheduler.sequences[key] = sequence
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
    ) -> None:
        """KV of `token_ids[:-1]` is now complete in the blocks reserved for `key`: it joins the batch.

        `adapter`, with which that KV was computed, `priority` and `deadline_us` as in `admit`.
        Raises InvalidRequest when nothing is reserved or the reservation is too small; it then stays.
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
        sequence.adapter = _packed(self._adapters.find(adapter))
        sequence.tables = reserved.tables
        sequence.num_computed = num_filled
        sequence.num_scored = prompt_len  # by whoever computed the prompt
        sequence.prefilling = False
        for table in sequence.tables:
            self.kv_pool.take_in(table.blocks[table.num_committed :])
        self._sampler.track(sequence)
        self._scheduler.add_sequence(sequence, priority, deadline_us)
        self._block_manager.commit(sequence)

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
        sequence.adapter = source.adapter
        self._scheduler.check_room(new_key, source.priority)
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
        sequence.prefilling = True
        self._sampler.forget(key)
        self._sampler.track(sequence)
        sequence.status = SequenceStatus.ACTIVE
        self._scheduler.add_sequence(sequence, sequence.priority, None)
        return True

    def release(self, key: str) -> bool:
        """Drop a sequence in any state and give its blocks back; False when `key` is not held."""
        self._sampler.forget(key)
        released = self._scheduler.remove_sequence(key)
        self._settle()
        return released

    def held(self) -> dict[str, int]:
        """Number of blocks by sequence key, for audits."""
        return {key: sequence.num_held for key, sequence in self._scheduler.sequences.items()}

    def tokens_since(self, key: str, position: int) -> list[int]:
        """What sequence `key` has from `position` on; nothing when it is not held."""
        sequence = self._scheduler.sequences.get(key)
        return sequence.tokens[position:] if sequence is not None else []

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
        drafts = tuple(draft_ids[:MAX_DRAFT_TOKENS])
        vocab_size = self.model_config.vocab_size
        if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in drafts):
            return False
        sequence.drafts = drafts
        return True

    def limit_lookups(self, longest: int) -> None:
        """From the next step on draft so many tokens at most from a sequence's own text; 0: none."""
        self._scheduler.lookups.longest = longest

    def _add_sequence(self, sequence: LiveSequence, priority: int, deadline_us: int | None) -> None:
        """The last part of coming in. A grammar may find no memory for its state: then nothing is kept."""
        try:
            self._sampler.track(sequence)
        except BaseException:
            self._block_manager.free_blocks(sequence)
            raise
        self._scheduler.add_sequence(sequence, priority, deadline_us)

    # --- adapters ---

    def load_adapter(self, name: str, directory: str) -> AdapterInfo:
        """From now on sequences may name this LoRA adapter, which PEFT has saved in `directory`.

        May be called from any thread, also while another is in `step`: reading and packing are the caller's
        work, and steps see an adapter only through the sequences that were admitted with it. To load a name
        again with the same weights changes nothing. Raises NotFound for missing files, InvalidRequest for a
        name in use with other weights, at the limits `max_adapters` and `max_adapter_rank`, and for what is
        not an adapter of this model.
        """
        return self._adapters.load(name, directory)

    def unload_adapter(self, name: str) -> None:
        """No new sequence may name it. Those that run with it keep it, and its memory, until they end.

        May be called from any thread. Raises NotFound when it is not loaded.
        """
        self._adapters.unload(name)

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """Those that are loaded, in that order. May be read from any thread."""
        return self._adapters.infos

    # --- work ---

    def sit_down(self, seat: CoreSeat) -> None:
        """From now on share the cores of this host with those that have seats too."""
        self._seat = seat
        seat.lead()

    @property
    def threads_now(self) -> int:
        """With how many a step would be computed now, of `config.threads`. May be read from any thread."""
        return self.config.threads if self._seat is None else self._seat.threads

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute anything now; can turn true on admit, attach and release."""
        return self._scheduler.has_work

    def step(self) -> StepResult:
        """One iteration over all live sequences: decode and verify first, then prefill chunks."""
        if self._seat is not None:
            self._seat.begin_step()
        result = self._core.run_step()
        if self._seat is not None:
            self._seat.end_step()
        self._settle()
        return result

    def pause(self) -> bool:
        """Leave the cores to prompts of other processes for as long as these are due before the next step.

        False: it was roused before that, to be called again once what else there is to do is done.
        """
        if self._seat is None or not self._seat.pauses:
            return True
        return self._seat.pause(self._scheduler.requests)

    def serve(self, requests: int) -> None:
        """So many are computed or wait for it: who shares the cores weighs them. From any thread."""
        if self._seat is not None:
            self._seat.serve(requests)

    def rouse(self) -> None:
        """There is something else to do than to pause. From any thread."""
        if self._seat is not None and self._seat.pauses:
            self._seat.rouse()

    def _settle(self) -> None:
        """Between two steps the cores stay ours: the next one follows at once, or after a `pause`."""
        if self._seat is not None and not self.has_work:
            self._seat.compute(now=False)

    def logits(self, token_ids: Sequence[int], adapter: str = "") -> Tensor:
        """float32 [len(token_ids), vocab]: the model's logits after each token. Borrows blocks."""
        self._input_processor.check_tokens(token_ids)
        packed = _packed(self._adapters.find(adapter))
        length = blocks_for(len(token_ids))
        blocks = self.blocks.allocate(length * self.layout.groups.count)
        tables = [blocks[first : first + length] for first in range(0, len(blocks), length)]
        try:
            return self._model_runner.compute_all(token_ids, tables, packed, self.config.max_batch_tokens)
        finally:
            self.blocks.free(blocks)

    def check(self) -> None:
        """Raise InternalError unless every block, reference and length is explained by a live sequence."""
        self._scheduler.check()

    def check_part(self) -> int:
        """`check`, of the next CHECK_BLOCKS blocks alone: a few milliseconds, however large the pool is.

        Returns how many blocks were looked at; 0, none, while sequences hold so much that counting their
        references would take longer.
        """
        if sum(self.held().values()) > CHECK_BLOCKS:
            return 0
        part = range(self._check_from, min(self._check_from + CHECK_BLOCKS, self.blocks.num_blocks))
        self._scheduler.check(part)
        self._check_from = part.stop % self.blocks.num_blocks
        return len(part)

    @property
    def grammars(self) -> Grammars:
        """Compiles what sequences may be held to; may be used from another thread than the engine's."""
        return self._input_processor.grammars

    def predict_prefill_us(self, num_tokens: int, cached_tokens: int = 0) -> float:
        """How long a prompt would take to compute, alone; 0 until enough steps were seen."""
        return self.cost.prefill_us(num_tokens, cached_tokens)

    @property
    def offload_stats(self) -> OffloadStats | None:
        """What waits outside of the pool, None where nothing may."""
        return self._offloads.stats if self._offloads else None

    def close(self) -> None:
        """Give back what lies outside of this process: files, and processes that share the model. Nothing may
        be called afterwards."""
        if self._offloads is not None:
            self._offloads.close()
        self._model.close()
        if self._seat is not None:
            self._seat.close()


def _lookup_tokens(config: EngineConfig) -> int:
    if config.lookup_tokens >= 0:
        return config.lookup_tokens
    return LOOKUP_TOKENS if config.deterministic or is_native(config) else 0


def _packed(loaded: LoadedAdapter | None) -> PackedAdapter | None:
    return None if loaded is None else loaded.packed


def _digest(loaded: LoadedAdapter | None) -> str:
    return "" if loaded is None else loaded.info.digest
