"""Compile and run all Triton kernels."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import triton

# Stated, because Triton's default changes from version to version, and the bits of the results with it.
LAUNCH = {"enable_fp_fusion": True}
# The interpreter keeps bfloat16 as bare bits and cannot multiply matrices of it; widened, the products are
# the same, because tensor cores accumulate in float32 too.
INTERPRETED = bool(triton.knobs.runtime.interpret)
