"""The engine in one object, for tests, benches and notebooks: prompts in, completions out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from shared.engine.engine import Engine, EngineConfig
from shared.engine.sampling_params import SamplingParams
from shared.errors import NotFound, Overloaded


@dataclass(frozen=True, slots=True)
class Completion:
    """`token_ids` include the id that stopped it; `text` is them decoded without special tokens."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


class LLM:
    """`LLM(model_dir, **fields of EngineConfig)`. Not thread-safe."""

    def __init__(self, model_dir: str | Path, **engine: Any) -> None:
        self.engine = Engine(EngineConfig(str(model_dir), **engine))
        path = Path(model_dir) / "tokenizer.json"
        self.tokenizer: Tokenizer | None = Tokenizer.from_file(str(path)) if path.is_file() else None

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete all prompts, batched as the engine has room; one params for all, or one each.

        Text needs the model's tokenizer.json (NotFound without it); so does `Completion.text`, which is
        "" where there is none.
        """
        each = (
            [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else list(params)
        )
        waiting = deque(zip(map(str, range(len(prompts))), map(self._ids, prompts), each, strict=True))
        tokens: dict[str, list[int]] = {key: [] for key, _, _ in waiting}
        reasons: dict[str, str] = {}
        try:
            while len(reasons) < len(prompts):
                self._admit(waiting)
                for output in self.engine.step().outputs:
                    tokens[output.key] += output.token_ids
                    if output.finish_reason is not None:
                        reasons[output.key] = output.finish_reason
        finally:
            for key in tokens:
                self.engine.release(key)
        return [Completion(tuple(ids), self._text(ids), reasons[key]) for key, ids in tokens.items()]

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """float32 [len(token_ids), vocab]: the model's logits after each token."""
        return self.engine.logits(token_ids)

    def _admit(self, waiting: deque[tuple[str, Sequence[int], SamplingParams]]) -> None:
        while waiting:
            key, ids, params = waiting[0]
            try:
                self.engine.admit(key, ids, len(ids), params)
            except Overloaded:
                if not self.engine.has_work:
                    raise
                return
            waiting.popleft()

    def _ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self.tokenizer is None:
            raise NotFound("the model directory has no tokenizer.json; pass token ids instead of text")
        ids: list[int] = self.tokenizer.encode(prompt).ids
        return ids

    def _text(self, token_ids: Sequence[int]) -> str:
        return "" if self.tokenizer is None else str(self.tokenizer.decode(list(token_ids)))
