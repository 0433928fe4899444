"""Adapters against PEFT on every family, and rows of several of them in one step against each alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shared.engine import Engine
from shared.engine.batch import Batch, PackedAdapter, Span
from shared.engine.native.library import library
from tests.support.adapters import ALL_MODULES, peft_adapter, save_adapter
from tests.support.engine import (
    BACKENDS,
    FAMILIES,
    make_engine,
    oracle,
    oracle_logits,
    save_random_model,
    save_shape,
)
from tests.support.engine_families import SHAPES
from tests.support.gguf_files import GgufModel

TOLERANCE = 1e-4
needs_kernels = pytest.mark.skipif(library() is None, reason="the kernels were not built")
MODULES = (*ALL_MODULES, "qkv_proj", "gate_up_proj")


def prompt_of(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, 97, (length,), generator=generator).tolist()
    return ids


def linears(model: nn.Module) -> list[str]:
    """The kinds of linear maps of a model that can have adapters; PEFT takes experts for their dense kin."""
    sparse = any("experts" in name for name, _ in model.named_modules())
    found = {
        name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    return sorted(found & set(ALL_MODULES[:4] if sparse else MODULES))


@pytest.mark.thorough(
    but="llama | gemma3 | phi3 | qwen3 moe | gpt-oss | olmo2 | glm4 moe | cohere2 | smollm3"
)
@pytest.mark.parametrize("name", [name for name in FAMILIES if not SHAPES[name].is_latent])
def test_logits_equal_those_of_peft_on_every_family(name: str, tmp_path: Path) -> None:
    folder, prompt = FAMILIES[name](tmp_path / "model"), prompt_of(90)
    base = oracle(folder)
    plain = oracle_logits(base, prompt)
    adapted = peft_adapter(base, tmp_path / "adapter", r=3, lora_alpha=5, target_modules=linears(base))
    expected = oracle_logits(adapted, prompt)
    assert (plain - expected).abs().max() > 0.1
    for backend in BACKENDS:
        engine = make_engine(folder, backend=backend, max_model_len=SHAPES[name].max_model_len)
        engine.load_adapter("a", str(tmp_path / "adapter"))
        assert (engine.logits(prompt, "a") - expected).abs().max() <= TOLERANCE, backend
        assert (engine.logits(prompt) - plain).abs().max() <= TOLERANCE, backend


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["k_proj"], "r": 1},
        {"target_modules": ["q_proj", "v_proj"], "r": 7, "lora_alpha": 3},
        {"target_modules": "all-linear", "r": 33, "use_rslora": True},
        {"target_modules": r".*\.(1|2)\.mlp\.(up|down)_proj"},
        {
            "target_modules": ["o_proj", "up_proj"],
            "layers_to_transform": [0, 2],
            "init_lora_weights": "gaussian",
        },
        {
            "target_modules": list(ALL_MODULES),
            "rank_pattern": {"v_proj": 2, "model.layers.1.mlp.up_proj": 9},
            "alpha_pattern": {r"^model\.layers\.0\.self_attn\.v_proj": 3, "mlp.gate_proj": 40},
        },
        {"target_modules": ["q_proj", "down_proj"], "exclude_modules": ["model.layers.1.mlp.down_proj"]},
    ],
    ids=str,
)
def test_every_way_to_say_which_modules_have_which_rank_and_scale(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    folder, prompt = save_random_model(tmp_path / "model"), prompt_of(40)
    expected = oracle_logits(peft_adapter(oracle(folder), tmp_path / "adapter", **fields), prompt)
    for backend in BACKENDS:
        engine = make_engine(folder, backend=backend)
        engine.load_adapter("a", str(tmp_path / "adapter"))
        assert (engine.logits(prompt, "a") - expected).abs().max() <= TOLERANCE, backend


@pytest.mark.parametrize(("name", "type_name"), [("llama", "F32"), ("phi3", "F32"), ("llama", "Q8_0")])
def test_over_a_gguf_file_logits_equal_those_of_peft(name: str, type_name: str, tmp_path: Path) -> None:
    """Its queries and keys are stored in another order; an adapter's are in that of transformers."""
    fields = dict(SHAPES[name].fields)
    if type_name != "F32":  # rows are whole blocks
        fields |= {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    checkpoint = save_random_model(tmp_path / "model", SHAPES[name].config_class, **fields)
    model, file, prompt = GgufModel.of(checkpoint), tmp_path / "model.gguf", prompt_of(40)
    ends = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    base = model.oracle(model.write(file, type_name, tokenizer=ends))
    expected = oracle_logits(
        peft_adapter(base, tmp_path / "adapter", r=3, target_modules=linears(base)), prompt
    )
    for backend in BACKENDS:
        engine = make_engine(file, backend=backend, dtype="float32", quantization="dense")
        engine.load_adapter("a", str(tmp_path / "adapter"))
        assert (engine.logits(prompt, "a") - expected).abs().max() <= TOLERANCE, backend


@needs_kernels
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_over_quantized_weights_both_backends_add_the_same(quantization: str, tmp_path: Path) -> None:
    folder, prompt = save_random_model(tmp_path / "model"), prompt_of(40)
    logits = {}
    for backend in BACKENDS:
        engine = make_engine(folder, backend=backend, quantization=quantization)
        save_adapter(tmp_path / "adapter", engine.model_config)
        engine.load_adapter("a", str(tmp_path / "adapter"))
        logits[backend] = engine.logits(prompt, "a")
        assert (logits[backend] - engine.logits(prompt)).abs().max() > 0.1
    # A rounded activation now and then falls to the other side.
    assert (logits["native"] - logits["torch"]).abs().mean() <= 0.01


@needs_kernels
def test_bfloat16_stays_within_its_own_rounding(tmp_path: Path) -> None:
    folder = save_shape(tmp_path / "model", SHAPES["llama"], torch.bfloat16)
    prompt = prompt_of(60)
    modules = list(ALL_MODULES)
    exact = oracle_logits(peft_adapter(oracle(folder), tmp_path / "a", target_modules=modules), prompt)
    rounded = oracle(folder, torch.bfloat16)
    theirs = oracle_logits(peft_adapter(rounded, tmp_path / "b", target_modules=modules), prompt)
    engine = make_engine(folder, backend="native")
    engine.load_adapter("a", str(tmp_path / "a"))
    ours = engine.logits(prompt, "a")
    assert (ours - exact).square().mean() <= 1.25**2 * (theirs - exact).square().mean()


# --- bit for bit ---

Sequences = Sequence[tuple[Sequence[int], PackedAdapter | None]]
POOL_SHARE = 8  # blocks of each sequence


def adapters_of(engine: Engine, folder: Path) -> list[PackedAdapter | None]:
    """Three that differ in ranks and modules, and none."""
    for name, rank, modules in (
        ("all", 16, ALL_MODULES),
        ("few", 3, ("k_proj", "down_proj")),
        ("odd", 37, ALL_MODULES[:5]),
    ):
        save_adapter(folder / name, engine.model_config, seed=rank, rank=rank, modules=modules)
        engine.load_adapter(name, str(folder / name))
    return [*(engine._adapters.find(name).packed for name in ("all", "few", "odd")), None]  # type: ignore[union-attr]


def in_steps(engine: Engine, sequences: Sequences, sizes: Sequence[int]) -> list[torch.Tensor]:
    """float32 [tokens, vocab] of each sequence, all in one batch, `sizes` tokens of each at a time."""
    rows: list[list[torch.Tensor]] = [[] for _ in sequences]
    start = 0
    for size in sizes:
        spans: list[Span] = []
        ids: list[int] = []
        for number, (tokens, adapter) in enumerate(sequences):
            blocks = range(number * POOL_SHARE, (number + 1) * POOL_SHARE)
            spans.append(Span(start, size, [blocks], adapter))
            ids += tokens[start : start + size]
        logits = engine._model.forward(Batch(ids, spans, range(len(ids)))).clone()
        for number, own in enumerate(torch.split(logits, size)):
            rows[number].append(own)
        start += size
    return [torch.cat(each) for each in rows]


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invariant_5_rows_of_different_adapters_are_bitwise_what_each_is_alone(
    dtype: torch.dtype, quantization: str, threads: int, tmp_path: Path
) -> None:
    """However the prompts were chunked; those without an adapter too."""
    folder = save_random_model(tmp_path / "model", dtype=dtype)
    engine = make_engine(folder, backend="native", quantization=quantization, threads=threads)
    adapters = adapters_of(engine, tmp_path)
    sequences = [(prompt_of(100, seed), adapters[seed % 4]) for seed in range(6)]
    together = in_steps(engine, sequences, [37, 1, 1, 4, 20, 37])
    for sequence, logits in zip(sequences, together, strict=True):
        assert torch.equal(logits, in_steps(engine, [sequence], [100])[0])


@needs_kernels
def test_logits_that_few_rows_have_are_those_of_the_right_adapter(tmp_path: Path) -> None:
    """The last layer computes only rows that a logit depends on: theirs are not those of the batch."""
    engine = make_engine(save_random_model(tmp_path / "model"), backend="native")
    adapters = adapters_of(engine, tmp_path)
    prompts = [prompt_of(20, seed) for seed in range(4)]
    alone = [
        in_steps(engine, [(ids, adapter)], [20])[0][-1]
        for ids, adapter in zip(prompts, adapters, strict=True)
    ]
    spans = [
        Span(0, 20, [range(number * POOL_SHARE, (number + 1) * POOL_SHARE)], adapter)
        for number, adapter in enumerate(adapters)
    ]
    for chosen in ([0, 1, 2, 3], [1, 3], [3], [2]):
        batch = Batch(
            [each for ids in prompts for each in ids], spans, [20 * number + 19 for number in chosen]
        )
        logits = engine._model.forward(batch)
        for row, number in zip(logits, chosen, strict=True):
            assert torch.equal(row, alone[number])
