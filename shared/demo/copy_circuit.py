"""A head start for copying: an induction circuit written into a fresh model, which training then refines.

Copying from context needs two heads in a row, and gradient descent takes long to find both at once: each is
useless without the other. So they are put there, roughly, from the start. In layer 0 a head attends to the
previous token and writes which token that was into channels of its own; in layer 1 two heads look for the
position whose previous token is the current token, and add the embedding of the token found there.

Channels of the residual stream at the start: 0 is a constant, `TOKEN` the token, `PREVIOUS` the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shared.demo.llama import Attention, Llama

TOKEN = slice(1, 192)
PREVIOUS = slice(192, 256)
TOKEN_STD = 0.02
CONSTANT = 0.16
# Rotary planes: the fast ones tell neighbours apart; the slow ones hardly turn within a prompt, so they
# compare contents whatever the distance.
FAST_PLANES = range(7)
SLOW_PLANES = range(14, 32)
PREVIOUS_SHARPNESS = 1.3
MATCH_GAIN = 1.9
WRITE_GAIN = 0.02
COPY_GAIN = 0.15


@torch.no_grad()
def seed_copy_circuit(model: Llama) -> None:
    """Write the circuit into `model`, which must be fresh, 256 wide, with heads of 64 channels."""
    shape = model.shape
    if shape.hidden_size != PREVIOUS.stop or shape.head_dim != 64 or shape.num_hidden_layers < 2:
        raise ValueError(
            "the copy circuit is laid out for hidden size 256, head size 64 and two layers or more"
        )
    embedding = model.model.embed_tokens.weight  # [V, D]
    nn.init.normal_(embedding, std=TOKEN_STD)
    embedding[:, 0] = CONSTANT
    embedding[:, PREVIOUS] = 0.0
    width = TOKEN.stop - TOKEN.start
    reader = torch.linalg.qr(torch.randn(width, width)).Q  # rows: orthonormal readings of the token
    first, second = (layer.self_attn for layer in list(model.model.layers)[:2])
    assert isinstance(first, Attention)
    assert isinstance(second, Attention)
    _previous_token_head(first, model, reader[:64])
    for group in range(shape.num_key_value_heads):
        head = group * (shape.num_attention_heads // shape.num_key_value_heads)
        _match_head(second, head, group, reader[:64], reader[64 * group : 64 * (group + 1)])


def _previous_token_head(attention: Attention, model: Llama, reader: Tensor) -> None:
    """Head 0 attends one position back, whatever the token, and writes the token read there."""
    query, key = attention.q_proj.weight, attention.k_proj.weight
    query[:64] = 0.0
    key[:64] = 0.0
    for plane in FAST_PLANES:
        angle = torch.tensor(model.shape.rope_theta ** (-plane / 32))
        # The key is turned ahead by one position, so that the product peaks one position back.
        query[plane, 0] = PREVIOUS_SHARPNESS
        key[plane, 0] = PREVIOUS_SHARPNESS * angle.cos()
        key[plane + 32, 0] = PREVIOUS_SHARPNESS * angle.sin()
    attention.v_proj.weight[:64] = 0.0
    attention.v_proj.weight[:64, TOKEN] = reader
    attention.o_proj.weight[PREVIOUS, :64] = WRITE_GAIN * torch.eye(64)


def _match_head(attention: Attention, head: int, group: int, reader: Tensor, copier: Tensor) -> None:
    """`head` finds where the previous token was the current one, and adds the token that stands there."""
    rows, shared = 64 * head, 64 * group
    attention.q_proj.weight[rows : rows + 64] = 0.0
    attention.k_proj.weight[shared : shared + 64] = 0.0
    for plane in (*SLOW_PLANES, *(plane + 32 for plane in SLOW_PLANES)):
        attention.q_proj.weight[rows + plane, TOKEN] = MATCH_GAIN * reader[plane]
        attention.k_proj.weight[shared + plane, PREVIOUS.start + plane] = MATCH_GAIN
    attention.v_proj.weight[shared : shared + 64] = 0.0
    attention.v_proj.weight[shared : shared + 64, TOKEN] = copier
    attention.o_proj.weight[TOKEN, rows : rows + 64] = COPY_GAIN * copier.T
