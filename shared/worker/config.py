"""Configuration that every service with an engine has, and how the engine is made from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from shared.config import ConfigError, ServiceConfig, field_of
from shared.engine import Engine, EngineConfig
from shared.engine.affinity import parse_cpus
from shared.engine.loading.weights import LoadProgress
from shared.errors import InvalidRequest
from shared.kv_hash import BlockHasher

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
    max_step_ms: float = field_of(
        0.0, help="longest step that prompts may make of one with decode rows; 0 = any", minimum=0.0
    )
    device: str = field_of("cpu", help="where the model is computed", choices=("cpu", "cuda"))
    backend: str = field_of(
        "auto", help="arithmetic of the CPU; auto = native if built", choices=("auto", "native", "torch")
    )
    quantization: str = field_of(
        "none", help="of the weights, at load; fp8 on cuda", choices=("none", "int8", "int4", "fp8")
    )
    quant_group: int = field_of(
        0, help="weights that share a scale; 0 = 128 for int8, 64 for int4", minimum=0, maximum=1 << 16
    )
    kv_dtype: str = field_of(
        "auto", help="of stored KV; auto = the one computed in", choices=("auto", "int8", "fp8")
    )
    deterministic: bool = field_of(False, help="logits do not depend on what else is in the batch")
    tensor_parallel: int = field_of(1, help="processes that share the model", minimum=1, maximum=64)
    offload_memory_mb: int = field_of(
        0, help="host memory for KV of preempted sequences, in MiB", minimum=0, maximum=1 << 24
    )
    offload_dir: str = field_of("", help="directory for such KV when host memory is full")
    offload_disk_mb: int = field_of(0, help="how much may go there, in MiB", minimum=0, maximum=1 << 24)
    cpus: str = field_of("", help="CPUs that the engine's threads stay on, like 0,2-3; empty = any")


def build_engine(
    config: EngineServiceConfig,
    model_dir: Path,
    model_id: str,
    pool_buffer: Callable[[int], memoryview] | None = None,
    *,
    transfers_kv: bool = False,
) -> Engine:
    """Loads the model; seconds long. `transfers_kv`: its KV comes from or goes to another worker.

    Raises ConfigError when the settings contradict each other, this machine or the model.
    """
    if transfers_kv and config.tensor_parallel > 1:
        raise ConfigError(
            f"tensor_parallel is {config.tensor_parallel}: KV that lies in several processes cannot pass "
            "from prefill to decode; set it to 1"
        )
    try:
        engine = Engine(
            _engine_config(config, model_dir),
            pool_buffer,
            _log_progress(model_id),
            hasher=BlockHasher.of(config.fleet_key),
        )
    except InvalidRequest as error:
        raise ConfigError(error.message) from error
    engine.grammars.prepare()
    return engine


def _engine_config(config: EngineServiceConfig, model_dir: Path) -> EngineConfig:
    return EngineConfig(
        model_dir=str(model_dir),
        dtype=config.dtype,
        kv_blocks=config.kv_blocks or 1,
        kv_memory_mb=0 if config.kv_blocks else config.kv_memory_mb,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        threads=config.threads,
        max_step_ms=config.max_step_ms,
        device=config.device,
        backend=config.backend,
        quantization=config.quantization,
        quant_group=config.quant_group,
        kv_dtype=config.kv_dtype,
        deterministic=config.deterministic,
        tensor_parallel=config.tensor_parallel,
        offload_memory_mb=config.offload_memory_mb,
        offload_dir=config.offload_dir,
        offload_disk_mb=config.offload_disk_mb,
        cpus=parse_cpus(config.cpus),
    )


def _log_progress(model_id: str) -> LoadProgress:
    """Says how far the load is, once in PROGRESS_EVERY_S, so that a large model does not look stuck."""
    told_s = time.monotonic()

    def on_loaded(layers: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= PROGRESS_EVERY_S:
            told_s = time.monotonic()
            log.info("loading_model", model=model_id, percent=100 * layers // total)

    return on_loaded
