"""Configuration that every service with an engine has, and how the engine is made from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from shared.config import ConfigError, ServiceConfig, field_of
from shared.engine import Engine, EngineConfig, KvLayout, load_model_config
from shared.engine.weights import LoadProgress
from shared.kv_hash import hash_seed

log = structlog.get_logger()

PROGRESS_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServiceConfig(ServiceConfig):
    """What the engine computes in and how much it may hold."""

    dtype: str = field_of(
        "auto", help="arithmetic; auto = the checkpoint's", choices=("auto", "float32", "bfloat16")
    )
    threads: int = field_of(1, help="threads of one forward pass", minimum=1, maximum=1024)
    kv_memory_mb: int = field_of(256, help="memory of the KV pool, in MiB", minimum=1, maximum=1 << 24)
    kv_blocks: int = field_of(
        0, help="size of the KV pool in blocks of 16 tokens; 0 = what kv_memory_mb holds", minimum=0
    )
    max_batch_tokens: int = field_of(
        512, help="rows of one step, which is also the prefill chunk", minimum=1, maximum=1 << 20
    )
    max_sequences: int = field_of(64, help="sequences held at once", minimum=1, maximum=1 << 16)


def build_engine(
    config: EngineServiceConfig,
    model_dir: Path,
    model_id: str,
    pool_buffer: Callable[[int], memoryview] | None = None,
) -> Engine:
    """Loads the model; seconds long. Raises ConfigError when the settings contradict each other."""
    if config.max_batch_tokens < config.max_sequences:
        raise ConfigError(
            f"max_batch_tokens is {config.max_batch_tokens} and max_sequences {config.max_sequences}: "
            "every sequence needs a row in every step, so raise the first or lower the second"
        )
    engine_config = EngineConfig(
        model_dir=str(model_dir),
        dtype=config.dtype,
        kv_blocks=config.kv_blocks or _blocks_in(config, model_dir),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        threads=config.threads,
        hash_seed=hash_seed(model_id),
    )
    return Engine(engine_config, pool_buffer, _log_progress(model_id))


def _log_progress(model_id: str) -> LoadProgress:
    """Says how far the load is, once in PROGRESS_EVERY_S, so that a large model does not look stuck."""
    told_s = time.monotonic()

    def on_loaded(layers: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= PROGRESS_EVERY_S:
            told_s = time.monotonic()
            log.info("loading_model", model=model_id, percent=100 * layers // total)

    return on_loaded


def _blocks_in(config: EngineServiceConfig, model_dir: Path) -> int:
    model = load_model_config(model_dir, config.dtype)
    layout = KvLayout(model.num_layers, model.num_kv_heads, model.head_dim, model.dtype)
    blocks = (config.kv_memory_mb << 20) // layout.block_bytes
    if blocks == 0:
        raise ConfigError(
            f"kv_memory_mb is {config.kv_memory_mb} and one KV block of this model takes "
            f"{layout.block_bytes} bytes; allow more"
        )
    return blocks
