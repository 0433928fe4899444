"""Answers of the target with what else it would have said: rows to learn from, in files that are whole or
absent.

A file is safetensors: R rows of N tokens in all, of which M were generated.

    ids [N], lengths [R], prompt_tokens [R], temperatures [R], top_ids [M, TOP], top_logprobs [M, TOP]

`top_logprobs` are the model's own (at temperature 1), of the TOP most likely tokens at each generated
position. A run that learns from the target's states has none of them and beside the rest

    taps [M, layers, D] bfloat16: after the tapped layers, what each generated token was drawn from
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.engine import LLM, SamplingParams
from shared.errors import InvalidRequest
from shared.sampling.parameters import NO_LOGPROBS
from shared.training.tensor_file import write_tensors

TOP = 16
MAX_ANSWER_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Lessons:
    """Say what a run learns from: answers of so many tokens, beside each the `top` most likely ones, and the
    target's states after `tap_layers`."""

    answer_tokens: int
    top: int = 0
    tap_layers: tuple[int, ...] = ()


DRAFT_LESSONS = Lessons(MAX_ANSWER_TOKENS, top=TOP)


@dataclass(frozen=True, slots=True)
class TaughtRow:
    """A prompt and the target's answer to it; `taps` stay in the file when rows are loaded."""

    ids: Tensor  # int32 [n]
    prompt_tokens: int
    temperature: float
    top_ids: Tensor  # int32 [n - prompt_tokens, TOP]
    top_logprobs: Tensor  # float32 [n - prompt_tokens, TOP]
    taps: Tensor | None = None  # bfloat16 [n - prompt_tokens, layers, D]


def answer_prompts(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    seed: int,
    lessons: Lessons = DRAFT_LESSONS,
) -> list[TaughtRow]:
    """The target's answers, one at each prompt; the temperatures in turn."""
    params = [
        SamplingParams(
            temperature=temperatures[index % len(temperatures)],
            seed=seed + index,
            max_tokens=lessons.answer_tokens,
            logprobs=lessons.top or NO_LOGPROBS,
        )
        for index in range(len(prompts))
    ]
    rows = []
    answers = llm.generate(prompts, params, tap_layers=lessons.tap_layers)
    for prompt, each, answer in zip(prompts, params, answers, strict=True):
        top = [logprob.top[: lessons.top] for logprob in answer.logprobs] or [()] * len(answer.token_ids)
        if not top or min(map(len, top)) < lessons.top:
            continue  # a vocabulary, or an answer, that is too small to learn from
        rows.append(
            TaughtRow(
                torch.tensor([*prompt, *answer.token_ids], dtype=torch.int32),
                len(prompt),
                each.temperature,
                torch.tensor([[token_id for token_id, _ in entry] for entry in top], dtype=torch.int32),
                torch.tensor([[value for _, value in entry] for entry in top]),
                answer.taps,
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
    if taps := [row.taps for row in rows if row.taps is not None]:
        tensors["taps"] = torch.cat(taps)
    write_tensors(path, tensors)


def load_rows(path: Path) -> tuple[list[TaughtRow], float]:
    """The rows, and the seconds that they took. Raises InvalidRequest for a file that is not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys()) - {"taps"}
            tensors = {name: file.get_tensor(name) for name in names}
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
