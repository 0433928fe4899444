"""What plain rows bring in one loop is what they bring one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import Engine
from shared.engine.model_runner import ModelColumns, ModelInput
from shared.engine.scheduling.scheduler import Scheduler
from shared.fairness.share import TenantShare
from tests.support.engine import FANCY, GREEDY, make_engine, prompts

NUM_PROMPTS = 24  # more than LEAST_ARRAY_ROWS
ONE_BY_ONE = property(lambda _: False)

Admit = Callable[[Engine, int, list[int]], None]


def admit_plain(engine: Engine, index: int, prompt: list[int]) -> None:
    params = replace(GREEDY, temperature=0.7 * (index % 2), seed=index, max_tokens=20 + index)
    engine.admit(f"{index}", prompt, len(prompt), params)


def admit_ending(engine: Engine, index: int, prompt: list[int]) -> None:
    stops = tuple(range(index, 97, 11))
    params = replace(GREEDY, temperature=1.0, seed=index, max_tokens=60, stop_token_ids=stops)
    engine.admit(f"{index}", prompt, len(prompt), params)


def admit_held(engine: Engine, index: int, prompt: list[int]) -> None:
    engine.admit(f"{index}", prompt, len(prompt), GREEDY, stop_after=1 + index)


def admit_awaited(engine: Engine, index: int, prompt: list[int]) -> None:
    engine.admit(f"{index}", prompt, len(prompt), GREEDY, inter_token_us=1e9 if index % 2 else math.inf)


def admit_ruled(engine: Engine, index: int, prompt: list[int]) -> None:
    params = replace(FANCY, seed=index) if index % 3 == 0 else replace(GREEDY, seed=index)
    engine.admit(f"{index}", prompt, len(prompt), params)


def admit_shared(engine: Engine, index: int, prompt: list[int]) -> None:
    engine.admit(f"{index}", prompt, len(prompt), GREEDY, share=TenantShare(f"tenant-{index % 3}", 1))


def run(model_dir: Path, admit: Admit) -> dict[str, tuple[list[tuple[int, int]], str | None, int]]:
    """Return by key tokens with their positions, why it ended, and how far it is computed while it is held.

    Which steps bring them depends on how long steps take.
    """
    engine = make_engine(model_dir, kv_blocks=160, max_sequences=NUM_PROMPTS, max_batch_tokens=40)
    engine.limit_ngrams(0)
    waiting = list(enumerate(prompts(NUM_PROMPTS, 97, longest=30)))
    tokens: dict[str, list[tuple[int, int]]] = {f"{index}": [] for index, _ in waiting}
    reasons: dict[str, str | None] = {}
    while waiting or engine.has_work:
        for index, prompt in waiting[:2]:
            admit(engine, index, prompt)
        del waiting[:2]
        for output in engine.step().outputs:
            tokens[output.key] += enumerate(output.token_ids, output.position)
            reasons[output.key] = output.finish_reason
        engine.check()
        for sequence in engine._scheduler.sequences.values():
            assert sequence.prefilling or sequence.num_uncomputed == 1
            assert sequence.due_us == math.inf or sequence.inter_token_us < math.inf or sequence.prefilling
    computed = {key: sequence.num_computed for key, sequence in engine._scheduler.sequences.items()}
    engine.close()
    return {key: (drawn, reasons[key], computed.get(key, 0)) for key, drawn in tokens.items()}


@pytest.mark.parametrize(
    "admit", [admit_plain, admit_ending, admit_held, admit_awaited, admit_ruled, admit_shared]
)
def test_rows_bring_the_same_in_one_loop_and_one_by_one(
    model_dir: Path, admit: Admit, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = run(model_dir, admit)
    monkeypatch.setattr(Scheduler, "advances_plainly", ONE_BY_ONE)
    assert run(model_dir, admit) == together


def test_most_steps_of_many_streams_are_plain(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=160)
    engine.limit_ngrams(0)
    for index, prompt in enumerate(prompts(4, 97)):
        admit_plain(engine, index, prompt)
    engine.step()
    assert engine._scheduler.schedule().num_plain == 4
    engine.close()


def test_columns_are_the_fields_of_inputs() -> None:
    inputs = [ModelInput([5], 7, ((1,),), 1), ModelInput([6, 7], 0, ((2,),), 0)]
    columns = ModelColumns.of(inputs)
    assert columns.token_ids == [[5], [6, 7]]
    assert columns.num_logits == [1, 0]
    assert columns.adapters == [None, None]
