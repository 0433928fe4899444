"""The draft head in torch operations, row by row: what every other one is held to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.draft_head.weights import DraftHeadWeights
from shared.engine.sampling.noise import gumbel_noise
from shared.engine.scheduling.head_model import DraftRequest, HeadDraft, TapRows, bin_of

EmbedToken = Callable[[int], Tensor]
"""The embedding of a token as the target's first layer takes it, float32 [target's hidden]."""


class TorchDraftHead:
    """See `HeadModel`."""

    def __init__(self, weights: DraftHeadWeights, embed: EmbedToken) -> None:
        self._weights = weights
        self._embed = embed

    @property
    def tap_width(self) -> int:
        """See `HeadModel`."""
        return self._weights.config.tap_width

    @torch.inference_mode()
    def draft(
        self, taps: TapRows, requests: Sequence[DraftRequest], chances: Sequence[float]
    ) -> list[HeadDraft]:
        """See `HeadModel`."""
        return [self._draft(torch.from_numpy(taps[each.slot]), each, chances) for each in requests]

    def first_state(self, taps: Tensor) -> Tensor:
        """Return the state [1, d] that begins behind a row of taps."""
        weights, config = self._weights, self._weights.config
        parts = taps.view(len(config.tap_layers), config.target_hidden_size)
        normed = functional.rms_norm(parts, parts.shape[1:], eps=config.rms_norm_eps)
        return weights.fuse((normed * weights.taps_norm.view_as(parts)).view(1, -1))

    def next_state(self, state: Tensor, token_id: int) -> Tensor:
        """Return the state [1, d] after one more token."""
        weights = self._weights
        embedded = self._normed(self._embed(token_id)[None], weights.embed_norm)
        x = weights.mix(torch.cat([self._normed(state, weights.state_norm), embedded], dim=1))
        for block in weights.blocks:
            gate, up = block.gate_up(self._normed(x, block.norm)).chunk(2, dim=1)
            x = x + block.down(functional.silu(gate) * up)
        return x

    def outputs(self, state: Tensor) -> tuple[Tensor, float]:
        """Return logits [draft vocabulary] of the token after a state, and its confidence."""
        weights = self._weights
        out = self._normed(state, weights.out_norm)
        score = float(out[0] @ weights.confidence) + weights.confidence_bias
        return weights.head(out)[0], float(torch.sigmoid(torch.tensor(score)))

    def _draft(self, taps: Tensor, request: DraftRequest, chances: Sequence[float]) -> HeadDraft:
        state, token_id, chance = self.first_state(taps), request.token_id, 1.0
        ids: list[int] = []
        confidences: list[float] = []
        steps = 0
        while len(ids) < request.length and (not ids or chance >= request.need):
            state = self.next_state(state, token_id)
            logits, confidence = self.outputs(state)
            steps += 1
            if logits.isnan().any() or math.isnan(confidence):
                break
            chance *= min(1.0, request.trust * chances[bin_of(confidence)])
            if chance < request.floor:
                break
            token_id = self._drawn(logits, request, request.position + len(ids))
            ids.append(token_id)
            confidences.append(confidence)
        return HeadDraft(tuple(ids), tuple(confidences), steps)

    def _drawn(self, logits: Tensor, request: DraftRequest, position: int) -> int:
        ids = self._weights.ids
        if request.temperature:
            noise = gumbel_noise([request.seed], [position], ids.long())[0]
            logits = logits.double() / request.temperature + noise
        return int(ids[logits.argmax()])

    def _normed(self, rows: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(rows, weight.shape, weight, self._weights.config.rms_norm_eps)
