"""A draft before it has learned: parts of its target.

As wide as the target, chosen layers of a Llama-like target are taken as they are. A narrower draft gets what
of them lies in the directions in which the embeddings differ most (as SliceGPT cuts a model,
arXiv:2401.15024): E P, W P and P^T W, with the norms' weights multiplied into the matrices, and of heads and
MLP channels the largest. Layers of targets that are built otherwise start as the identity.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from shared.engine.loading.config import ModelConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights
from shared.engine.loading.linear import DenseLinear, LinearMap, as_stored, dequantize
from shared.engine.loading.weights import WeightReader
from shared.training.draft_shape import DraftPlan
from shared.training.llama import Llama, LlamaShape


@torch.no_grad()
def start_draft(model: str | Path, target: ModelConfig, plan: DraftPlan) -> Llama:
    """The draft of `plan` for the target in `model`, whose config is `target` in float32. Reads layer by
    layer."""
    reader = WeightReader(model, target, torch.device("cpu"))
    embedding = reader.embedding()  # [V, D]
    basis = (
        None if plan.shape.hidden_size == target.hidden_size else _basis(embedding, plan.shape.hidden_size)
    )
    tensors = {
        "model.embed_tokens.weight": embedding if basis is None else embedding @ basis,
        "model.norm.weight": _narrow_norm(reader.final_norm(), basis),
    }
    if is_llama_like(target):
        for index, layer in enumerate(plan.layers):
            parts = _layer(reader.layer(layer), target, plan.shape, basis)
            tensors |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in parts.items()}
    draft = Llama(plan.shape)
    draft.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, strict=False)
    return draft


def is_llama_like(target: ModelConfig) -> bool:
    """Return whether its layers can be layers of a Llama; biases and norms of queries and keys are left
    out."""
    dense = target.latent is None and all(layer.moe is None for layer in target.layers)
    return dense and target.norms == "pre" and target.activation == "silu"


def _basis(embedding: Tensor, width: int) -> Tensor:
    """[D, width]: orthonormal directions, those first in which the embeddings are longest."""
    _, vectors = torch.linalg.eigh(embedding.double().T @ embedding.double())
    basis: Tensor = vectors.flip(1)[:, :width].float().contiguous()
    return basis


def _narrow_norm(weight: Tensor, basis: Tensor | None) -> Tensor:
    """A norm of a narrower vector divides by a root mean square over fewer dimensions."""
    if basis is None:
        return weight
    return _widening(basis) * (basis.square().T @ weight)


def _widening(basis: Tensor) -> float:
    return math.sqrt(basis.shape[0] / basis.shape[1])


def _layer(
    weights: LayerWeights, target: ModelConfig, shape: LlamaShape, basis: Tensor | None
) -> dict[str, Tensor]:
    size, mlp = target.head_dim, weights.mlp
    assert isinstance(mlp, DenseMlp)
    assert weights.attention_in_norm is not None
    assert weights.mlp_in_norm is not None
    sizes = [target.num_heads * size, target.num_kv_heads * size, target.num_kv_heads * size]
    queries, keys, values = torch.split(_dense(weights.qkv), sizes)
    output = _dense(weights.output)  # [D, H * E]
    heads, kv_heads = _chosen_heads(output, target, shape)
    gate, up = _dense(mlp.gate_up).chunk(2)  # [I, D] each
    down = _dense(mlp.down)  # [D, I]
    lengths = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
    channels = lengths.topk(min(shape.intermediate_size, len(lengths))).indices.sort().values
    into = {
        "self_attn.q_proj": _rows(queries, heads, size),
        "self_attn.k_proj": _rows(keys, kv_heads, size),
        "self_attn.v_proj": _rows(values, kv_heads, size),
        "mlp.gate_proj": gate[channels],
        "mlp.up_proj": up[channels],
    }
    out_of = {"self_attn.o_proj": _rows(output.T, heads, size).T, "mlp.down_proj": down[:, channels]}
    norms = {"input_layernorm": weights.attention_in_norm, "post_attention_layernorm": weights.mlp_in_norm}
    if basis is None:
        return _padded({**into, **out_of, **norms}, shape)
    folded = {
        name: (matrix * norms["input_layernorm" if "attn" in name else "post_attention_layernorm"]) @ basis
        for name, matrix in into.items()
    }
    even = torch.full((basis.shape[1],), _widening(basis))
    narrowed = {name: basis.T @ matrix for name, matrix in out_of.items()}
    return _padded({**folded, **narrowed, **dict.fromkeys(norms, even)}, shape)


def _chosen_heads(output: Tensor, target: ModelConfig, shape: LlamaShape) -> tuple[list[int], list[int]]:
    """Query heads, and key and value heads, of the target for those of the draft: with the largest outputs.

    `output` is [D, H * E]. All, in order, where there are as many.
    """
    group, wanted = (
        target.num_heads // target.num_kv_heads,
        shape.num_attention_heads // shape.num_key_value_heads,
    )
    lengths = output.view(output.shape[0], target.num_kv_heads, group, target.head_dim).norm(
        dim=(0, 3)
    )  # [K, G]
    ranked = lengths.topk(wanted, dim=1)
    order = ranked.values.sum(1).argsort(descending=True).tolist()
    kv_heads = sorted(order[index % len(order)] for index in range(shape.num_key_value_heads))
    members = ranked.indices.sort(dim=1).values.tolist()
    return [kv_head * group + member for kv_head in kv_heads for member in members[kv_head]], kv_heads


def _rows(matrix: Tensor, heads: list[int], size: int) -> Tensor:
    """The rows of `heads`, of `size` rows each."""
    return torch.cat([matrix[head * size : (head + 1) * size] for head in heads])


def _padded(parts: dict[str, Tensor], shape: LlamaShape) -> dict[str, Tensor]:
    """Pad with channels of zeros where the draft's MLP is rounded up."""
    missing = shape.intermediate_size - len(parts["mlp.gate_proj"])
    if missing:
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            parts[name] = torch.nn.functional.pad(parts[name], (0, 0, 0, missing))
        parts["mlp.down_proj"] = torch.nn.functional.pad(parts["mlp.down_proj"], (0, missing))
    return parts


def _dense(linear: LinearMap) -> Tensor:
    stored = as_stored(linear)
    return stored.weight if isinstance(stored, DenseLinear) else dequantize(stored, torch.float32)
