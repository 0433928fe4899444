"""Runs of an engine that more than one kind of model goes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
from hypothesis import strategies as st

from shared.engine import Engine, SamplingParams, TokenOutput
from shared.errors import InvalidRequest, Overloaded
from tests.support.block_hashes import hashes_of
from tests.support.engine import admit, drive

MOST_PROMPT_TOKENS = 280


def prompt_of(length: int, seed: int = 1, vocab: int = 97) -> list[int]:
    """Any ids, always the same."""
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def drive_in_turn(
    engine: Engine, prompts: Mapping[str, list[int]], params: SamplingParams
) -> tuple[dict[str, list[int]], int]:
    """What is drawn of each, and how many were preempted; each comes in as soon as there is room."""
    waiting, preempted = dict(prompts), 0
    drawn: dict[str, list[int]] = {key: [] for key in prompts}
    while waiting or engine.has_work:
        for key, prompt in list(waiting.items()):
            try:
                admit(engine, key, prompt, params)
            except Overloaded:
                break
            del waiting[key]
        result = engine.step()
        engine.check()
        preempted += len(result.preempted_keys)
        for output in result.outputs:
            drawn[output.key] += output.token_ids
    return drawn, preempted


def drive_counted(engine: Engine) -> tuple[dict[str, list[int]], int]:
    """The last that was drawn of each, and how many tokens of prompts were computed for it."""
    computed = 0
    drawn: dict[str, list[int]] = {}
    while engine.has_work:
        result = engine.step()
        engine.check()
        computed += result.num_prefill_tokens
        drawn |= {output.key: list(output.token_ids) for output in result.outputs}
    return drawn, computed


def call_in_any_order(engine: Engine, data: st.DataObject, params: SamplingParams, count: int) -> None:
    """Make `count` calls of all kinds, of which some are refused; after each, and after the release of what
    is left, every block is explained. Prompts begin alike, so that they share, find again and take over each
    other's blocks."""
    calls: dict[str, Callable[[str, list[int]], object]] = {
        "admit": lambda key, prompt: admit(engine, key, prompt, params),
        "promise": lambda key, prompt: engine.admit(
            key, prompt, len(prompt), params, stop_after=1, on_layer=lambda *_: None
        ),
        "hold": lambda key, prompt: engine.admit(key, prompt, len(prompt), params, stop_after=20),
        "reserve": lambda key, prompt: engine.reserve(key, len(prompt), hashes_of(prompt)),
        "attach": lambda key, prompt: engine.attach(key, [*prompt, 1], len(prompt), params),
        "fork": lambda key, _: engine.fork(key, f"{key}+", params),
        "revise": lambda key, prompt: engine.revise(key, len(prompt), [1, 2], stop_after=40),
        "propose": lambda key, _: engine.propose(key, len(engine.tokens_since(key, 0)), [0] * 30),
        "release": lambda key, _: engine.release(key),
        "step": lambda *_: engine.step(),
    }
    for _ in range(count):
        length = data.draw(st.integers(1, MOST_PROMPT_TOKENS))
        prompt = [0] * (length // 2) + [length % 3] * (length - length // 2)
        call = calls[data.draw(st.sampled_from([*calls, *["step"] * 9]))]
        with suppress(InvalidRequest, Overloaded):  # refused calls must leave everything explained, too
            call(data.draw(st.sampled_from("abcdef")), prompt)
        engine.check()
    for key in list(engine.held()):
        engine.release(key)
    engine.check()
    assert engine.blocks.num_held == 0


def outputs_of(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> list[TokenOutput]:
    """Return what an otherwise idle engine tells of one sequence, step by step."""
    outputs: list[TokenOutput] = []
    admit(engine, "a", prompt, params)
    drive(engine, {"a": list(prompt)}, None, outputs)
    return outputs


def drawn_ids(outputs: Sequence[TokenOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]
