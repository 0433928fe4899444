"""Every family against transformers, in float32 and several odd shapes, on every path through the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from shared.engine import Engine, SamplingParams
from tests.support.engine import (
    FAMILIES,
    admit,
    drive,
    logits_by_path,
    make_engine,
    oracle,
    oracle_greedy,
    oracle_logits,
    oracle_logits_of,
    prompts,
    save_shape,
)
from tests.support.engine_families import SHAPES, Shape

TOLERANCE = 1e-4
NEW_TOKENS = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    folder: Path
    shape: Shape
    oracle: PreTrainedModel

    def engine(self, max_batch_tokens: int = 512) -> Engine:
        return make_engine(
            self.folder,
            max_batch_tokens=max_batch_tokens,
            max_model_len=self.shape.max_model_len,
            backend="torch",
        )

    def prompt(self, length: int, seed: int = 1) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        ids: list[int] = torch.randint(0, 97, (length,), generator=generator).tolist()
        return ids


@pytest.fixture(scope="module", params=list(FAMILIES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = FAMILIES[request.param](tmp_path_factory.mktemp("model"))
    return Case(folder, SHAPES[request.param], oracle(folder))


@pytest.mark.thorough(
    but="llama | llama, llama3 rope | mistral | ministral3 | qwen2 | qwen3 | qwen2 moe | qwen3 moe | "
    "mixtral | gemma2 | gemma3 | phi3 | phi3, longrope beyond its context | glm4 | glm4 moe | "
    "cohere2 | olmo2 | olmo3 | exaone4 | granite | granite 4 | smollm3 | gpt-oss | deepseek v2 | "
    "deepseek v3"
)
def test_logits_equal_those_of_transformers_on_every_path(case: Case) -> None:
    prompt = case.prompt(90)
    expected = oracle_logits(case.oracle, prompt)
    assert expected.std() > 0.5  # large enough that wrong arithmetic shows
    for path, logits in logits_by_path(case.engine()._model, prompt, case.prompt(100, seed=2)).items():
        assert (logits - expected).abs().max() <= TOLERANCE, path


@pytest.mark.thorough(but="llama | gemma3 | qwen3 moe | gpt-oss | deepseek v3 | smollm3")
def test_greedy_tokens_equal_those_of_transformers(case: Case) -> None:
    """Prompts in chunks and from the prefix cache, mixed with decoding and with drafts right and wrong."""
    engine = case.engine(max_batch_tokens=24)
    shortest = case.shape.min_prompt_tokens
    first, second = case.prompt(shortest + 3), case.prompt(shortest + 25, seed=2)
    third = second[: shortest + 20] + first[:4]
    asked = {"first": first, "second": second, "third": third}
    plain = case.engine()
    for key, ids in asked.items():
        admit(plain, key, ids, GREEDY)
    drawn_plainly = drive(plain, {key: list(ids) for key, ids in asked.items()})
    expected = {
        key: oracle_greedy(case.oracle, ids, NEW_TOKENS, drawn_plainly[key]) for key, ids in asked.items()
    }
    known = {key: list(ids) for key, ids in asked.items()}
    drawn: dict[str, list[int]] = {}

    def drafter(key: str, tokens: list[int]) -> list[int]:
        done = len(tokens) - len(asked[key])
        guesses = expected[key][done : done + 4]
        return guesses if done % 3 else [*guesses[:2], 0, 1]

    for keys in (["first", "second"], ["third"]):
        for key in keys:
            admit(engine, key, known[key], GREEDY)
        drawn.update(drive(engine, {key: known[key] for key in keys}, drafter))
    assert drawn == expected


@pytest.mark.thorough(but="llama | gemma3 | mixtral")
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "gemma2",
        "gemma3",
        "olmo2",
        "mixtral",
        "qwen3 moe",
        "qwen2 moe",
        "glm4 moe",
        "deepseek v2",
        "deepseek v3",
        "gpt-oss",
    ],
)
def test_bfloat16_stays_within_its_own_rounding(name: str, tmp_path: Path) -> None:
    """Against fp32 on the same bf16 weights, the engine errs no more than transformers in bf16 does."""
    folder = save_shape(tmp_path, SHAPES[name], torch.bfloat16)
    engine = make_engine(folder, backend="torch")
    asked = prompts(24, 97)  # many: of few rows a near-tie of a router decides
    exact, rounded = (
        oracle_logits_of(oracle(folder, dtype), asked) for dtype in (torch.float32, torch.bfloat16)
    )
    ours = [
        (engine.logits(ids) - right).square().mean().sqrt() for ids, right in zip(asked, exact, strict=True)
    ]
    theirs = [(near - right).square().mean().sqrt() for near, right in zip(rounded, exact, strict=True)]
    assert sum(ours) <= 1.25 * sum(theirs)


@pytest.mark.thorough(but="phi3-dtype0 | gemma2-dtype1 | mixtral-dtype0 | deepseek v3-dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "qwen2, late windows, tied",
        "phi3",
        "gemma2",
        "gemma3",
        "olmo2",
        "mixtral",
        "glm4 moe",
        "deepseek v3",
        "gpt-oss",
    ],
)
def test_deterministic_logits_of_a_row_are_bitwise_equal_on_every_path(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    engine = make_engine(save_shape(tmp_path, SHAPES[name], dtype), backend="torch", deterministic=True)
    (prompt,), (other,) = prompts(1, 97, seed=4, longest=60), prompts(1, 97, seed=5, longest=60)
    whole, *paths = logits_by_path(engine._model, prompt, other).values()
    assert all(torch.equal(logits, whole) for logits in paths)


def test_the_language_model_of_a_checkpoint_with_vision_computes_what_it_does_alone(tmp_path: Path) -> None:
    alone = save_shape(tmp_path / "alone", SHAPES["gemma3"])
    fields = json.loads((alone / "config.json").read_text())
    tensors = load_file(alone / "model.safetensors")
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(
        json.dumps(
            {"architectures": ["Gemma3ForConditionalGeneration"], "dtype": "float32", "text_config": fields}
        )
    )
    named = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**named, "vision_tower.embeddings.weight": torch.zeros(3)}, whole / "model.safetensors")
    prompt = prompts(1, 97)[0]
    engines = [make_engine(folder, backend="torch") for folder in (alone, whole)]
    assert torch.equal(engines[0].logits(prompt), engines[1].logits(prompt))
