"""What the answers should be: transformers for greedy ids, the full-sequence decode for text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

REPLACEMENT = "\ufffd"


class Oracle:
    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        torch.set_num_threads(1)  # a model this small loses more to thread switches than it gains
        # `generate` annotates its self as a protocol that mypy follows on some machines and not on others.
        self.model: Any = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.model.train(mode=False)
        self.tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        config = json.loads((model_dir / "config.json").read_text())
        self.context_tokens = int(config["max_position_embeddings"])
        self.vocab_size = int(config["vocab_size"])
        self.eos = int(config["eos_token_id"])
        self._greedy: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def greedy(self, prompt: list[int], count: int, guess: Sequence[int] = ()) -> list[int]:
        """Up to `count` greedy ids after `prompt`: ends with eos or at the context limit.

        Where `guess` is right, one pass over all of it takes the place of a step for each id.
        """
        key, most = (tuple(prompt), count), min(count, self.context_tokens - len(prompt))
        if key not in self._greedy:
            right = self._is_greedy(prompt, most, guess)
            self._greedy[key] = [*guess] if right else self._generate(prompt, most)
        return self._greedy[key]

    def _is_greedy(self, prompt: list[int], most: int, guess: Sequence[int]) -> bool:
        if not guess or self.eos in guess[:-1] or (len(guess) < most and guess[-1] != self.eos):
            return False
        logprobs = self.logprobs([*prompt, *guess[:-1]])
        chosen: list[int] = logprobs[len(prompt) - 1 :].argmax(-1).tolist()
        return len(guess) <= most and chosen == [*guess]

    @torch.inference_mode()
    def logprobs(self, prompt: list[int]) -> torch.Tensor:
        """[len(prompt), vocab]: of whatever may come after each token."""
        logits: torch.Tensor = self.model(torch.tensor([prompt])).logits[0]
        return torch.log_softmax(logits, dim=-1)

    @torch.inference_mode()
    def _generate(self, prompt: list[int], count: int) -> list[int]:
        ids = torch.tensor([prompt])  # [1, prompt]
        output = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=self.eos,
            pad_token_id=self.eos,
        )
        return [int(token) for token in output[0, len(prompt) :]]

    def continuation(self, prompt: list[int], ids: list[int]) -> str:
        """The text that follows the prompt's own: decode(prompt + ids) without what the prompt alone shows.

        A character that the prompt leaves incomplete belongs to the continuation.
        """
        shown = self.tokenizer.decode(prompt, skip_special_tokens=True)
        whole = self.tokenizer.decode(prompt + ids, skip_special_tokens=True)
        while shown.endswith(REPLACEMENT):
            shown = shown[:-1]
        assert whole.startswith(shown), "the prompt's text is not a prefix of the whole"
        return whole[len(shown) :]
