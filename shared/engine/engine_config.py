"""What an engine is told when it starts, and how long its sequences may become."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine.config import ModelConfig
from shared.errors import InvalidRequest
from shared.kv_hash import HASH_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine loads and how much it may hold.

    dtype: auto (the checkpoint's), float32 or bfloat16. kv_blocks: blocks of 16 tokens in the pool.
    max_batch_tokens: rows of one step, which is also the prefill chunk. max_model_len 0: the model's own
    limit. hash_seed starts the block hashes of sequences that bring none.
    """

    model_dir: str
    dtype: str = "auto"
    kv_blocks: int = 512
    max_batch_tokens: int = 512
    max_sequences: int = 64
    threads: int = 1
    prefix_cache: bool = True
    max_model_len: int = 0
    hash_seed: int = 0

    def validate(self) -> None:
        for name in ("kv_blocks", "max_batch_tokens", "max_sequences", "threads"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_batch_tokens < self.max_sequences:
            raise InvalidRequest(
                f"max_batch_tokens {self.max_batch_tokens} is below max_sequences {self.max_sequences}; "
                "every running sequence needs a row in every step"
            )


def max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The longest sequence, prompt and output: the model's limit, the configured one or the pool's size.

    A sequence that the whole pool cannot hold could never finish, so the pool is a limit too.
    """
    if not 0 <= config.max_model_len <= model.max_position_embeddings:
        raise InvalidRequest(
            f"max_model_len must be from 0 to the model's {model.max_position_embeddings}, "
            f"not {config.max_model_len}"
        )
    pool_tokens = config.kv_blocks * HASH_BLOCK_TOKENS
    if config.max_model_len > pool_tokens:
        raise InvalidRequest(
            f"max_model_len {config.max_model_len} is above the {pool_tokens} tokens of {config.kv_blocks} "
            "KV blocks; raise kv_blocks"
        )
    return min(config.max_model_len or model.max_position_embeddings, pool_tokens)
