"""The configuration of an engine, and how long its sequences may become."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.layer_groups import KvGroups
from shared.engine.loading.config import ModelConfig
from shared.errors import InvalidRequest

_CHOICES = {
    "device": ("cpu", "cuda"),
    "backend": ("auto", "native", "torch"),
    "quantization": ("none", "dense", "int8", "int4", "fp8"),
    "kv_dtype": ("auto", "int8", "fp8"),
}
_AT_LEAST_ONE = ("kv_blocks", "max_batch_tokens", "max_sequences", "tensor_parallel", "max_adapter_rank")
_AT_LEAST_ZERO = (
    "threads",
    "quant_group",
    "kv_memory_mb",
    "kv_idle_s",
    "max_step_ms",
    "max_step_ratio",
    "itl_target_ms",
    "offload_memory_mb",
    "offload_disk_mb",
    "weight_cache_mb",
    "max_adapters",
    "ngram_batch_tokens",
    "ngram_scopes",
    "guest_sequences",
)

MAX_DRAFT_TOKENS = 64
"""The most drafts of a sequence in a step."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of one engine: what it loads and how much it may hold.

    dtype: auto (the checkpoint's), float32 or bfloat16. quantization: of the weights: none (as they are
    stored), dense (what a GGUF file stores in blocks is unpacked), int8, int4 or, on cuda, fp8; quant_group
    weights share a scale (0: 128 for int8, 64 for int4). kv_dtype: auto (the one computed in), int8 or fp8.
    kv_memory_mb: size of the KV pool in MiB; 0: kv_blocks blocks of 16 tokens in each group of layers.
    kv_idle_s: seconds after which a cached prefix that nobody uses may give its memory back; 0: never.
    max_batch_tokens: rows of one step, which is also the longest prefill chunk. max_step_ms: the longest step
    that may be planned while rows decode, prefill chunks are cut to it; 0: no limit. max_step_ratio: how many
    times as long as without a chunk it may be planned, while no first token would be late by that; 0: any.
    itl_target_ms: how long it may be for that where clients of these rows do not say; 0: no longer than
    usual.
    offload_memory_mb: host memory for the KV of preempted sequences; offload_dir and offload_disk_mb: where
    and how much goes to disk when that is full. With 0 and 0 they are computed again.
    weight_cache_mb: how much packed weights may take on disk, to be mapped by every process that loads them
    (native backend); 0: each packs its own in memory. weight_cache_dir: where; "": in the user's cache.
    threads: of one forward pass; 0: one per core. deterministic: a row's logits are bitwise equal whatever
    else is in the batch. tensor_parallel: processes that share the model. cpus: where the engine's threads
    stay, () for anywhere.
    max_model_len 0: the model's own limit.
    max_adapters: how many LoRA adapters may be loaded at once. max_adapter_rank: of a module of one.
    ngram_tokens: most tokens that a step drafts for a sequence from its own text, where nobody else has and
    as far as that pays; 0: none, -1: 8 where a row's logits do not depend on the rows beside it, else none.
    ngram_batch_tokens: for all sequences. ngram_scopes: of how many scopes of answers the latest ones are
    looked up like it, 208 KB each; 0: of none.
    draft_head: the directory of a draft head, which drafts where it promises more than text does; "": none.
    guest_sequences: how many may be held beyond max_sequences; no step decodes more than max_sequences, and
    the others rest meanwhile.
    """

    model_dir: str
    dtype: str = "auto"
    kv_blocks: int = 512
    max_batch_tokens: int = 512
    max_sequences: int = 64
    threads: int = 1
    prefix_cache: bool = True
    max_model_len: int = 0
    device: str = "cpu"
    backend: str = "auto"
    quantization: str = "none"
    quant_group: int = 0
    kv_dtype: str = "auto"
    deterministic: bool = False
    tensor_parallel: int = 1
    kv_memory_mb: int = 0
    kv_idle_s: float = 0.0
    max_step_ms: float = 0.0
    max_step_ratio: float = 0.0
    itl_target_ms: float = 0.0
    offload_memory_mb: int = 0
    offload_dir: str = ""
    offload_disk_mb: int = 0
    weight_cache_mb: int = 0
    weight_cache_dir: str = ""
    cpus: tuple[int, ...] = ()
    max_adapters: int = 8
    max_adapter_rank: int = 64
    ngram_tokens: int = 0
    ngram_batch_tokens: int = 32
    ngram_scopes: int = 0
    guest_sequences: int = 0
    draft_head: str = ""

    def validate(self) -> None:
        """Raise InvalidRequest for values out of range and for combinations that cannot be."""
        for problem in self.problems():
            raise InvalidRequest(problem)

    def problems(self) -> Iterator[str]:
        """A sentence for each value out of range, and for each combination that cannot be."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                yield f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, not {getattr(self, name)}"
        for name in _AT_LEAST_ZERO:
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name} must be 0 or more, not {getattr(self, name)}"
        if not -1 <= self.ngram_tokens <= MAX_DRAFT_TOKENS:
            yield f"ngram_tokens must be from -1 to {MAX_DRAFT_TOKENS}, not {self.ngram_tokens}"
        for wrong, sentence in self._contradictions():
            if wrong:
                yield sentence

    def _contradictions(self) -> list[tuple[bool, str]]:
        return [
            (
                self.max_batch_tokens < self.max_sequences,
                f"max_batch_tokens {self.max_batch_tokens} is below max_sequences {self.max_sequences}; "
                "every running sequence needs a row in every step",
            ),
            (
                self.guest_sequences > self.max_sequences,
                f"guest_sequences {self.guest_sequences} is above max_sequences {self.max_sequences}; "
                "at most half of the sequences can rest in a step",
            ),
            (
                self.quantization == "fp8" and self.device != "cuda",
                "quantization fp8 needs device cuda; use int8 on the CPU",
            ),
            (
                self.kv_dtype == "fp8" and self.device != "cuda",
                "kv_dtype fp8 needs device cuda; use int8 on the CPU",
            ),
            (
                self.backend == "native" and self.device != "cpu",
                "the native backend computes on the CPU; use backend auto or torch with device cuda",
            ),
            (
                self.backend == "native" and self.tensor_parallel > 1,
                "the native backend runs in one process; use backend torch with tensor_parallel",
            ),
            (
                self.quant_group > 0 and self.quantization in ("none", "dense"),
                f"quant_group {self.quant_group} means nothing without quantization; set it to int8 or int4",
            ),
            (
                0 < len(set(self.cpus)) < self.threads,
                f"{self.threads} threads need as many cpus, not {len(set(self.cpus))}; name more of them",
            ),
            (
                bool(self.offload_dir) != (self.offload_disk_mb > 0),
                "offload_dir and offload_disk_mb go together; give both or neither",
            ),
            (
                bool(self.draft_head) and (self.device != "cpu" or self.tensor_parallel > 1),
                "a draft head reads hidden states of a model that one process computes on the CPU; leave out "
                "draft_head with device cuda and with tensor_parallel",
            ),
            (
                self.tensor_parallel > 1 and self.offload_memory_mb + self.offload_disk_mb > 0,
                "with tensor_parallel KV lies in several processes and is not offloaded; leave out offload_*",
            ),
        ]


def max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The longest sequence, prompt and output: the model's limit, the configured one or the pool's size.

    A model with a dynamic rope may be asked for up to `factor` times its limit; the rope is then that of
    the longest sequence for all of them, since keys that are cached cannot turn again. A sequence that the
    whole pool cannot hold could never finish, so the pool is a limit too, of `kv_blocks` of one group of
    layers each; unless every layer has a window and the pool holds twice that and a step."""
    longest = int(model.max_position_embeddings * _stretch(model))
    if not 0 <= config.max_model_len <= longest:
        raise InvalidRequest(
            f"max_model_len must be from 0 to the model's {longest}, not {config.max_model_len}"
        )
    pool_tokens = HASH_BLOCK_TOKENS * _longest_blocks(config, model.layer_groups.counts)
    if config.max_model_len > pool_tokens:
        raise InvalidRequest(
            f"max_model_len {config.max_model_len} is above the {pool_tokens} tokens of {config.kv_blocks} "
            "KV blocks; raise kv_memory_mb or kv_blocks"
        )
    return min(config.max_model_len or model.max_position_embeddings, pool_tokens)


def _longest_blocks(config: EngineConfig, groups: KvGroups) -> int:
    """Return the most blocks of a full-attention group for a sequence that the whole pool holds."""
    window = groups.window
    turning = groups.windowed * (window.most_blocks(config.max_batch_tokens) + window.most_blocks(0))
    all_kept = config.kv_blocks // groups.count
    if groups.full_attention:
        return max(all_kept, (config.kv_blocks - turning) // groups.full_attention)
    return sys.maxsize // HASH_BLOCK_TOKENS if config.kv_blocks >= turning else all_kept


def _stretch(model: ModelConfig) -> float:
    """Return how far past its own limit a model may be asked to go: a dynamic rope turns slower for longer
    ones."""
    ropes = [layer.rope for layer in model.layers if layer.rope is not None]
    return min((rope.factor if rope.kind == "dynamic" else 1.0 for rope in ropes), default=1.0)
