from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine import EngineConfig
from shared.errors import InvalidRequest
from tests.support.engine import make_engine, save_random_model


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"device": "tpu"}, "device must be one of cpu, cuda"),
        ({"backend": "onnx"}, "backend must be one of"),
        ({"quantization": "int2"}, "quantization must be one of"),
        ({"kv_dtype": "int4"}, "kv_dtype must be one of"),
        ({"kv_dtype": "fp8"}, "needs device cuda"),
        ({"backend": "native", "device": "cuda"}, "computes on the CPU"),
        ({"backend": "native", "tensor_parallel": 2}, "one process"),
        ({"tensor_parallel": 0}, "at least 1"),
        ({"quant_group": 64}, "means nothing without quantization"),
        ({"quant_group": -1, "quantization": "int8"}, "0 or more"),
        ({"kv_memory_mb": -1}, "0 or more"),
        ({"max_step_ms": -0.5}, "0 or more"),
        ({"max_step_ratio": -0.5}, "0 or more"),
        ({"itl_target_ms": -0.5}, "0 or more"),
        ({"max_step_ms": math.inf}, "0 or more"),
        ({"max_step_ms": math.nan}, "0 or more"),
        ({"offload_memory_mb": -1}, "0 or more"),
        ({"weight_cache_mb": -1}, "0 or more"),
        ({"max_adapters": -1}, "0 or more"),
        ({"max_adapter_rank": 0}, "at least 1"),
        ({"offload_dir": "/tmp"}, "go together"),
        ({"offload_disk_mb": 5}, "go together"),
        ({"offload_memory_mb": 5, "tensor_parallel": 2}, "not offloaded"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        EngineConfig("", **fields).validate()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"device": "cuda", "kv_dtype": "fp8", "tensor_parallel": 2},
        {"backend": "native", "quantization": "int4", "quant_group": 32, "kv_dtype": "int8"},
        {"offload_memory_mb": 64, "offload_dir": "/tmp", "offload_disk_mb": 64},
        {"max_adapters": 0, "max_adapter_rank": 1},
        {"offload_dir": "/tmp", "offload_disk_mb": 64, "max_step_ms": 12.5, "kv_memory_mb": 100},
    ],
)
def test_settings_that_go_together_are_accepted(fields: dict[str, Any]) -> None:
    EngineConfig("", **fields).validate()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    with pytest.raises(InvalidRequest, match="no GPU"):
        make_engine(folder, device="cuda")
