"""The in-process engine. See README.md beside this file.

Names are loaded on first use: an edge that only needs `SamplingParams` must not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.engine.adapters import AdapterInfo
    from shared.engine.engine import Engine, EngineConfig
    from shared.engine.llm import LLM, Completion
    from shared.engine.loading.config import ModelConfig, load_model_config
    from shared.engine.memory.block_pool import BlockEvent, BlockPool
    from shared.engine.memory.kv_pool import BLOCK_TOKENS, KvLayout, KvPool
    from shared.engine.model_runner import LayerCallback
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
    from shared.sampling.parameters import Grammar, SamplingParams, TokenLogprob

__all__ = [
    "BLOCK_TOKENS",
    "LLM",
    "NO_STEP",
    "AdapterInfo",
    "AdmitResult",
    "BlockEvent",
    "BlockPool",
    "Completion",
    "Computed",
    "Engine",
    "EngineConfig",
    "Grammar",
    "KvLayout",
    "KvLoan",
    "KvPool",
    "LayerCallback",
    "ModelConfig",
    "PromptScores",
    "Reservation",
    "SamplingParams",
    "StepResult",
    "TokenLogprob",
    "TokenOutput",
    "load_model_config",
]

_MODULES = {
    "shared.engine.adapters": ("AdapterInfo",),
    "shared.engine.memory.block_pool": ("BlockEvent", "BlockPool"),
    "shared.engine.loading.config": ("ModelConfig", "load_model_config"),
    "shared.engine.engine": ("Engine", "EngineConfig"),
    "shared.engine.memory.kv_pool": ("BLOCK_TOKENS", "KvLayout", "KvPool"),
    "shared.engine.llm": ("LLM", "Completion"),
    "shared.engine.results": (
        "NO_STEP",
        "AdmitResult",
        "Computed",
        "KvLoan",
        "PromptScores",
        "Reservation",
        "StepResult",
        "TokenOutput",
    ),
    "shared.engine.model_runner": ("LayerCallback",),
    "shared.sampling.parameters": ("Grammar", "SamplingParams", "TokenLogprob"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value  # the next use finds it directly
    return value
