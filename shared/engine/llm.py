"""The engine in one object, for tests, benches and notebooks: prompts in, completions out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from shared.engine.adapters import AdapterInfo
from shared.engine.batch import Taps
from shared.engine.engine import Engine, EngineConfig
from shared.engine.loading.tokenizer_file import read_tokenizer_json
from shared.engine.results import TokenOutput
from shared.errors import InvalidRequest, NotFound, Overloaded
from shared.sampling.parameters import NO_LOGPROBS, SamplingParams, TokenLogprob

MAX_COMPLETIONS = 64
"""The most completions of one prompt."""


@dataclass(frozen=True, slots=True)
class Completion:
    """`token_ids` include the id that stopped it; `text` is them decoded without special tokens.

    `index` counts the completions of one prompt from 0. `logprobs` has one entry per token when asked for,
    `prompt_logprobs` one per prompt token but the first, which nothing comes before. `taps` [tokens, layers,
    hidden], bfloat16, are the states that the tokens were drawn from, where layers are tapped.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    taps: Tensor | None = None


@dataclass(slots=True)
class _Run:
    """One completion on its way. `first` is its prompt's first one, whose computed prompt it shares."""

    key: str
    index: int
    prompt_ids: Sequence[int]
    params: SamplingParams
    first: _Run | None
    adapter: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    taps: list[Tensor] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None

    @property
    def must_wait(self) -> bool:
        """Return whether the prompt that it could share is still being computed."""
        return self.first is not None and not self.first.token_ids and self.first.finish_reason is None

    def take(self, output: TokenOutput) -> None:
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.finish_reason = output.finish_reason


class LLM:
    """`LLM(model, **fields of EngineConfig)`: a Hugging Face directory or a GGUF file. Not thread-safe."""

    def __init__(self, model_dir: str | Path, **engine: Any) -> None:
        self.engine = Engine(EngineConfig(str(model_dir), **engine))
        spec = read_tokenizer_json(model_dir)
        self.tokenizer: Tokenizer | None = None if spec is None else Tokenizer.from_str(spec)

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        n: int = 1,
        adapters: str | Sequence[str] = "",
        tap_layers: Sequence[int] = (),
    ) -> list[Completion]:
        """Complete all prompts, batched as the engine has room; one params for all, or one each.

        So are `adapters`: the names of loaded ones, "" for the model alone.

        Answers n completions for each prompt, those of the first prompt first; completion i draws with seed
        (params.seed + i) mod 2^64, and the prompt is computed once. Text needs the model's tokenizer.json
        (NotFound without it); so does `Completion.text`, which is "" where there is none. `tap_layers` as
        `Engine.tap` takes them; InvalidRequest beside grammars and scores of prompts.
        """
        if not 1 <= n <= MAX_COMPLETIONS:
            raise InvalidRequest(f"n is {n}; ask for 1 to {MAX_COMPLETIONS} completions of a prompt")
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else params
        named = [adapters] * len(prompts) if isinstance(adapters, str) else adapters
        runs: list[_Run] = []
        for number, (prompt, options, adapter) in enumerate(zip(prompts, each, named, strict=True)):
            runs += _runs_of(_Run(f"{number}/0", 0, self._ids(prompt), options, None, adapter), n)
        if tap_layers and any(map(_draws_otherwise, runs)):
            raise InvalidRequest("layers are tapped where there are neither grammars nor prompt_logprobs")
        taps = self.engine.tap(tap_layers) if tap_layers else None
        try:
            self._complete(runs, taps)
        finally:
            if tap_layers:
                self.engine.tap(())
        return [
            Completion(
                tuple(run.token_ids),
                self._text(run.token_ids),
                str(run.finish_reason),
                run.index,
                tuple(run.logprobs),
                tuple((run.first or run).prompt_logprobs),
                torch.stack(run.taps) if run.taps else None,
            )
            for run in runs
        ]

    def load_adapter(self, name: str, directory: str | Path) -> AdapterInfo:
        """See `Engine.load_adapter`; `engine` has the rest."""
        return self.engine.load_adapter(name, str(directory))

    def logits(self, token_ids: Sequence[int], adapter: str = "") -> Tensor:
        """float32 [len(token_ids), vocab]: the model's logits after each token."""
        return self.engine.logits(token_ids, adapter)

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """`SamplingParams.bad_words` for words of text: their ids as they stand at the beginning of a text,
        and after a space. Raises NotFound without a tokenizer."""
        tokenizer = self._need_tokenizer()
        encoded = (
            tuple(tokenizer.encode(text, add_special_tokens=False).ids)
            for word in words
            for text in (word, " " + word)
        )
        return tuple(dict.fromkeys(ids for ids in encoded if ids))

    def _complete(self, runs: Sequence[_Run], taps: Taps | None) -> None:
        by_key = {run.key: run for run in runs}
        waiting = list(runs)
        try:
            while any(run.finish_reason is None for run in runs):
                waiting = self._admit(waiting)
                if not self.engine.has_work:
                    raise Overloaded(
                        "KV blocks that sequences outside of this call hold are needed to go on; release them"
                    )
                result = self.engine.step()
                for scores in result.prompt_scores:
                    by_key[scores.key].prompt_logprobs += scores.logprobs
                for output in result.outputs:
                    by_key[output.key].take(output)
                if taps is not None:
                    drawn_from = taps.rows[: len(result.outputs)].bfloat16()
                    for output, row in zip(result.outputs, drawn_from, strict=True):
                        by_key[output.key].taps.append(row)
        finally:
            for key in by_key:
                self.engine.release(key)

    def _admit(self, waiting: Sequence[_Run]) -> list[_Run]:
        """Return those that still wait. Raises what the engine says to a run that it can never take."""
        later = [run for run in waiting if run.must_wait]
        ready = [run for run in waiting if not run.must_wait]
        for place, run in enumerate(ready):
            try:
                self._enter(run)
            except Overloaded:
                if not self.engine.has_work:
                    raise
                return ready[place:] + later
        return later

    def _enter(self, run: _Run) -> None:
        if run.first is not None and run.first.finish_reason is None:
            try:
                self.engine.fork(run.first.key, run.key, run.params)
            except InvalidRequest:  # preempted just now, its blocks are gone: nothing to share
                pass
            else:
                return
        self.engine.admit(run.key, run.prompt_ids, len(run.prompt_ids), run.params, adapter=run.adapter)

    def _ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        ids: list[int] = self._need_tokenizer().encode(prompt).ids
        return ids

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise NotFound("the model directory has no tokenizer.json; pass token ids instead of text")
        return self.tokenizer

    def _text(self, token_ids: Sequence[int]) -> str:
        return "" if self.tokenizer is None else str(self.tokenizer.decode(list(token_ids)))


def _draws_otherwise(run: _Run) -> bool:
    """Return whether a step may draw for this one in another order than it computes rows."""
    return run.params.grammar is not None or run.params.prompt_logprobs != NO_LOGPROBS


def _runs_of(first: _Run, n: int) -> list[_Run]:
    number, _ = first.key.split("/")
    others = (
        _Run(
            f"{number}/{index}",
            index,
            first.prompt_ids,
            dataclasses.replace(
                first.params, seed=(first.params.seed + index) % 2**64, prompt_logprobs=NO_LOGPROBS
            ),
            first,
            first.adapter,
        )
        for index in range(1, n)
    )
    return [first, *others]
