"""A small Llama for training, whose parameter names and arithmetic are Hugging Face's.

Shapes: B sequences, T positions, D hidden size, H query heads, K key/value heads, E head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a model; the names are those of `LlamaConfig`."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_attention_heads


def rotary_tables(shape: LlamaShape, length_tokens: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, [T, E] fp32 each, both halves alike (the Hugging Face layout)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(
        torch.arange(length_tokens, dtype=torch.float32), 1.0 / (shape.rope_theta**exponents)
    )
    angles = torch.cat((angles, angles), dim=-1)  # [T, E]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + E/2) of `x` [B, heads, T, E] by the angles [T, E]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """Attention of queries [B, H, T, E] to the keys [B, K, T, E] of their groups, where `seen` [T, T].

    In plain products: on CPUs the fused kernel takes three times as long with a mask, and more to go back.
    """
    batch, heads, length, size = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, size) * size**-0.5  # [B, K, G * T, E]
    scores = (grouped @ key.transpose(2, 3)).view(batch, heads, length, length)
    scores += torch.zeros_like(seen, dtype=scores.dtype).masked_fill_(~seen, -torch.inf)
    with torch.autocast("cpu", enabled=False):  # which would make copies in fp32; the kernel adds up in fp32
        weights = scores.softmax(-1)
    mixed: Tensor = weights.view(batch, key.shape[1], -1, length) @ value
    return mixed.view(batch, heads, length, size)


class RmsNorm(nn.Module):
    """Root-mean-square norm whose weight follows the input's type, so that bf16 takes the fused path."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Causal self-attention with grouped key/value heads and rotary positions."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = (
            shape.num_attention_heads * shape.head_dim,
            shape.num_key_value_heads * shape.head_dim,
        )
        self.q_proj = nn.Linear(shape.hidden_size, wide, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(wide, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D]; `seen` [T, T] says what each position looks at, None: all before it."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head_dim)
        query = rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)  # [B, H, T, E]
        key = rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)  # [B, K, T, E]
        value = self.v_proj(x).view(split).transpose(1, 2)
        group = self.shape.num_attention_heads // self.shape.num_key_value_heads
        if seen is None:
            key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = _attend(query, key, value, seen)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Mlp(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, seen)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers and the last norm: everything below the head."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        cos, sin = rotary_tables(shape, shape.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor, places: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        """[B, T] token ids -> [B, T, D] hidden states.

        `places` [T] are the positions of the tokens and `seen` [T, T] what each looks at, where they are not
        one text from its beginning.
        """
        x = self.embed_tokens(ids)
        for state in self._states(x, slice(ids.shape[1]) if places is None else places, seen):
            x = state
        out: Tensor = self.norm(x)
        return out

    def states_after(self, ids: Tensor, layers: Sequence[int]) -> Tensor:
        """[B, T] token ids -> [B, T, len(layers), D]: the residual stream after each of `layers`, which
        ascend."""
        states = self._states(self.embed_tokens(ids), slice(ids.shape[1]), None)
        taken = [state for index, state in enumerate(states) if index in layers]
        return torch.stack(taken, dim=2)

    def _states(self, x: Tensor, at: Tensor | slice, seen: Tensor | None) -> Iterator[Tensor]:
        """Yield the residual stream after each layer."""
        cos, sin = self.get_buffer("cos")[at], self.get_buffer("sin")[at]
        if torch.is_autocast_enabled("cpu"):
            x, cos, sin = x.bfloat16(), cos.bfloat16(), sin.bfloat16()
        for layer in self.layers:
            x = layer(x, cos, sin, seen)
            yield x


class Llama(nn.Module):
    """A causal language model with the head tied to the embedding."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # Layers start as the identity: what they add to the residual stream is zero at first.
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.0 if adds else INIT_STD)

    def head(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] -> logits [..., V]."""
        return functional.linear(hidden, self.model.embed_tokens.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] token ids -> [B, T, V] logits."""
        return self.head(self.model(ids))
