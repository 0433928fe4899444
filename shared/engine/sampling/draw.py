"""Draws tokens: Gumbel-max with noise that depends only on seed, position and vocabulary id.

Order per row: penalties, logit bias, masks (min_tokens, allowed ids, bad words, grammar), temperature, top-k,
top-p, min-p, noise, argmax. Log-probabilities are those of the raw model logits, before any of this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from shared.engine.native.library import library
from shared.engine.sampling.draw_row import DrawRow, TokenCounts
from shared.engine.sampling.id_bits import unpacked
from shared.engine.sampling.logprobs import Logprobs
from shared.engine.sampling.native_sampler import NativeSampler
from shared.engine.sampling.noise import gumbel_noise
from shared.sampling.parameters import FILTERS, SamplingParams, TokenLogprob

NOISE_PASS_ELEMENTS = 1 << 16  # noise is made in pieces that stay in the cache
NUCLEUS_FIRST_LOOK = 256


def draw(logits: Tensor, rows: Sequence[DrawRow]) -> tuple[list[int | None], list[TokenLogprob | None]]:
    """One token per row of `logits` [len(rows), vocab] float32, which is overwritten.

    A row's draw depends on that row alone. Equal maxima go to the lowest id. None is drawn from a row that
    rules every id out, or that holds a NaN.
    """
    native = native_sampler()
    with torch.inference_mode():
        logits = logits.contiguous()
        logprobs = _prepare(logits, dict(enumerate(rows)), native)
        token_ids = pick(logits, rows) if native is None else native.pick(logits, rows)
    if logprobs is None:
        return token_ids, [None] * len(token_ids)
    return token_ids, [logprobs.describe(index, token_id) for index, token_id in enumerate(token_ids)]


def draw_packed(
    native: NativeSampler, logits: Tensor, draws: Sequence[bytes], ruled: Mapping[int, DrawRow]
) -> tuple[list[int], dict[int, TokenLogprob | None]]:
    """The same of rows whose options are packed already, in `draws`. Of these `ruled` has those of which
    more is to be done, and their log-probabilities are told where they are wanted. -1: nothing was drawn."""
    if not ruled:
        return native.pick_packed(logits.contiguous(), b"".join(draws)), {}
    with torch.inference_mode():
        logits = logits.contiguous()
        logprobs = _prepare(logits, ruled, native)
        token_ids = native.pick_packed(logits, b"".join(draws))
    if logprobs is None:
        return token_ids, {}
    drawn = ((index, token_ids[index]) for index in ruled)
    return token_ids, {
        index: logprobs.describe(index, None if token_id < 0 else token_id) for index, token_id in drawn
    }


def _prepare(logits: Tensor, rows: Mapping[int, DrawRow], native: NativeSampler | None) -> Logprobs | None:
    """Make those rows of `logits` what is drawn from; returns their log-probabilities as they were, None
    where nobody wants any."""
    told = {index: row.params.logprobs for index, row in rows.items() if row.params.logprobs >= 0}
    adjusted = [index for index, row in rows.items() if not row.is_plain]
    logprobs = Logprobs(logits, told, native, told.keys() & adjusted) if told else None
    for index in adjusted:
        _adjust(logits[index], rows[index])
    return logprobs


@functools.cache
def native_sampler() -> NativeSampler | None:
    """Return the sampler in C++, None where it was not built or does not run on this machine."""
    loaded = library()
    return None if loaded is None else NativeSampler(loaded)


def _adjust(logits: Tensor, row: DrawRow) -> None:
    """Penalties, bias and blocked ids on one row [vocab], in place. What is allowed is up to the draw."""
    params = row.params
    if row.counts is not None:
        native = native_sampler()
        if native is None:
            penalise(logits, params, row.counts)
        else:
            native.penalise(logits, params, row.counts.seen, row.counts.output)
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        logits[torch.tensor(ids)] += torch.tensor(biases, dtype=logits.dtype)
    if row.blocked_ids:
        logits[torch.tensor(row.blocked_ids)] = -torch.inf


def penalise(logits: Tensor, params: SamplingParams, counts: TokenCounts) -> None:
    """The penalties on one row [vocab], in place, in torch operations."""
    penalised = torch.where(
        logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty
    )
    torch.where(counts.seen, penalised, logits, out=logits)
    logits -= params.frequency_penalty * counts.output
    logits -= params.presence_penalty * (counts.output > 0)


def pick(logits: Tensor, rows: Sequence[DrawRow]) -> list[int | None]:
    """The draw in torch operations: what the C++ is held to, and what runs where it cannot. Ids that are not
    allowed are overwritten."""
    for index, row in enumerate(rows):
        if row.allowed is not None:
            allowed = torch.from_numpy(unpacked(row.allowed, logits.shape[-1]))
            logits[index].masked_fill_(~allowed, -torch.inf)
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    best = logits[torch.arange(len(rows)), torch.tensor(token_ids)]
    dead = (torch.isnan(best) | (best == -torch.inf)).tolist()
    living = [index for index, row in enumerate(rows) if row.params.temperature > 0 and not dead[index]]
    filtered = [index for index in living if rows[index].params.filters]
    plain = [index for index in living if not rows[index].params.filters]
    for index in filtered:
        params = rows[index].params
        scores = logits[index].double() / params.temperature
        restrict(scores, params)
        allowed = (scores > -torch.inf).nonzero().view(-1)
        noise = gumbel_noise([params.seed], [rows[index].position], allowed)[0]
        token_ids[index] = int(allowed[(scores[allowed] + noise).argmax()])
    rows_per_pass = max(1, NOISE_PASS_ELEMENTS // logits.shape[-1])
    for start in range(0, len(plain), rows_per_pass):
        batch = plain[start : start + rows_per_pass]
        perturbed = _perturbed(logits[torch.tensor(batch)], [rows[index] for index in batch])
        for index, token_id in zip(batch, perturbed.argmax(dim=-1).tolist(), strict=True):
            token_ids[index] = token_id
    return [None if gone else token_id for token_id, gone in zip(token_ids, dead, strict=True)]


def _perturbed(logits: Tensor, rows: Sequence[DrawRow]) -> Tensor:
    """logits / T + G for rows without filters: float64 [len(rows), vocab]."""
    temperatures = torch.tensor([row.params.temperature for row in rows], dtype=torch.float64)
    noise = gumbel_noise(
        [row.params.seed for row in rows], [row.position for row in rows], torch.arange(logits.shape[-1])
    )
    return noise.add_(logits.double().div_(temperatures[:, None]))


def restrict(scores: Tensor, params: SamplingParams) -> None:
    """Mask ids of one row [vocab] with -inf, in place: each filter of what the one before has left.

    top-k keeps the k likeliest ids, top-p the fewest likeliest ids whose probabilities reach top_p, both
    with every id that ties with the last one kept; min-p keeps ids at least min_p times as likely as the
    likeliest.
    """
    for name in FILTERS:
        floor = FLOORS[name](scores, params)
        if floor is not None:
            scores.masked_fill_(scores < floor, -torch.inf)


def _top_k_floor(scores: Tensor, params: SamplingParams) -> Tensor | None:
    return torch.topk(scores, params.top_k).values[-1] if 0 < params.top_k < len(scores) else None


def _top_p_floor(scores: Tensor, params: SamplingParams) -> Tensor | None:
    return _nucleus_floor(scores, params.top_p) if params.top_p < 1.0 else None


def _min_p_floor(scores: Tensor, params: SamplingParams) -> Tensor | None:
    return scores.max() + math.log(params.min_p) if params.min_p > 0.0 else None


FLOORS = {"top_k": _top_k_floor, "top_p": _top_p_floor, "min_p": _min_p_floor}
"""The least score that a filter keeps, by the filter's name; None where it is off."""


def _nucleus_floor(scores: Tensor, top_p: float) -> Tensor:
    """The score of the last id that top_p needs. A few of the best ids mostly suffice to find it."""
    log_total = torch.logsumexp(scores, dim=-1)
    best = torch.topk(scores, min(NUCLEUS_FIRST_LOOK, len(scores))).values
    if (best - log_total).exp().sum() < top_p:
        best = torch.sort(scores, descending=True).values
    reached = (best - log_total).exp().cumsum(dim=-1)
    needed = int((reached < top_p).sum())
    return best[min(needed, len(best) - 1)]  # rounding can leave the whole sum just below top_p


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """The raw log-probability of token_ids[i] after row i of `logits` [len(token_ids), vocab], and the
    `num_top` likeliest ids' there."""
    logprobs = Logprobs(logits.contiguous(), dict.fromkeys(range(len(token_ids)), num_top), native_sampler())
    told = (logprobs.describe(index, token_id) for index, token_id in enumerate(token_ids))
    return tuple(each for each in told if each is not None)
