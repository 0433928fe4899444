"""The engine: sequences in, tokens out, one `step` at a time.

Owned by one worker thread; nothing here is safe to call from two threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from shared.engine.block_pool import BlockPool
from shared.engine.config import load_model_config
from shared.engine.drawing import Drawer, Drawn
from shared.engine.engine_config import EngineConfig
from shared.engine.intake import Intake
from shared.engine.kv_pool import BLOCK_TOKENS, KvLayout, KvPool
from shared.engine.model import TorchModel
from shared.engine.results import AdmitResult, Computed, Reservation, StepResult, TokenOutput
from shared.engine.runner import LayerCallback, RunItem, run
from shared.engine.sampler import TokenLogprob
from shared.engine.sampling_params import SamplingParams
from shared.engine.scheduler import Plan, Scheduler, Work, max_cached_blocks
from shared.engine.sequence import Phase, blocks_for
from shared.engine.weights import LoadProgress, load_weights
from shared.errors import InvalidRequest

__all__ = [
    "AdmitResult",
    "Computed",
    "Engine",
    "EngineConfig",
    "LayerCallback",
    "Reservation",
    "StepResult",
    "TokenLogprob",
    "TokenOutput",
]

MAX_DRAFT_TOKENS = 64
_DEVICE = torch.device("cpu")


class Engine:
    """One model, one KV pool, the sequences in it.

    `pool_buffer(nbytes)` supplies the pool's memory when the caller wants to own it. `on_loaded` is told of
    every layer read, since a large model takes minutes. `max_model_len` is the longest sequence (prompt and
    output): the model's limit, the configured one, or the pool's size, whichever is least.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool_buffer: Callable[[int], memoryview] | None = None,
        on_loaded: LoadProgress | None = None,
    ) -> None:
        config.validate()
        torch.set_num_threads(config.threads)
        self.config = config
        self.model_config = load_model_config(config.model_dir, config.dtype)
        self._intake = Intake(config, self.model_config)
        self.max_model_len = self._intake.max_model_len
        self.layout = KvLayout(
            self.model_config.num_layers,
            self.model_config.num_kv_heads,
            self.model_config.head_dim,
            self.model_config.dtype,
        )
        weights = load_weights(config.model_dir, self.model_config, _DEVICE, on_loaded)
        buffer = pool_buffer(config.kv_blocks * self.layout.block_bytes) if pool_buffer else None
        self.kv_pool = KvPool(self.layout, config.kv_blocks, buffer)
        self.blocks = BlockPool(config.kv_blocks, prefix_cache=config.prefix_cache)
        self._model = TorchModel(self.model_config, weights, self.kv_pool, self.max_model_len)
        self._scheduler = Scheduler(
            self.blocks, max_batch_tokens=config.max_batch_tokens, max_sequences=config.max_sequences
        )
        self._drawer = Drawer(self.model_config.vocab_size)
        self.logits([0])  # the first forward pass initialises kernels; no request should pay for it

    # --- sequences ---

    def admit(
        self,
        key: str,
        token_ids: Sequence[int],
        prompt_len: int,
        params: SamplingParams,
        block_hashes: Sequence[int] | None = None,
        *,
        stop_after: int | None = None,
        on_layer: LayerCallback | None = None,
    ) -> AdmitResult:
        """Take in a sequence whose KV is computed here; its cached prefix is not computed again.

        `token_ids` is the prompt and, on recovery, what was generated before; `prompt_len` is the border.
        `block_hashes` name its first full blocks; None lets the engine name them, an empty list keeps a
        sequence without full blocks out of the prefix cache. With `stop_after` n the sequence is held
        (keeps its blocks, leaves the batch) once n tokens were drawn, until `release`; only then may
        `on_layer` be given. Raises Overloaded or InvalidRequest, changing nothing.
        """
        if stop_after is not None and stop_after < 1:
            raise InvalidRequest(f"stop_after must be at least 1, not {stop_after}")
        if on_layer is not None and stop_after is None:
            raise InvalidRequest("on_layer needs stop_after: KV that is sent away must stay until released")
        chain = self._intake.chain(token_ids, block_hashes)
        sequence = self._intake.sequence(key, token_ids, prompt_len, params, chain)
        num_tokens = len(token_ids)
        if stop_after is not None:
            sequence.hold_len = num_tokens + stop_after
            num_tokens = min(sequence.hold_len, sequence.end_len) - 1  # the last token drawn needs no KV
        sequence.on_layer = on_layer
        self._scheduler.check_room(key)
        self._scheduler.place(sequence, num_tokens, max_cached_blocks(token_ids))
        self._drawer.track(sequence)
        return AdmitResult(sequence.num_computed, tuple(sequence.blocks))

    def reserve(self, key: str, num_tokens: int, block_hashes: Sequence[int]) -> Reservation:
        """Blocks for the KV of `num_tokens` tokens that arrives from outside. Raises Overloaded when full."""
        sequence = self._intake.reservation(key, num_tokens, block_hashes)
        self._scheduler.check_room(key)
        num_cached = self._scheduler.place(sequence, num_tokens, len(block_hashes))
        return Reservation(tuple(sequence.blocks), num_cached)

    def attach(self, key: str, token_ids: Sequence[int], prompt_len: int, params: SamplingParams) -> None:
        """KV of `token_ids[:-1]` is now complete in the blocks reserved for `key`: it joins the batch.

        Raises InvalidRequest when nothing is reserved or the reservation is too small; it then stays.
        """
        reserved = self._scheduler.sequences.get(key)
        if reserved is None or reserved.phase is not Phase.RESERVED:
            raise InvalidRequest(f"no KV is reserved for sequence {key!r}; reserve before attaching")
        sequence = self._intake.sequence(key, token_ids, prompt_len, params, reserved.chain)
        num_filled = len(token_ids) - 1
        if not reserved.num_computed <= num_filled <= len(reserved.blocks) * BLOCK_TOKENS or not num_filled:
            raise InvalidRequest(
                f"{num_filled} filled tokens do not fit the {len(reserved.blocks)} blocks reserved for "
                f"{key!r}; reserve as many tokens as arrive"
            )
        sequence.blocks = reserved.blocks
        sequence.num_committed_blocks = reserved.num_committed_blocks
        sequence.num_computed = num_filled
        sequence.prefilling = False
        self._scheduler.sequences[key] = sequence
        self._scheduler.commit(sequence)
        self._drawer.track(sequence)

    def release(self, key: str) -> bool:
        """Drop a sequence in any state and give its blocks back; False when `key` is not held."""
        self._drawer.forget(key)
        return self._scheduler.remove(key)

    def held(self) -> dict[str, int]:
        """Number of blocks by sequence key, for audits."""
        return {key: len(sequence.blocks) for key, sequence in self._scheduler.sequences.items()}

    def propose(self, key: str, base_position: int, draft_ids: Sequence[int]) -> bool:
        """Offer guesses of the next tokens, to be verified in the next step; later offers replace earlier.

        False, and nothing happens, when the sequence is not decoding here, when `base_position` is not its
        next position (a stale draft), or when an id is not in the vocabulary. At most MAX_DRAFT_TOKENS are
        used, fewer when budget, blocks or the sequence's own limits say so.
        """
        sequence = self._scheduler.sequences.get(key)
        if sequence is None or sequence.phase is not Phase.ACTIVE or sequence.prefilling:
            return False
        if base_position != len(sequence.tokens) or sequence.on_layer is not None:
            return False
        drafts = tuple(draft_ids[:MAX_DRAFT_TOKENS])
        vocab_size = self.model_config.vocab_size
        if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in drafts):
            return False
        sequence.drafts = drafts
        return True

    # --- work ---

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute anything now; can turn true on admit, attach and release."""
        return self._scheduler.has_work

    def step(self) -> StepResult:
        """One iteration over all live sequences: decode and verify first, then prefill chunks."""
        began_ns = time.perf_counter_ns()
        plan = self._scheduler.plan()
        planned_ns = time.perf_counter_ns()
        model_ns = 0
        outputs: tuple[TokenOutput, ...] = ()
        if plan.work:
            logits = run(self._model, [_run_item(work) for work in plan.work])
            model_ns = time.perf_counter_ns() - planned_ns
            outputs = tuple(self._finish(plan, logits))
        return StepResult(
            outputs=outputs,
            computed=tuple(
                Computed(work.sequence.key, work.start, work.end) for work in plan.work if work.is_prefill
            ),
            batch_tokens=sum(work.num_tokens + len(work.drafts) for work in plan.work),
            num_decode=sum(not work.is_prefill for work in plan.work),
            num_prefill_tokens=sum(work.num_tokens for work in plan.work if work.is_prefill),
            preempted_keys=plan.preempted_keys,
            step_us=(time.perf_counter_ns() - began_ns) // 1000,
            model_us=model_ns // 1000,
        )

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """float32 [len(token_ids), vocab]: the model's logits after each token. Borrows blocks."""
        self._intake.check_tokens(token_ids)
        blocks = self.blocks.allocate(blocks_for(len(token_ids)))
        size = self.config.max_batch_tokens
        try:
            return torch.cat(
                [
                    run(self._model, [RunItem(chunk, start, blocks, len(chunk))])
                    for start in range(0, len(token_ids), size)
                    if (chunk := token_ids[start : start + size])
                ]
            )
        finally:
            self.blocks.free(blocks)

    def check(self) -> None:
        """Raise InternalError unless every block, reference and length is explained by a live sequence."""
        self._scheduler.check()

    # --- one step's end ---

    def _finish(self, plan: Plan, logits: Tensor) -> Iterator[TokenOutput]:
        """Draw where a sequence's last token was computed, take the rest as progress."""
        drawing = [work for work in plan.work if work.num_draws]
        drawn = iter(self._drawer.draw(drawing, logits))
        for work in plan.work:
            if work.num_draws:
                yield self._accept(work, next(drawn))
            else:
                self._scheduler.advance(work, work.num_tokens)

    def _accept(self, work: Work, drawn: Drawn) -> TokenOutput:
        sequence = work.sequence
        position = len(sequence.tokens)
        sequence.tokens += drawn.token_ids
        sequence.prefilling = False
        self._scheduler.advance(work, work.num_tokens + len(drawn.token_ids) - 1)
        if sequence.pinned and (drawn.finish_reason is not None or sequence.draw_limit <= 0):
            sequence.phase = Phase.HELD
        elif drawn.finish_reason is not None:
            self.release(sequence.key)
        return TokenOutput(
            sequence.key,
            position,
            drawn.token_ids,
            drawn.logprobs,
            drawn.finish_reason,
            drawn.accepted_drafts,
            len(work.drafts),
        )


def _run_item(work: Work) -> RunItem:
    return RunItem(work.token_ids, work.start, work.sequence.blocks, work.num_draws, work.sequence.on_layer)
