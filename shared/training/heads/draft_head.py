"""A draft head: a small recurrent network that drafts from its target's own hidden states.

Its state has no attention and no KV, as in ReDrafter (arXiv:2403.09919) and Hydra (arXiv:2402.05109). Of
EAGLE-3 (arXiv:2503.01840) it has the states of three layers, fused, and a vocabulary that is cut to the most
frequent tokens. Beside each draft it says how sure it is.

Shapes: N rows, D the target's hidden size, d the head's, W tokens that it knows. With E the target's
embedding, y_0 the token that the target drew from the row that was tapped:

    s_0 = fuse(taps);   s_{k+1}, o_k = advance(s_k, E[y_k]);   logits of y_{k+1} = head(o_k)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.engine.draft_head.config import NUM_TAPS
from shared.training.heads.head_shape import HeadShape
from shared.training.llama import INIT_STD, Llama, RmsNorm

TAPS_DROPOUT = 0.1
"""Few answers are many times seen: what the states alone tell of a text, a head would learn by heart."""


class HeadBlock(nn.Module):
    """A gated MLP before which its input is normed, and to which that is added."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, d] -> [N, d]."""
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out


class Confidence(nn.Module):
    """The head's sureness of a draft, before the sigmoid."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape.hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, out: Tensor) -> Tensor:
        """[N, d] -> float32 [N]."""
        return out.float() @ self.weight + self.bias


class DraftHead(nn.Module):
    """The head; `ids` [W] int32 are the tokens that it knows, ascending.

    Its last matrix stays the target's, as in EAGLE (arXiv:2401.15077): it has more parameters than all others
    and learns the answers by heart.
    """

    ids: Tensor

    def __init__(self, shape: HeadShape, ids: Tensor) -> None:
        super().__init__()
        self.shape = shape
        width, target = shape.hidden_size, shape.target_size
        self.register_buffer("ids", ids)
        self.taps_norm = RmsNorm(NUM_TAPS * target, shape.rms_norm_eps)
        self.fuse = nn.Linear(NUM_TAPS * target, width, bias=False)
        self.state_norm = RmsNorm(width, shape.rms_norm_eps)
        self.embed_norm = RmsNorm(target, shape.rms_norm_eps)
        self.mix_state = nn.Linear(width, width, bias=False)
        self.mix_embed = nn.Linear(target, width, bias=False)
        self.blocks = nn.ModuleList(HeadBlock(shape) for _ in range(shape.num_blocks))
        self.out_norm = RmsNorm(width, shape.rms_norm_eps)
        self.head = nn.Linear(width, shape.draft_vocab_size, bias=False).requires_grad_(False)
        self.confidence = Confidence(shape)

    def first_state(self, taps: Tensor) -> Tensor:
        """[N, 3, D] -> s_0 [N, d]: each tap is normed by itself."""
        normed = functional.rms_norm(taps, taps.shape[-1:], eps=self.shape.rms_norm_eps)
        scaled = normed.flatten(1) * self.taps_norm.weight.to(normed.dtype)
        state: Tensor = self.fuse(functional.dropout(scaled, TAPS_DROPOUT, self.training))
        return state

    def advance(self, state: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """s_k [N, d] and E[y_k] [N, D] -> s_{k+1} and o_k, [N, d] each."""
        x = self.mix_state(self.state_norm(state)) + self.mix_embed(self.embed_norm(embedded))
        for block in self.blocks:
            x = block(x)
        return x, self.out_norm(x)


@torch.no_grad()
def start_head(shape: HeadShape, ids: Tensor, target: Llama) -> DraftHead:
    """The head before it has learned: the last tap goes through it as it is, and its logits are the target's.

    So it says what the target has just said, in the directions in which the target says it; blocks and the
    token's embedding add nothing yet. A narrower head has the first d directions in which the target's
    embeddings are longest.
    """
    head = DraftHead(shape, ids)
    embedding, norm = target.model.embed_tokens.weight.float(), target.model.norm.weight.float()
    width = shape.hidden_size
    basis = _basis(embedding, width)  # [D, d]
    for linear in (head.fuse, head.mix_state, head.mix_embed):
        linear.weight.zero_()
    head.fuse.weight[:, -shape.target_size :] = basis.T
    head.mix_state.weight.copy_(torch.eye(width))
    for block in head.blocks:
        assert isinstance(block, HeadBlock)
        nn.init.normal_(block.gate_up.weight, std=INIT_STD)
        block.down.weight.zero_()
    head.head.weight.copy_((embedding[ids.long()] * norm) @ basis)
    return head.eval()


def _basis(embedding: Tensor, width: int) -> Tensor:
    """[D, d]: orthonormal directions, those first in which the embeddings are longest; all of them as they
    are."""
    size = embedding.shape[1]
    if width == size:
        return torch.eye(size)
    _, vectors = torch.linalg.eigh(embedding.double().T @ embedding.double())
    basis: Tensor = vectors.flip(1)[:, :width].float().contiguous()
    return basis
