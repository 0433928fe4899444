"""Answers of the target with what else it would have said: rows to learn from, in files that are whole or
absent.

A file is safetensors: R rows of N tokens in all, of which M were generated.

    ids [N], lengths [R], prompt_tokens [R], temperatures [R], top_ids [M, TOP], top_logprobs [M, TOP]

`top_logprobs` are the model's own (at temperature 1), of the TOP most likely tokens at each generated
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from shared.engine import LLM, SamplingParams
from shared.errors import InvalidRequest
from shared.training.tensor_file import write_tensors

TOP = 16
MAX_ANSWER_TOKENS = 128


@dataclass(frozen=True, slots=True)
class TaughtRow:
    """A prompt and the target's answer to it."""

    ids: Tensor  # int32 [n]
    prompt_tokens: int
    temperature: float
    top_ids: Tensor  # int32 [n - prompt_tokens, TOP]
    top_logprobs: Tensor  # float32 [n - prompt_tokens, TOP]


def answer_prompts(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    seed: int,
    answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[TaughtRow]:
    """The target's answers of up to `answer_tokens`, one at each prompt; the temperatures in turn."""
    params = [
        SamplingParams(
            temperature=temperatures[index % len(temperatures)],
            seed=seed + index,
            max_tokens=answer_tokens,
            logprobs=TOP,
        )
        for index in range(len(prompts))
    ]
    rows = []
    for prompt, each, answer in zip(prompts, params, llm.generate(prompts, params), strict=True):
        top = [logprob.top[:TOP] for logprob in answer.logprobs]
        if not top or min(map(len, top)) < TOP:
            continue  # a vocabulary, or an answer, that is too small to learn from
        rows.append(
            TaughtRow(
                torch.tensor([*prompt, *answer.token_ids], dtype=torch.int32),
                len(prompt),
                each.temperature,
                torch.tensor([[token_id for token_id, _ in entry] for entry in top], dtype=torch.int32),
                torch.tensor([[value for _, value in entry] for entry in top]),
            )
        )
    return rows


def save_rows(path: Path, rows: Sequence[TaughtRow], seconds: float) -> None:
    """`seconds` is what it took to make them. An interrupted write leaves no file of that name."""
    tensors = {
        "ids": torch.cat([row.ids for row in rows]),
        "lengths": torch.tensor([len(row.ids) for row in rows]),
        "prompt_tokens": torch.tensor([row.prompt_tokens for row in rows]),
        "temperatures": torch.tensor([row.temperature for row in rows]),
        "top_ids": torch.cat([row.top_ids for row in rows]),
        "top_logprobs": torch.cat([row.top_logprobs for row in rows]),
        "seconds": torch.tensor(seconds),
    }
    write_tensors(path, tensors)


def load_rows(path: Path) -> tuple[list[TaughtRow], float]:
    """The rows, and the seconds that they took. Raises InvalidRequest for a file that is not whole."""
    try:
        tensors = load_file(path)
        lengths, prompts = tensors["lengths"].tolist(), tensors["prompt_tokens"].tolist()
        generated = [length - prompt for length, prompt in zip(lengths, prompts, strict=True)]
        ids = torch.split(tensors["ids"], lengths)
        top_ids = torch.split(tensors["top_ids"], generated)
        top_logprobs = torch.split(tensors["top_logprobs"], generated)
        temperatures = tensors["temperatures"].tolist()
        rows = [
            TaughtRow(*row) for row in zip(ids, prompts, temperatures, top_ids, top_logprobs, strict=True)
        ]
        return rows, float(tensors["seconds"])
    except (SafetensorError, KeyError, RuntimeError, ValueError, OSError) as error:
        raise InvalidRequest(f"{path} is damaged ({error}); remove it, it is made again") from error
