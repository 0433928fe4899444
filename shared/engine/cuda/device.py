"""Check what the GPU backend asks of the machine, before anything is loaded. Needs no triton, no GPU."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.model_parts import refuse_parts
from shared.errors import InvalidRequest

_LACKING = (
    "attention sinks",
    "norms that take the mean away",
    "attention and MLP beside each other",
    "a scaled residual",
    "scaled logits",
    "queries that grow with the context",
    "multi-head latent attention",
)
_FP8_CAPABILITY = (8, 9)  # Ada; Hopper is (9, 0)


def check_device(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise InvalidRequest, with what to do, unless this machine can run `config` on `device` cuda."""
    refuse_parts(model_config, _LACKING, "device cuda", "use device cpu")
    if not torch.cuda.is_available():
        reason = "torch finds no GPU" if torch.version.cuda else "this torch is built for the CPU"
        raise InvalidRequest(
            f"device cuda: {reason}; install torch for CUDA and its driver, or use device cpu"
        )
    if find_spec("triton") is None:
        raise InvalidRequest("device cuda needs triton; install the extra `gpu`, or use device cpu")
    uses_fp8 = config.quantization == "fp8" or config.kv_dtype == "fp8"
    capability = torch.cuda.get_device_capability()
    if uses_fp8 and capability < _FP8_CAPABILITY:
        raise InvalidRequest(
            f"fp8 needs a GPU of compute capability 8.9 or more, not {capability[0]}.{capability[1]}; "
            "use quantization none and kv_dtype auto"
        )
    check_fp8(config, model_config)


def check_fp8(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise InvalidRequest for what fp8 weights cannot be combined with."""
    if config.quantization != "fp8":
        return
    if model_config.dtype != "bfloat16":
        raise InvalidRequest("quantization fp8 computes in bfloat16; set dtype bfloat16")
    if model_config.quantization is not None:
        raise InvalidRequest("the checkpoint is quantized already; use quantization none")
    if config.deterministic:
        raise InvalidRequest("fp8 products depend on the batch; use quantization none with deterministic")
