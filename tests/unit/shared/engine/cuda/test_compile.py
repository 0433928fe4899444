"""Every kernel compiles to machine code for Hopper, which needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

# Another process compiles the kernels: this one has triton in interpreter mode, which compiles nothing.
_COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from shared.engine.cuda import attention_kernel, linear_kernel, norm_kernel, project_kernel

POINTERS = {
    "positions": "*i32", "tiles": "*i32", "tables": "*i32", "slots": "*i32",
    "partial": "*fp32", "stats": "*fp32", "weight": "*fp32", "query_norm": "*fp32", "key_norm": "*fp32",
    **dict.fromkeys(("queries", "qkv", "rope", "out", "hidden", "delta", "total", "rows", "bias"), "*bf16"),
}
FLOATS = ("score_scale", "norm_eps", "largest_code", "eps")

def compile_kernel(kernel, constants, **pointers):
    kinds = {**POINTERS, **pointers}
    kinds |= dict.fromkeys(FLOATS, "fp32") | dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    signature = {name: kinds.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]

heads = {"NUM_HEADS": 32, "HEAD_DIM": 128, "PADDED_DIM": 128}
for stored in sys.argv[1:]:
    scaled = stored != "*bf16"
    pool = dict.fromkeys(("keys", "values"), stored)
    pool |= dict.fromkeys(("key_scales", "value_scales"), "*fp16" if scaled else "*bf16")
    compile_kernel(attention_kernel._split_kernel, {**heads, "HEADS_PER_KV": 4, "HEIGHT": 16, "WINDOW": 1024,
        "SOFTCAP": 50.0, "SCALED": scaled, "BLOCK": 16, "SPLIT": 256, "STEP": 64, "WIDEN": False}, **pool)
    compile_kernel(project_kernel._project_kernel, {**heads, "NUM_KV_HEADS": 8, "HEAD_TILE": 16, "BLOCK": 16,
        "ROTATED": 128, "NORMED": True, "SCALED": scaled, "WHOLE_CODES": stored == "*i8"}, **pool)
compile_kernel(attention_kernel._combine_kernel,
    {**heads, "HEADS_PER_KV": 4, "PADDED_HEADS": 4, "WINDOW": 1024, "SPLIT": 256})
compile_kernel(norm_kernel._norm_kernel, {"WIDTH": 4096, "PADDED": 4096, "ADDS": True})
compile_kernel(linear_kernel._linear_kernel, {"BIASED": True, "TILE_ROWS": 32, "TILE_OUTPUTS": 64, "STEP": 64,
    "WIDEN": False}, weight="*bf16")
print("compiled")
"""


@pytest.mark.thorough
def test_all_kernels_compile_for_hopper(tmp_path: Path) -> None:
    """Those that touch the pool for each kind of KV: one process, since starting it is half of the work."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", _COMPILE, "*bf16", "*fp8e4nv"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout == "compiled\n", done.stderr[-2000:]
