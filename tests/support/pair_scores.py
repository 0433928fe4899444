"""How well the built-in pair does what its card says: answers copied from passages, drafts that agree."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from shared.demo.examples import Example, make_example
from shared.demo.invent import Inventor, Vocabulary
from shared.demo.prompt import END
from shared.training.llama import Llama
from tests.support.data import REPOSITORY

MODELS = REPOSITORY / "shared" / "demo" / "models"
MAX_FACTS = 6
MAX_FILLERS = 8


def example_ids(example: Example, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Prompt ids and answer ids (with <|end|>)."""
    prompt = tokenizer.encode(example.prompt, add_special_tokens=False)
    answer = tokenizer.encode(example.answer + END, add_special_tokens=False)
    return prompt.ids, answer.ids


def held_out_examples(vocabulary: Vocabulary, count: int, seed: int) -> list[Example]:
    """Examples all of whose invented names, filler sentences and draws are unseen in training."""
    inventor = Inventor.seeded(seed, vocabulary, held_out=True)
    return [
        make_example(inventor, inventor.random.randint(1, MAX_FACTS), inventor.random.randint(0, MAX_FILLERS))
        for _ in range(count)
    ]


@torch.inference_mode()
def greedy_answer_is_exact(model: Llama, prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether greedy decoding gives exactly `answer`, <|end|> included.

    One pass over prompt and answer decides it: greedy decoding follows the answer while every argmax agrees.
    """
    ids = torch.tensor([[*prompt, *answer]])
    logits = model.head(model.model(ids)[0, len(prompt) - 1 : -1])  # [answer, V]
    return logits.argmax(-1).tolist() == list(answer)


def exact_answers(model: Llama, tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """The share of exact answers."""
    return statistics.fmean(
        greedy_answer_is_exact(model, *example_ids(example, tokenizer)) for example in examples
    )


@torch.inference_mode()
def agreement(target: Llama, draft: Llama, texts: Sequence[Tensor]) -> float:
    """Share of positions of held-out text at which both models' greedy choice is the same token."""
    same, count = 0, 0
    for ids in texts:
        chosen = target(ids[None])[0].argmax(-1)
        same += int((draft(ids[None])[0].argmax(-1) == chosen).sum())
        count += len(ids)
    return same / count
