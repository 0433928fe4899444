"""Multi-head latent attention, computed on the latents that the pool holds; see `LatentConfig`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.loading.layers import LayerWeights
from shared.engine.loading.model_config import LatentConfig
from shared.engine.torch_backend.rope import apply_rope


def latent_heads(
    projected: Tensor, weights: LayerWeights, config: LatentConfig, angles: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `qkv` made of T rows -> queries [T, heads, key_dim] and the one key head [T, 1, key_dim].

    `angles` [T, rope_dim] are those of `apply_rope`. A query meets a latent as it would meet the key made of
    that latent: q . (W c) = (q W) . c, so no key is ever made.
    """
    assert weights.latent is not None
    queries, kept = projected[:, : -config.key_dim], projected[:, -config.key_dim :]
    if weights.latent.query_up is not None:
        queries = weights.latent.query_up(_normed(queries, weights.query_norm, config))
    queries = queries.view(len(queries), -1, config.query_dim)
    plain, turning = torch.split(queries, [config.plain_dim, config.rope_dim], dim=2)
    plain = torch.bmm(plain.transpose(0, 1), weights.latent.key_up).transpose(0, 1)  # [T, heads, rank]
    latents, key = torch.split(kept[:, None], [config.rank, config.rope_dim], dim=2)
    return (
        torch.cat((plain, apply_rope(turning, angles)), dim=2),
        torch.cat((_normed(latents, weights.key_norm, config), apply_rope(key, angles)), dim=2),
    )


def latent_values(attended: Tensor, weights: LayerWeights, config: LatentConfig) -> Tensor:
    """Weighted sums of what tokens keep [T, heads * key_dim] -> of their values [T, heads * value_dim]."""
    assert weights.latent is not None
    latents = attended.view(len(attended), -1, config.key_dim)[..., : config.rank]
    return torch.bmm(latents.transpose(0, 1), weights.latent.value_up).transpose(0, 1).flatten(1)


def _normed(rows: Tensor, weight: Tensor | None, config: LatentConfig) -> Tensor:
    """Root mean square norm in fp32."""
    assert weight is not None
    return functional.rms_norm(rows.float(), weight.shape, weight, config.norm_eps).to(rows.dtype)
