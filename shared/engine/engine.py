"""The engine: sequences in, tokens out, one `step` at a time.

Owned by one worker thread; nothing here is safe to call from two threads at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shared.blocks.block_hash import BlockHasher
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.adapters import AdapterInfo, AdapterRegistry
from shared.engine.affinity import stay_on
from shared.engine.backends import BackendName, MakeModel, backend_name, build_model, build_pool, is_native
from shared.engine.batch import Taps
from shared.engine.branching import Branching
from shared.engine.core_arbiter import CoreArbiter
from shared.engine.cost_model import CostModel
from shared.engine.draft_head.build import build_draft_head
from shared.engine.engine_config import EngineConfig
from shared.engine.engine_core import EngineCore
from shared.engine.input_processor import InputProcessor
from shared.engine.intake import packed_of
from shared.engine.loading.config import ModelConfig, load_model_config
from shared.engine.loading.weights import LoadProgress
from shared.engine.memory.allocation import Allocation
from shared.engine.memory.block_manager import BlockManager
from shared.engine.memory.block_pool import BlockPool
from shared.engine.memory.idle_memory import IdleMemory
from shared.engine.memory.offload import OffloadStats, OffloadStore
from shared.engine.memory.offloader import Offloader
from shared.engine.model_runner import LayerCallback, ModelRunner
from shared.engine.native.model import NativeModel
from shared.engine.results import (
    NO_STEP,
    AdmitResult,
    Computed,
    KvLoan,
    PromptScores,
    Reservation,
    StepResult,
    TokenOutput,
)
from shared.engine.sampling.grammar import Grammars
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.head_drafts import HeadDrafts, monotonic_ns, thread_cpu_ns
from shared.engine.scheduling.head_model import HeadModel
from shared.engine.scheduling.scheduler import Scheduler, monotonic_us
from shared.engine.sequence import blocks_for
from shared.errors import InvalidRequest
from shared.process.cores import usable_cores
from shared.sampling.parameters import TokenLogprob

__all__ = [
    "AdapterInfo",
    "AdmitResult",
    "Computed",
    "Engine",
    "EngineConfig",
    "KvLoan",
    "LayerCallback",
    "PromptScores",
    "Reservation",
    "StepResult",
    "TokenLogprob",
    "TokenOutput",
]

NGRAM_TOKENS = 7
"""Drafted of a sequence's own text at most, where nothing else is configured: with its own row they are as
many as the kernels multiply at once. A ninth row takes as long as four of them."""
MASK_WAIT_S = 0.05
"""The longest step in which nothing is computed: all sequences wait for masks of their grammars."""
CHECK_BLOCKS = 4096
"""The blocks that an idle engine checks at a time; what waits for it waits no longer than that."""


class Engine(Branching):
    """One model, one KV pool, the sequences in it.

    `pool_buffer(nbytes)` supplies the pool's memory when the caller wants to own it. `on_loaded` is told of
    every layer read, since a large model takes minutes. `max_model_len` is the longest sequence (prompt and
    output): the model's limit, the configured one, or the pool's size, whichever is least. `hasher` has the
    key with which blocks are named; without one it is that of development. `make_model` makes what computes:
    a backend of this machine, or of a simulation. `clock` says how old idle blocks are.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool_buffer: Callable[[int], memoryview] | None = None,
        on_loaded: LoadProgress | None = None,
        now_us: Callable[[], int] = monotonic_us,
        *,
        hasher: BlockHasher | None = None,
        make_model: MakeModel = build_model,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        config.validate()
        stay_on(config.cpus)
        config = replace(config, threads=config.threads or usable_cores())
        torch.set_num_threads(config.threads)
        self.model_config = load_model_config(config.model_dir, config.dtype)
        kv_pool = build_pool(config, self.model_config, pool_buffer)
        self.layout = kv_pool.layout
        self.config = config = replace(
            config, kv_blocks=kv_pool.num_blocks, ngram_tokens=_ngram_tokens(config, self.model_config)
        )
        input_processor = InputProcessor(
            config, self.model_config, hasher or BlockHasher(), self.layout.fingerprint()
        )
        self.max_model_len = input_processor.max_model_len
        groups = self.layout.groups
        self.blocks = BlockPool(
            config.kv_blocks, groups.counts, prefix_cache=config.prefix_cache, clock=clock
        )
        pages = kv_pool.pages() if config.kv_idle_s else None
        self._idle_memory = IdleMemory(self.blocks, pages, config.kv_idle_s, clock) if pages else None
        self._check_from = 0
        self._slot: CoreArbiter | None = None
        self._offloads = OffloadStore.of(config)
        self._model = make_model(config, self.model_config, kv_pool, self.max_model_len, on_loaded)
        adapters = AdapterRegistry(self._model, self.model_config, config)
        head = build_draft_head(config, self.model_config, self._model)
        computes_here = isinstance(self._model, NativeModel)
        self._model_runner = ModelRunner(self._model, None if head is None else head[1])
        self.cost = CostModel(config.max_batch_tokens)
        offloader = Offloader(kv_pool, self._offloads, self.cost) if self._offloads else None
        allocation = Allocation(self.blocks, groups.windows, config.max_batch_tokens)
        block_manager = BlockManager(self.blocks, kv_pool.copy_block, offloader, allocation)
        scheduler = Scheduler(
            block_manager,
            self.cost,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            guest_sequences=config.guest_sequences,
            max_step_us=1000 * config.max_step_ms,
            max_step_ratio=config.max_step_ratio,
            itl_target_us=1000 * config.itl_target_ms,
            ngram_tokens=config.ngram_tokens,
            ngram_batch_tokens=config.ngram_batch_tokens,
            ngram_scopes=config.ngram_scopes if config.ngram_tokens else 0,
            heads=None if head is None else _head_drafts(head[0], config, computes_here=computes_here),
            now_us=now_us,
        )
        sampler = Sampler(self.model_config.vocab_size)
        super().__init__(input_processor, adapters, kv_pool, allocation, block_manager, scheduler, sampler)
        self._core = EngineCore(
            self._model_runner,
            self._scheduler,
            self._sampler,
            self.cost,
            num_layers=self.layout.num_layers,
            computes_here=computes_here,
        )
        self.backend: BackendName = backend_name(config, self.model_config)
        """The arithmetic that computes the model."""
        self.logits([0])  # the first forward pass initialises kernels; no request should pay for it
        if scheduler.heads is not None:
            scheduler.heads.measure()

    # --- sequences ---

    def release(self, key: str) -> bool:
        """Drop a sequence in any state and give its blocks back; False when `key` is not held."""
        self._sampler.forget(key)
        released = self._scheduler.remove_sequence(key)
        self._keep_or_yield_cores()
        return released

    def held(self) -> dict[str, int]:
        """Number of blocks by sequence key, for audits."""
        return {key: sequence.num_held for key, sequence in self._scheduler.sequences.items()}

    def tokens_since(self, key: str, position: int) -> list[int]:
        """Return what sequence `key` has from `position` on; nothing when it is not held."""
        sequence = self._scheduler.sequences.get(key)
        return sequence.tokens[position:] if sequence is not None else []

    def limit_ngrams(self, longest: int) -> None:
        """Draft at most so many tokens of a sequence's own text from the next step on; 0: none."""
        self._scheduler.lookups.longest = longest

    def limit_head(self, longest: int) -> None:
        """Have a draft head draft at most so many tokens of a sequence from the next step on; 0: none."""
        if self._scheduler.heads is not None:
            self._scheduler.heads.longest = longest

    def tap(self, layers: Sequence[int]) -> Taps | None:
        """Keep the hidden states after `layers`, which ascend, from the next step on; () ends that.

        After a step without drafts, grammars and scores of prompts, row i of what is returned is the state
        that its output i was drawn from. Raises InvalidRequest for an engine that drafts, that computes
        elsewhere than on the CPU in one process, or that has no such layers.
        """
        if self._scheduler.heads is not None or self.config.ngram_tokens:
            raise InvalidRequest("hidden states are kept where nothing is drafted; leave drafts out")
        if self.config.device != "cpu" or self.config.tensor_parallel > 1:
            raise InvalidRequest("this backend keeps no hidden states; use device cpu, in one process")
        num_layers = self.model_config.num_layers
        if list(layers) != sorted({*layers} & {*range(num_layers)}):
            raise InvalidRequest(
                f"layers {list(layers)} cannot be tapped; name some of 0 to {num_layers - 1}, ascending"
            )
        self._model_runner.taps = Taps(layers, self.model_config.hidden_size) if layers else None
        return self._model_runner.taps

    def close_thinking(self, key: str) -> None:
        """Let what a sequence thinks end with what it has by now: the closing comes next. One that is
        unknown, or does not think, is fine."""
        self._sampler.close_thinking(key)

    # --- adapters ---

    def load_adapter(self, name: str, directory: str) -> AdapterInfo:
        """Load the LoRA adapter that PEFT has saved in `directory`: sequences may name it from now on.

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
        """Return those that are loaded, in that order. May be read from any thread."""
        return self._adapters.infos

    # --- work ---

    def share_cores(self, slot: CoreArbiter) -> None:
        """Share the cores of this host from now on with those that have slots too."""
        self._slot = slot
        slot.lead()

    @property
    def threads_now(self) -> int:
        """The number of threads, of `config.threads`, that would compute a step now. From any thread."""
        return self.config.threads if self._slot is None else self._slot.threads

    @property
    def shares_cores_now(self) -> bool:
        """Return whether others compute on the cores of this engine now, or would if it did not."""
        threads = self.config.threads
        return self._slot is not None and (threads == 1 or self._slot.threads < threads)

    @property
    def has_work(self) -> bool:
        """Return whether `step` would compute anything now; can turn true on admit, attach and release."""
        return self._scheduler.has_work

    def step(self) -> StepResult:
        """One iteration over all live sequences: decode and verify first, then prefill chunks.

        Where all wait for masks of their grammars it waits as well, for a while or until it is roused.
        """
        if self.awaits_masks:
            if self._slot is not None:
                self._slot.compute(now=False)
            self._sampler.await_mask(MASK_WAIT_S)
            if self.awaits_masks:
                return NO_STEP
        if self._slot is not None:
            self._slot.begin_step()
        result = self._core.run_step()
        if self._slot is not None:
            self._slot.end_step()
        self._keep_or_yield_cores()
        return result

    @property
    def waiting_for_masks(self) -> frozenset[str]:
        """Return the keys of the sequences that wait for masks of their grammars."""
        return self._sampler.awaited

    @property
    def awaits_masks(self) -> bool:
        """Return whether all that there is to do waits for masks of grammars."""
        awaited = self.waiting_for_masks
        return bool(awaited) and not self._scheduler.has_work_beside(awaited)

    def pause(self) -> bool:
        """Leave the cores to prompts of other processes for as long as these are due before the next step.

        False: it was roused before that, to be called again once what else there is to do is done.
        """
        if self._slot is None or not self._slot.pauses:
            return True
        return self._slot.pause(self._scheduler.requests)

    def serve(self, requests: int) -> None:
        """Say how many are computed or wait: those that share the cores weigh them. From any thread."""
        if self._slot is not None:
            self._slot.serve(requests)

    def rouse(self) -> None:
        """There is something else to do than to pause, or to wait for masks. From any thread."""
        self._sampler.rouse()
        if self._slot is not None and self._slot.pauses:
            self._slot.rouse()

    def _keep_or_yield_cores(self) -> None:
        """Keep the cores between two steps: the next one follows at once, or after a `pause`."""
        if self._slot is not None and not self.has_work:
            self._slot.compute(now=False)

    def logits(self, token_ids: Sequence[int], adapter: str = "") -> Tensor:
        """float32 [len(token_ids), vocab]: the model's logits after each token. Borrows blocks."""
        self._input_processor.check_tokens(token_ids)
        packed = packed_of(self._adapters.find(adapter))
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
    def gives_back_idle(self) -> bool:
        """Return whether idle memory of the KV pool may be given back; may be read from any thread."""
        return self._idle_memory is not None and not self._idle_memory.refused

    def give_back_idle(self) -> float:
        """Give memory of the KV pool back to the system that nobody has used for a while, a few milliseconds
        of work at a time; not while there is work.

        Returns after how many seconds there may be more to give back: 0 at once, infinity as long as nothing
        is used and given back before.
        """
        return math.inf if self._idle_memory is None else self._idle_memory.give_back()

    @property
    def grammars(self) -> Grammars:
        """Compiles what sequences may be held to; may be used from another thread than the engine's."""
        return self._input_processor.grammars

    @property
    def offload_stats(self) -> OffloadStats | None:
        """Return what waits outside of the pool, None where nothing may."""
        return self._offloads.stats if self._offloads else None

    def close(self) -> None:
        """Give back what lies outside of this process: files, and processes that share the model. Nothing may
        be called afterwards."""
        if self._offloads is not None:
            self._offloads.close()
        self._sampler.close()
        self._model.close()
        if self._slot is not None:
            self._slot.close()


def _head_drafts(head: HeadModel, config: EngineConfig, *, computes_here: bool) -> HeadDrafts:
    most_sequences = config.max_sequences + config.guest_sequences
    now_ns = thread_cpu_ns if computes_here else monotonic_ns
    return HeadDrafts(head, most_sequences, config.ngram_batch_tokens, now_ns=now_ns)


def _ngram_tokens(config: EngineConfig, model: ModelConfig) -> int:
    if config.ngram_tokens >= 0:
        return config.ngram_tokens
    return NGRAM_TOKENS if config.deterministic or is_native(config, model) else 0
