"""The C++ backend against transformers on every family, and bit for bit against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, MistralConfig

from shared.engine import Engine
from shared.engine.batch import Batch, Span
from shared.engine.memory.kv_pool import BLOCK_TOKENS
from shared.engine.native.library import library
from shared.engine.native.model import NativeModel
from shared.errors import InvalidRequest
from tests.support.engine import (
    FAMILIES,
    FANCY,
    generate,
    logits_by_path,
    make_engine,
    oracle,
    oracle_logits,
    oracle_logits_of,
    prompts,
    save_random_model,
    save_shape,
)
from tests.support.engine_families import SHAPES

TOLERANCE = 1e-4
ONE_STEP = 1e-3
LONG_PROMPT = 2 * 2048 + 77
"""Keys of two partitions and a part of one (`attention_items.h`)."""
LONG_BLOCKS = -(-LONG_PROMPT // BLOCK_TOKENS)

STORED = list(zip(("none", "int8", "int4") * 2, ("auto", "int8") * 3, (1, 1, 1, 2, 2, 2), strict=True))
"""Every way to store weights with every way to store KV; each of both meets one thread and several."""

pytestmark = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)


def native_engine(folder: Path, **fields: Any) -> Engine:
    return make_engine(folder, **{"backend": "native", **fields})


def prompt_of(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, 97, (length,), generator=generator).tolist()
    return ids


@pytest.mark.parametrize("name", [name for name in FAMILIES if not SHAPES[name].is_latent])
def test_logits_equal_those_of_transformers_on_every_path(name: str, tmp_path: Path) -> None:
    folder, prompt = FAMILIES[name](tmp_path), prompt_of(90)
    expected = oracle_logits(oracle(folder), prompt)
    engine = native_engine(folder, max_model_len=SHAPES[name].max_model_len)
    for path, logits in logits_by_path(engine._model, prompt, prompt_of(100, seed=2)).items():
        assert (logits - expected).abs().max() <= TOLERANCE, path


@pytest.mark.thorough(but="gemma3 | glm4 moe | gpt-oss")
@pytest.mark.parametrize(
    "name", ["llama", "gemma2", "gemma3", "olmo2", "mixtral", "qwen3 moe", "qwen2 moe", "glm4 moe", "gpt-oss"]
)
def test_bfloat16_stays_within_its_own_rounding(name: str, tmp_path: Path) -> None:
    folder = save_shape(tmp_path, SHAPES[name], torch.bfloat16)
    engine = native_engine(folder)
    asked = prompts(24, 97)  # many: of few rows a near-tie of a router decides
    exact, rounded = (
        oracle_logits_of(oracle(folder, dtype), asked) for dtype in (torch.float32, torch.bfloat16)
    )
    ours = [
        (engine.logits(ids) - right).square().mean().sqrt() for ids, right in zip(asked, exact, strict=True)
    ]
    theirs = [(near - right).square().mean().sqrt() for near, right in zip(rounded, exact, strict=True)]
    assert sum(ours) <= 1.25 * sum(theirs)


@pytest.mark.thorough(
    but="llama-int8-int8-1 | llama-none-int8-2 | llama-int4-auto-1 | llama-int8-auto-2 | "
    "llama-int4-int8-2 | gemma2-none-auto-1 | gemma2-int4-int8-2 | gemma2-int8-auto-2 | "
    "gpt-oss-int4-auto-1 | gpt-oss-none-int8-2 | gpt-oss-int8-int8-1 | qwen3 moe-int8-int8-1 | "
    "qwen3 moe-none-int8-2 | qwen2 moe-int4-auto-1 | "
    "glm4 moe, chosen in groups, norms on heads-int8-auto-2"
)
@pytest.mark.parametrize(("quantization", "kv_dtype", "threads"), STORED)
@pytest.mark.parametrize(
    "name",
    ["llama", "gemma2", "qwen3 moe", "qwen2 moe", "glm4 moe, chosen in groups, norms on heads", "gpt-oss"],
)
def test_invariant_5_logits_are_bitwise_equal_on_every_path(
    name: str, quantization: str, kv_dtype: str, threads: int, tmp_path: Path
) -> None:
    """Whole prompt, chunks, decode and draft verification, alone and in batches."""
    folder = save_shape(tmp_path, SHAPES[name], torch.bfloat16)
    engine = native_engine(folder, quantization=quantization, kv_dtype=kv_dtype, threads=threads)
    by_path = logits_by_path(engine._model, prompt_of(90), prompt_of(100, seed=2))
    whole = by_path.pop("whole prompt")
    for path, logits in by_path.items():
        assert torch.equal(logits, whole), path


@pytest.mark.parametrize("head_dim", [32, 128])
@pytest.mark.parametrize("kv_heads", [1, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invariant_5_long_contexts_are_bitwise_equal_on_every_path(
    dtype: torch.dtype, kv_heads: int, head_dim: int, tmp_path: Path
) -> None:
    """Many tiles of keys, met by one row of a head at a time and by many."""
    folder = save_random_model(
        tmp_path,
        dtype=dtype,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=512,
    )
    engine = native_engine(folder, kv_blocks=64)
    by_path = logits_by_path(engine._model, prompt_of(500), prompt_of(400, seed=2))
    whole = by_path.pop("whole prompt")
    for path, logits in by_path.items():
        assert torch.equal(logits, whole), path


def long_model(folder: Path, window: int | None, kv_heads: int, *, sinks: bool) -> Path:
    """With sinks, each of them takes about half of what a row of several thousand keys gives."""
    fields: dict[str, Any] = {
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": kv_heads,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "sliding_window": window,
    }
    if not sinks:
        return save_random_model(folder, MistralConfig, **fields)
    fields["layer_types"] = ["full_attention" if window is None else "sliding_attention"] * 2
    save_random_model(folder, GptOssConfig, num_local_experts=2, num_experts_per_tok=1, **fields)
    tensors = load_file(folder / "model.safetensors")
    raised = {name: tensor + 5 if name.endswith("sinks") else tensor for name, tensor in tensors.items()}
    save_file(raised, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.thorough(but="None-1-False | 2500-3-False")
@pytest.mark.parametrize(
    ("window", "kv_heads", "sinks"), [(None, 1, False), (None, 3, True), (2500, 1, True), (2500, 3, False)]
)
def test_invariant_5_rows_whose_keys_threads_share_are_bitwise_equal_on_every_path(
    window: int | None, kv_heads: int, sinks: bool, tmp_path: Path
) -> None:
    """Contexts of several partitions: one thread, or several, each with some of a row's keys."""
    folder = long_model(tmp_path, window, kv_heads, sinks=sinks)
    tokens, beside = prompt_of(LONG_PROMPT), prompt_of(41, seed=2)
    own, other = range(1, 2 * LONG_BLOCKS, 2), range(0, 2 * LONG_BLOCKS, 2)
    models = {
        threads: native_engine(folder, threads=threads, kv_blocks=2 * LONG_BLOCKS)._model
        for threads in (1, 2, 5)
    }
    last = LONG_PROMPT - 9
    whole = models[1].forward(Batch(tokens, [Span(0, LONG_PROMPT, [own])], range(last, LONG_PROMPT))).clone()
    torch_model = make_engine(folder, backend="torch", kv_blocks=2 * LONG_BLOCKS)._model
    for start in range(0, LONG_PROMPT, 512):
        chunk = tokens[start : start + 512]
        right = torch_model.forward(Batch(chunk, [Span(start, len(chunk), [own])], range(len(chunk))))
    assert (whole - right[-9:]).abs().max() <= TOLERANCE
    for threads, model in models.items():
        for ids, blocks in ((tokens, own), (beside, other)):
            model.forward(Batch(ids, [Span(0, len(ids), [blocks])], [len(ids) - 1]))
        verified = Batch(tokens[last:], [Span(last, 9, [own])], range(9))
        assert torch.equal(model.forward(verified), whole), f"drafts, {threads} threads"
        for row in range(9):
            at = last + row
            alone = Batch(tokens[at : at + 1], [Span(at, 1, [own])], [0])
            assert torch.equal(model.forward(alone)[0], whole[row]), f"decode, {threads} threads"
            short = Batch([beside[40], tokens[at]], [Span(40, 1, [other]), Span(at, 1, [own])], [1])
            assert torch.equal(model.forward(short)[0], whole[row]), f"beside others, {threads} threads"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "glm4 moe"])
def test_quantized_weights_give_what_the_torch_backend_gives(
    name: str, quantization: str, tmp_path: Path
) -> None:
    folder, prompt = save_shape(tmp_path, SHAPES[name], torch.float32), prompt_of(60)
    ours = native_engine(folder, quantization=quantization).logits(prompt)
    theirs = native_engine(folder, quantization=quantization, backend="torch").logits(prompt)
    # A number of a row on the border of two steps, of which there are thousands, may fall to either side.
    assert (ours[0] - theirs[0]).abs().max() <= ONE_STEP
    # Later rows see many values: one on the border of two codes may fall to either side here and there.
    assert (ours - theirs).abs().mean() <= 0.02 * theirs.std()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_kv_gives_what_the_torch_backend_gives(dtype: str, tmp_path: Path) -> None:
    folder, prompt = save_random_model(tmp_path), prompt_of(100)
    ours = native_engine(folder, kv_dtype="int8", dtype=dtype).logits(prompt)
    theirs = native_engine(folder, kv_dtype="int8", dtype=dtype, backend="torch").logits(prompt)
    bound = 1e-2 if dtype == "float32" else 0.05
    assert (ours - theirs).abs().mean() <= bound * theirs.std()


@pytest.mark.parametrize("vocab", [15, 17, 32, 47, 49, 63, 65])
def test_every_logit_is_written_of_a_vocabulary_that_fills_no_panel(vocab: int, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, vocab_size=vocab, num_hidden_layers=1)
    prompt = [token_id % vocab for token_id in prompt_of(13)]
    model = native_engine(folder)._model
    assert isinstance(model, NativeModel)
    model._logits = torch.full((len(prompt), vocab), torch.nan)
    blocks = range(BLOCK_TOKENS)
    logits = model.forward(Batch(prompt, [Span(0, len(prompt), [blocks])], range(len(prompt))))
    assert (logits - oracle_logits(oracle(folder), prompt)).abs().max() <= TOLERANCE


def test_a_tied_model_keeps_its_embedding_in_the_head_alone(tmp_path: Path) -> None:
    engine = native_engine(save_random_model(tmp_path, tie_word_embeddings=True))
    assert isinstance(engine._model, NativeModel)
    untied = native_engine(save_random_model(tmp_path / "untied"))
    assert isinstance(untied._model, NativeModel)
    assert engine._model.weight_bytes == untied._model.weight_bytes


def test_what_it_draws_does_not_depend_on_the_threads(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    one, two = native_engine(folder, threads=1), native_engine(folder, threads=2)
    assert generate(one, prompt_of(40), FANCY) == generate(two, prompt_of(40), FANCY)


def test_asking_for_it_where_it_was_not_built_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random_model(tmp_path)
    monkeypatch.setattr("shared.engine.backends.library", lambda: None)
    with pytest.raises(InvalidRequest, match="C\\+\\+ compiler"):
        native_engine(folder)
    assert not isinstance(make_engine(folder)._model, NativeModel)
