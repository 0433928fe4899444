"""Choose what trained matrices are multiplied in: the type that this CPU multiplies fastest."""

from __future__ import annotations

import torch

BF16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16")
"""The names, of x86-64 and of arm64, of what multiplies bfloat16 in hardware."""


def product_type() -> torch.dtype:
    """Return bfloat16 where the CPU multiplies it in hardware, else float32: widening it costs more than it
    saves."""
    capabilities = torch.cpu.get_capabilities()
    return torch.bfloat16 if any(capabilities.get(name) for name in BF16_FEATURES) else torch.float32


def fast_products() -> torch.autocast:
    """Have matrices be multiplied in `product_type` inside of this block."""
    return torch.autocast("cpu", torch.bfloat16, enabled=product_type() is torch.bfloat16)
