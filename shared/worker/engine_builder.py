"""Make an engine from a service's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from shared.blocks.block_hash import BlockHasher
from shared.config.fields import ConfigError
from shared.engine import Engine, EngineConfig
from shared.engine.backends import is_native, why_not_native
from shared.engine.core_arbiter import CoreArbiter, WorkClass
from shared.engine.loading.config import load_model_config
from shared.engine.loading.weights import LoadProgress
from shared.engine.step_pacer import ITL_TARGET_S
from shared.errors import InvalidRequest
from shared.process.cores import usable_cores
from shared.seams.clock import SYSTEM_CLOCK
from shared.worker.config import EngineServiceConfig

log = structlog.get_logger()

PROGRESS_EVERY_S = 2.0
TORCH_COST = "about 10 times the CPU time for prompts, 70 times for answers, for a quantized model of 135M"
"""Measured with SmolLM2-135M's Q4_1 file (tests/bench/README.md); what is not quantized costs far less."""


def build_engine(
    config: EngineServiceConfig,
    model_dir: Path,
    model_name: str,
    pool_buffer: Callable[[int], memoryview] | None = None,
    *,
    work_class: WorkClass,
    prompt_weight: float = 0.0,
    itl_target_s: float = ITL_TARGET_S,
    transfers_kv: bool = False,
) -> Engine:
    """Loads the model; seconds long. `transfers_kv`: its KV comes from or goes to another worker.
    `work_class`: what it computes, for those that it shares the cores of this host with, and
    `prompt_weight` what a prompt of theirs counts beside a request of its own, as far as tokens of its own
    still come every `itl_target_s`.

    Raises ConfigError when the settings contradict each other, this machine or the model.
    """
    if transfers_kv and config.tensor_parallel > 1:
        raise ConfigError(
            f"tensor_parallel is {config.tensor_parallel}: KV that lies in several processes cannot pass "
            "from prefill to decode; set it to 1"
        )
    try:
        engine_config = config.engine_config(model_dir)
        model_config = load_model_config(model_dir, config.dtype)
        elastic = config.threads == 0 and is_native(engine_config, model_config)
        if not elastic:
            engine_config = replace(engine_config, threads=config.threads or _fixed_threads(engine_config))
        engine = Engine(
            engine_config,
            pool_buffer,
            _log_progress(model_name),
            hasher=BlockHasher.of(config.fleet_key),
        )
    except InvalidRequest as error:
        raise ConfigError(error.message) from error
    if elastic:
        _share_cores(engine, work_class, Path(config.cores_dir), prompt_weight, itl_target_s)
    engine.grammars.prepare()
    why = why_not_native(engine.config, engine.model_config)
    if why:
        log.warning("computes_with_torch", why=why, cost=TORCH_COST)
    return engine


def _fixed_threads(config: EngineConfig) -> int:
    """Return the number of threads where it cannot change in a step: prefill and decode have half each."""
    return max(1, usable_cores() // 2 // config.tensor_parallel)


def _share_cores(
    engine: Engine, work_class: WorkClass, folder: Path, prompt_weight: float, itl_target_s: float
) -> None:
    try:
        slot = CoreArbiter(work_class, folder, prompt_weight=prompt_weight, itl_target_s=itl_target_s)
        engine.share_cores(slot)
    except OSError as error:
        log.warning("cores_not_shared", why=str(error), threads=engine.config.threads)


def _log_progress(model_name: str) -> LoadProgress:
    """Log how far the load is, once in PROGRESS_EVERY_S, so that a large model does not look stuck."""
    told_s = SYSTEM_CLOCK.monotonic_s()

    def on_loaded(layers: int, total: int) -> None:
        nonlocal told_s
        if SYSTEM_CLOCK.monotonic_s() - told_s >= PROGRESS_EVERY_S:
            told_s = SYSTEM_CLOCK.monotonic_s()
            log.info("loading_model", model=model_name, percent=100 * layers // total)

    return on_loaded
