"""The draw as the documentation says it: one list, sorted, id by id, in Python's own floats."""

from __future__ import annotations

import math

from shared.sampling.parameters import SamplingParams

MASK = 2**64 - 1


def splitmix(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def plain_noise(seed: int, position: int, token_id: int) -> float:
    key = splitmix(splitmix(seed + 0x9E3779B97F4A7C15) + position)
    bits = splitmix(key + (token_id + 1) * 0x9E3779B97F4A7C15)
    return -math.log(-math.log(((bits >> 12) + 0.5) * 2.0**-52))


def plain_scores(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Penalties, bias and min_tokens, id by id, as the documentation says it; -inf is 'not allowed'."""
    scores = list(logits)
    for token_id in range(len(scores)):
        if token_id in prompt or token_id in output:
            penalty = params.repetition_penalty
            scores[token_id] = (
                scores[token_id] / penalty if scores[token_id] > 0 else scores[token_id] * penalty
            )
        scores[token_id] -= params.frequency_penalty * output.count(token_id)
        scores[token_id] -= params.presence_penalty * (token_id in output)
    for token_id, bias in params.logit_bias:
        scores[token_id] += bias
    if len(output) < params.min_tokens:
        for token_id in params.stop_token_ids:
            scores[token_id] = -math.inf
    return scores


def plain_filtered(scores: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p and min-p."""
    scores = [score / params.temperature for score in scores]
    if params.top_k:
        kth = sorted(scores, reverse=True)[min(params.top_k, len(scores)) - 1]
        scores = [score if score >= kth else -math.inf for score in scores]
    if params.top_p < 1:
        total, last = 0.0, math.inf
        for chance, score in sorted(zip(softmax(scores), scores, strict=True), reverse=True):
            if total >= params.top_p:
                break
            total, last = total + chance, score
        scores = [score if score >= last else -math.inf for score in scores]
    if params.min_p:
        chances = softmax(scores)
        floor = params.min_p * max(chances)
        scores = [
            score if chance >= floor else -math.inf for score, chance in zip(scores, chances, strict=True)
        ]
    return scores


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def plain_draw(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int], position: int
) -> int:
    scores = plain_scores(logits, params, prompt, output)
    if params.temperature > 0:
        scores = plain_filtered(scores, params)
        scores = [score + plain_noise(params.seed, position, index) for index, score in enumerate(scores)]
    return max(range(len(scores)), key=lambda index: (scores[index], -index))
