from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.engine import LLM
from tests.support.engine import (
    admit,
    drive,
    generate,
    logits_by_path,
    make_engine,
    oracle,
    oracle_logits,
    prompts,
    save_random_model,
    trained_model,
)


def test_the_trained_model_matches_transformers_up_to_its_context_limit() -> None:
    folder = trained_model()
    if folder is None:
        pytest.skip("the shared test data is not here")
    llm = LLM(folder)
    (prompt,) = prompts(1, 512, longest=1)
    prompt = (prompt * 512)[:512]
    assert (llm.logits(prompt) - oracle_logits(oracle(folder), prompt)).abs().max() <= 1e-4


def test_a_bfloat16_checkpoint_runs_in_float32_when_asked(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, dtype=torch.bfloat16)
    prompt = prompts(1, 97)[0]
    difference = LLM(folder, dtype="float32").logits(prompt) - oracle_logits(oracle(folder), prompt)
    assert difference.abs().max() <= 1e-4


@pytest.mark.thorough(but="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_invariant_5_every_difference_of_the_default_mode_from_the_deterministic_is_a_near_tie(
    dtype: str, tmp_path: Path
) -> None:
    """Greedy tokens of a mixed batch in the default mode, of each alone in the deterministic one.

    At the first difference the top two logits lie no further apart than rounding moves them: twice the
    largest difference measured between the two modes' logits of the same tokens.
    """
    folder = save_random_model(tmp_path, dtype=getattr(torch, dtype))
    default = make_engine(folder, backend="torch", max_batch_tokens=24, kv_blocks=128)
    exact = make_engine(folder, backend="torch", deterministic=True, kv_blocks=128)
    asked = {str(number): ids for number, ids in enumerate(prompts(8, 97, seed=6))}
    for key, ids in asked.items():
        admit(default, key, ids)
    together = drive(default, {key: list(ids) for key, ids in asked.items()})
    limit = {"float32": 1e-4, "bfloat16": 0.2}[dtype]
    for key, ids in asked.items():
        alone = generate(exact, ids)
        differing = [
            at for at, pair in enumerate(zip(alone, together[key], strict=True)) if len(set(pair)) > 1
        ]
        same = ids + alone[: differing[0] if differing else len(alone)]
        reference = exact.logits(same)
        mixed = logits_by_path(default._model, same, asked["0"])
        rounding = max((logits - reference).abs().max().item() for logits in mixed.values())
        assert rounding <= limit
        if differing:
            highest = reference[-1].topk(2).values
            assert (highest[0] - highest[1]).item() <= 2 * rounding
            assert together[key][differing[0]] in reference[-1].topk(2).indices.tolist()
