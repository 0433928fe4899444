"""A small target with an untrained head, and rows that the target drew itself."""

from __future__ import annotations

import torch

from shared.engine.sampling.noise import gumbel_noise
from shared.sampling.parameters import SamplingParams
from shared.training.acceptance import TargetAnswer
from shared.training.heads.draft_head import DraftHead, start_head
from shared.training.heads.head_shape import HeadShape
from shared.training.llama import Llama, LlamaShape
from shared.training.taught_rows import TaughtRow

VOCABULARY = 64
KNOWN = 40
TARGET = LlamaShape(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=256,
)
SHAPE = HeadShape(
    vocab_size=VOCABULARY,
    target_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_blocks=1,
    tap_layers=(0, 1, 2),
    draft_vocab_size=KNOWN,
)


def small_target() -> Llama:
    """Return a target whose layers do something, and that is sure of what it says."""
    target = Llama(TARGET).requires_grad_(False)
    for name, parameter in target.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.5 if "embed" in name else 0.2)
    return target


def small_head(target: Llama, first: int = 0) -> DraftHead:
    """Return a head that has not learned and knows KNOWN tokens from `first` on."""
    return start_head(SHAPE, torch.arange(first, first + KNOWN, dtype=torch.int32), target)


def drawn_answer(target: Llama, prompt: list[int], count: int, temperature: float, seed: int) -> TargetAnswer:
    """Return what the target draws of the tokens from 0 to KNOWN, with the noise of the engine."""
    ids = list(prompt)
    for _ in range(count):
        logits = target(torch.tensor([ids]))[0, -1, :KNOWN]
        if temperature:
            logits = logits / temperature + gumbel_noise([seed], [len(ids)], torch.arange(KNOWN))[0].float()
        ids.append(int(logits.argmax()))
    params = SamplingParams(temperature=temperature, seed=seed)
    return TargetAnswer(tuple(prompt), tuple(ids[len(prompt) :]), params)


@torch.no_grad()
def taught_row(target: Llama, answer: TargetAnswer, layers: tuple[int, ...] = (0, 1, 2)) -> TaughtRow:
    """Return the answer as a row to learn from; what else was likely is nothing that a head learns."""
    ids = torch.tensor([*answer.prompt, *answer.tokens], dtype=torch.int32)
    first = len(answer.prompt)
    taps = target.model.states_after(ids[None].long(), layers)[0, first - 1 : -1].bfloat16()
    nothing = torch.zeros(len(answer.tokens), 0)
    return TaughtRow(ids, first, answer.params.temperature, nothing.int(), nothing, taps)
