"""A model shared by two processes against the same model in one, and against transformers."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from shared.engine.batch import Batch, Model, Span
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import LayerConfig, ModelConfig, MoeConfig, load_model_config
from shared.engine.loading.linear import DenseLinear
from shared.engine.loading.model_config import LatentConfig
from shared.engine.loading.quantize import quantize
from shared.engine.loading.weights import load_weights
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.tensor_parallel.parallel_model import ParallelKvPool, ParallelModel, parallel_layout
from shared.engine.tensor_parallel.rank import check_parallel
from shared.engine.tensor_parallel.shards import shard_config, shard_layer
from shared.engine.tensor_parallel.wire import CopyBlock, Forward, encode_copy, encode_forward, read_command
from shared.engine.torch_backend.model import TorchModel
from shared.errors import InvalidRequest, NotFound, ProtocolError, Unavailable

torch.set_num_threads(1)
NUM_BLOCKS, MAX_LEN, VOCAB = 12, 96, 67
BLOCKS = [4, 1, 7, 2]
OTHER_BLOCKS = [3, 9, 0]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_LEN,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    ),
    "glm4 moe": lambda: Glm4MoeForCausalLM(
        Glm4MoeConfig(**SHAPE, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
    ),
}


def save_model(folder: Path, name: str) -> Any:
    """The transformers model with random weights, saved to `folder`."""
    torch.manual_seed(3)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in parameter_name else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


def engine_config(folder: Path, **fields: Any) -> EngineConfig:
    return EngineConfig(str(folder), backend="torch", tensor_parallel=2, **fields)


@contextmanager
def shared_by_two(folder: Path, **fields: Any) -> Iterator[ParallelModel]:
    config, model_config = engine_config(folder), load_model_config(folder)
    pool = ParallelKvPool(parallel_layout(model_config, config), NUM_BLOCKS)
    model = ParallelModel(config, model_config, pool, MAX_LEN, **fields)
    try:
        yield model
    finally:
        model.close()


def in_one(folder: Path) -> TorchModel:
    model_config = load_model_config(folder)
    weights = load_weights(folder, model_config, torch.device("cpu"))
    return TorchModel(model_config, weights, KvPool(KvLayout.of(model_config, "auto"), NUM_BLOCKS), MAX_LEN)


def step(model: Model, *spans: tuple[int, list[int], list[int]], **fields: Any) -> Tensor:
    """`spans`: (start, token ids, blocks); logits of every row."""
    token_ids = [token_id for _, ids, _ in spans for token_id in ids]
    batch = Batch(
        token_ids, [Span(at, len(ids), [own]) for at, ids, own in spans], range(len(token_ids)), **fields
    )
    return model.forward(batch)


def all_logits(model: Model, tokens: list[int]) -> Tensor:
    """Through a prompt in two chunks, decode beside another prompt, and drafts: [len(tokens), vocab]."""
    other = [(5 * at + 3) % VOCAB for at in range(25)]
    parts = [
        step(model, (0, tokens[:20], BLOCKS)),
        step(model, (20, tokens[20:39], BLOCKS), (0, other, OTHER_BLOCKS))[:19],
        step(model, (25, [8], OTHER_BLOCKS), (39, tokens[39:40], BLOCKS))[1:],
        step(model, (40, tokens[40:], BLOCKS), (26, [9], OTHER_BLOCKS))[:-1],
    ]
    return torch.cat(parts)


def greedy_tokens(model: Any, count: int) -> list[int]:
    """Prompt and greedy continuation by transformers, `count` tokens in all."""
    prompt = torch.tensor([[(7 * at + 1) % VOCAB for at in range(39)]])
    with torch.inference_mode():
        out: Tensor = model.generate(prompt, do_sample=False, max_length=count, eos_token_id=None)
    return out[0].tolist()


@pytest.mark.thorough(but="llama | mixtral")
@pytest.mark.parametrize("name", MODELS)
def test_two_processes_compute_what_one_and_transformers_do(tmp_path: Path, name: str) -> None:
    oracle = save_model(tmp_path, name)
    tokens = greedy_tokens(oracle, 46)
    with shared_by_two(tmp_path) as model:
        ours = all_logits(model, tokens)
        heard: list[int] = []
        step(model, (0, [5, 6], [11]), on_kv_written=heard.append)
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0].float()
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours, all_logits(in_one(tmp_path), tokens), atol=1e-5, rtol=1e-5)
    assert ours[38:-1].argmax(-1).tolist() == tokens[39:]
    assert heard == [0, 1]


def test_a_copied_block_is_copied_in_every_process(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    config, model_config = engine_config(tmp_path), load_model_config(tmp_path)
    pool = ParallelKvPool(parallel_layout(model_config, config), NUM_BLOCKS)
    model = ParallelModel(config, model_config, pool, MAX_LEN)
    try:
        step(model, (0, [5, 6, 7], [4]))
        pool.copy_block(4, 8)
        assert torch.equal(step(model, (3, [9], [4])), step(model, (3, [9], [8])))
    finally:
        model.close()


def test_a_follower_that_dies_fails_the_step_with_a_sentence_and_close_leaves_nothing(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with shared_by_two(tmp_path) as model:
        (follower,) = model._followers
        step(model, (0, [5, 6], [4]))
        follower.kill()
        with pytest.raises(Unavailable, match="tensor-parallel process ended"):
            step(model, (2, [7], [4]))
        with pytest.raises(Unavailable, match="restart the engine"):
            step(model, (2, [7], [4]))
    assert follower.poll() is not None


def test_a_follower_that_hangs_fails_the_step_when_its_time_is_up(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with shared_by_two(tmp_path, step_s=1.0) as model:
        (follower,) = model._followers
        os.kill(follower.pid, signal.SIGSTOP)
        with pytest.raises(Unavailable, match="did not answer within 1 s"):
            step(model, (0, [5, 6], [4]))
        os.kill(follower.pid, signal.SIGCONT)


def test_a_step_that_a_hanging_follower_does_not_even_read_fails_too(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with shared_by_two(tmp_path, step_s=1.0) as model:
        (follower,) = model._followers
        os.kill(follower.pid, signal.SIGSTOP)
        more_than_a_pipe_holds = Span(0, 1, [range(1 << 18)])
        with pytest.raises(Unavailable, match="took no step for 1 s"):
            model.forward(Batch([5], [more_than_a_pipe_holds], [0]))
        os.kill(follower.pid, signal.SIGCONT)


def test_a_start_that_fails_leaves_no_process_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", "llama")
    config, model_config = engine_config(tmp_path / "model"), load_model_config(tmp_path / "model")
    pool = ParallelKvPool(parallel_layout(model_config, config), NUM_BLOCKS)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    # An unclosed process would be a ResourceWarning, which fails the test.
    with pytest.raises((Unavailable, NotFound)):
        ParallelModel(replace(config, model_dir=str(tmp_path / "absent")), model_config, pool, MAX_LEN)
    assert not list((tmp_path / "temporary").iterdir())


# --- shares ---


def tiny_config(tmp_path: Path, **fields: Any) -> ModelConfig:
    save_model(tmp_path, "llama")
    return replace(load_model_config(tmp_path), **fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_kv_heads": 1}, "does not divide the model's 1 key-value heads"),
        ({"intermediate_size": 47}, "does not divide the model's 47 MLP's inner size"),
        ({"qk_norm": "all"}, "normalises all heads as one vector"),
        ({"attention_sinks": True}, "has attention sinks, which tensor_parallel does not compute"),
        ({"latent": LatentConfig(8, 4, 2, 4)}, "has multi-head latent attention, which tensor_parallel"),
        (
            {"layers": (LayerConfig(None, moe=MoeConfig(4, 2, 24, normalize=True, expert_bias=True)),)},
            "has experts with biases, which tensor_parallel does not compute",
        ),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused(
    tmp_path: Path, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        shard_config(tiny_config(tmp_path, **fields), 2)


def test_offloading_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="leave offload_memory_mb 0"):
        check_parallel(engine_config(tmp_path, offload_memory_mb=1), tiny_config(tmp_path))


def test_a_share_of_the_kv_cannot_be_transferred(tmp_path: Path) -> None:
    layout = parallel_layout(tiny_config(tmp_path), engine_config(tmp_path))
    with pytest.raises(InvalidRequest, match="cannot be transferred"):
        ParallelKvPool(layout, 2).block_view(0, 0)


def test_quantized_columns_are_cut_at_a_group_border_only(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    layer = load_weights(tmp_path, config, torch.device("cpu")).layers[0]
    assert isinstance(layer.output, DenseLinear)
    cut = replace(layer, output=quantize(layer.output, 8, 32))
    with pytest.raises(InvalidRequest, match="cannot be cut at column 16"):
        shard_layer(cut, config, 0, 2)


@pytest.mark.parametrize("with_minima", [False, True])
def test_shares_of_a_quantized_map_compute_its_parts(tmp_path: Path, with_minima: bool) -> None:
    config = tiny_config(tmp_path)
    layer = load_weights(tmp_path, config, torch.device("cpu")).layers[0]
    wide = quantize(DenseLinear(torch.randn(32, 64)), 8, 32)
    qkv = quantize(DenseLinear(torch.randn(128, 32)), 8, 32)
    if with_minima:
        wide = replace(wide, zeros=torch.zeros_like(wide.zeros), minima=torch.randn(32, 2).half())
        qkv = replace(qkv, zeros=torch.zeros_like(qkv.zeros), minima=torch.randn(128, 1).half())
    whole = replace(layer, output=wide, qkv=qkv)
    wide_heads = replace(config, head_dim=16)
    shares = [shard_layer(whole, wide_heads, rank, 2) for rank in (0, 1)]
    rows = torch.randn(3, 64)
    parts = [share.output(rows[:, 32 * rank :][:, :32]) for rank, share in enumerate(shares)]
    torch.testing.assert_close(parts[0] + parts[1], wide(rows))
    queries = [share.qkv(rows[:, :32])[:, :32] for share in shares]
    torch.testing.assert_close(torch.cat(queries, 1), qkv(rows[:, :32])[:, :64])


# --- wire ---


def test_a_batch_comes_through_the_pipe_as_it_was() -> None:
    batch = Batch([5, 6, 7], [Span(0, 2, [[4], [7]]), Span(16, 1, [[3, 9], [-1, 5]])], [1, 2], print)
    stream = io.BytesIO(encode_forward(batch) + encode_copy(3, 8))
    assert read_command(stream) == Forward(
        [5, 6, 7], [Span(0, 2, [[4], [7]]), Span(16, 1, [[3, 9], [-1, 5]])], listened=True
    )
    assert read_command(stream) == CopyBlock(3, 8)
    assert read_command(stream) is None


@pytest.mark.parametrize("cut", [4, 16, 60])
def test_a_command_that_ends_too_early_is_refused(cut: int) -> None:
    data = encode_forward(Batch([5, 6], [Span(0, 2, [[4]])], [1]))
    with pytest.raises(ProtocolError, match="ended inside"):
        read_command(io.BytesIO(data[:cut]))


@pytest.mark.parametrize("field", ["numbers", "rows", "spans", "groups", "span rows", "span blocks"])
def test_a_command_with_a_wrong_length_is_refused(field: str) -> None:
    places = {"numbers": 1, "rows": 2, "spans": 3, "groups": 4, "span rows": 9, "span blocks": 10}
    data = bytearray(encode_forward(Batch([5, 6], [Span(0, 2, [[4]])], [1])))
    position = places[field]
    data[8 * position : 8 * position + 8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(ProtocolError):
        read_command(io.BytesIO(bytes(data)))
