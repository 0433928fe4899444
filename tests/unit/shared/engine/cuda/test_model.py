"""The GPU model, its kernels interpreted and its graphs plain calls, against the reference model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.engine.batch import Batch, Span
from shared.engine.block_table import NO_BLOCK
from shared.engine.cuda.model import CudaModel
from shared.engine.loading.config import LayerConfig, ModelConfig, MoeConfig, RopeConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights, ModelWeights, MoeMlp
from shared.engine.loading.linear import DenseLinear
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.torch_backend.model import TorchModel
from tests.support.engine import tables_in

torch.set_num_threads(1)
NUM_BLOCKS, POSITIONS, VOCAB, HIDDEN, INNER, HEAD_DIM = 24, 128, 61, 32, 40, 12
GRAPH_ROWS = 6
ROPE = RopeConfig(theta=10000.0, rotary_dim=HEAD_DIM)
ONE_LAYER = (LayerConfig(ROPE),)
ONE_PAIR: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1}
"""Kernels are interpreted: what a second layer or a second KV head would show, others do."""
SMALL: dict[str, Any] = {"layers": ONE_LAYER, **ONE_PAIR}


def model_config(**fields: Any) -> ModelConfig:
    base = ModelConfig(
        architecture="Test",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_heads=4,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        layers=(LayerConfig(ROPE), LayerConfig(ROPE)),
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(),
    )
    return replace(base, **fields)


def random_weights(config: ModelConfig, seed: int = 0) -> ModelWeights:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32

    def linear(rows: int, columns: int, bias: bool = False) -> DenseLinear:
        return DenseLinear(
            (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(dtype),
            torch.randn(rows, generator=generator).to(dtype) if bias else None,
        )

    def norm(width: int) -> Tensor:
        return 1 + 0.2 * torch.randn(width, generator=generator)

    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def mlp(width: int) -> DenseMlp:
        return DenseMlp(linear(2 * width, HIDDEN, config.mlp_bias), linear(HIDDEN, width, config.mlp_bias))

    def any_mlp(moe: MoeConfig | None) -> DenseMlp | MoeMlp:
        if moe is None:
            return mlp(INNER)
        experts = tuple(mlp(moe.intermediate_size) for _ in range(moe.num_experts))
        return MoeMlp(
            linear(moe.num_experts, HIDDEN).weight,
            experts,
            choice_bias=0.1 * norm(moe.num_experts) if moe.choice_bias else None,
            shared=mlp(moe.shared_intermediate_size) if moe.shared_intermediate_size else None,
            shared_gate=linear(1, HIDDEN).weight if moe.shared_gate else None,
        )

    layers = [
        LayerWeights(
            attention_in_norm=norm(HIDDEN) if config.norms != "post" else None,
            qkv=linear(queries + 2 * keys, HIDDEN, config.qkv_bias),
            query_norm={"none": None, "head": norm(HEAD_DIM), "all": norm(queries)}[config.qk_norm],
            key_norm={"none": None, "head": norm(HEAD_DIM), "all": norm(keys)}[config.qk_norm],
            output=linear(HIDDEN, queries, config.output_bias),
            attention_out_norm=norm(HIDDEN) if config.norms != "pre" else None,
            mlp_in_norm=norm(HIDDEN) if config.norms != "post" else None,
            mlp=any_mlp(layer.moe),
            mlp_out_norm=norm(HIDDEN) if config.norms != "pre" else None,
        )
        for layer in config.layers
    ]
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype)
    return ModelWeights(embedding, tuple(layers), norm(HIDDEN), linear(VOCAB, HIDDEN))


class Pair:
    """The same steps through both models, each with a pool of its own."""

    def __init__(self, config: ModelConfig, *, kv_dtype: str = "auto", graph_rows: int = GRAPH_ROWS) -> None:
        weights = random_weights(config)
        compute = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        layout = KvLayout.of(config, kv_dtype)
        num_blocks = NUM_BLOCKS * layout.groups.count
        self.pools = [KvPool(layout, num_blocks, compute_dtype=compute) for _ in range(2)]
        self.ours = CudaModel(config, weights, self.pools[0], POSITIONS, graph_rows=graph_rows)
        self.reference = TorchModel(config, weights, self.pools[1], POSITIONS)
        self.tolerance = 3e-5 if config.dtype == "float32" else 0.1

    def step(self, spans: Sequence[tuple[int, int, Sequence[int]]], **fields: Any) -> Tensor:
        """`spans`: (start, rows, blocks). Every row's logits agree; returns ours."""
        batch = self._batch(spans, **fields)
        ours, expected = self.ours.forward(batch), self.reference.forward(batch)
        torch.testing.assert_close(ours, expected, atol=self.tolerance, rtol=self.tolerance)
        return ours

    def steps_of_reference(self, *spans: tuple[int, int, Sequence[int]]) -> None:
        """For the KV alone, which both have then: to interpret kernels takes a hundred times as long."""
        for span in spans:
            self.reference.forward(self._batch([span]))
        self.pools[0].data.copy_(self.pools[1].data)

    def _batch(self, spans: Sequence[tuple[int, int, Sequence[int]]], **fields: Any) -> Batch:
        token_ids = [
            (7 * start + 3 * row + blocks[0]) % VOCAB for start, n, blocks in spans for row in range(n)
        ]
        spans_of = [
            Span(start, num_rows, tables_in(self.pools[0], blocks)) for start, num_rows, blocks in spans
        ]
        return Batch(token_ids, spans_of, range(len(token_ids)), **fields)


A, B, C = [3, 9, 1, 7], [0, 22, 5, 6], [11, 2, 8, 4]


def run_everything(pair: Pair) -> None:
    """A prompt at once, one in chunks, then both decode beside a third's prompt, then drafts."""
    pair.step([(0, 18, A)])
    pair.step([(0, 3, B)])
    pair.step([(3, 17, B), (18, 1, A)])
    pair.step([(19, 1, A), (0, 5, C), (20, 1, B)])
    pair.step([(20, 1, A), (5, 1, C), (21, 1, B)])
    pair.step([(21, 3, A), (22, 2, B)])


def run_shortly(pair: Pair) -> None:
    """A prompt over the end of a block, another one and a row of decode; then a row and drafts, in a graph.

    Few rows, as each takes long: that the kinds of steps are right is what `run_everything` is for.
    """
    pair.steps_of_reference((0, 14, A), (0, 17, B))
    pair.step([(14, 5, A), (17, 1, B), (0, 2, C)])
    pair.step([(19, 1, A), (18, 3, B)])


CONFIGS: dict[str, dict[str, Any]] = {
    "norms on both sides, windows, soft-caps": {
        "norms": "both",
        "layers": (LayerConfig(ROPE, window_tokens=9), LayerConfig(ROPE)),
        "attention_softcap": 3.0,
        "logit_softcap": 5.0,
        "activation": "gelu_tanh",
        "embedding_scale": 4.0,
        "attention_scale": 0.4,
        **ONE_PAIR,
    },
    "norms after, all heads normed together": {"norms": "post", "qk_norm": "all", "layers": ONE_LAYER},
    "windows without soft-caps, nothing turned": {
        "layers": (LayerConfig(None, window_tokens=9),),
        **ONE_PAIR,
    },
    "each head normed, biases, few dimensions turned": {
        "qk_norm": "head",
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "layers": (LayerConfig(replace(ROPE, rotary_dim=4)),),
        **ONE_PAIR,
    },
    "experts": {"layers": (LayerConfig(ROPE, moe=MoeConfig(4, 2, 24, normalize=True)),), **ONE_PAIR},
    "experts beside one that every token meets": {
        "layers": (
            LayerConfig(
                ROPE,
                moe=MoeConfig(
                    4,
                    2,
                    24,
                    normalize=True,
                    scores="sigmoid",
                    choice_bias=True,
                    shared_intermediate_size=16,
                    shared_gate=True,
                ),
            ),
        ),
        **ONE_PAIR,
    },
}


@pytest.mark.thorough
def test_prompts_chunks_decode_and_drafts_agree_with_the_reference() -> None:
    run_everything(Pair(model_config()))


@pytest.mark.thorough(but="experts | each head normed, biases, few dimensions turned")
@pytest.mark.parametrize("fields", CONFIGS.values(), ids=CONFIGS.keys())
def test_models_of_every_kind_agree_with_the_reference(fields: dict[str, Any]) -> None:
    run_shortly(Pair(model_config(**fields)))


@pytest.mark.thorough
def test_batches_too_large_for_a_graph_agree_with_the_reference() -> None:
    run_everything(Pair(model_config(**SMALL), graph_rows=0))


@pytest.mark.thorough(but="auto")
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_bfloat16_agrees_within_its_rounding(kv_dtype: str) -> None:
    run_shortly(Pair(model_config(dtype="bfloat16", **SMALL), kv_dtype=kv_dtype))


def test_listeners_hear_of_every_layer_once_its_kv_is_stored() -> None:
    pair = Pair(model_config())
    heard: list[tuple[int, bool]] = []

    def on_kv_written(layer: int) -> None:
        heard.append((layer, bool(pair.pools[0].keys[layer, A[0], 0].any())))

    pair.ours.forward(Batch((5, 6), (Span(0, 2, [A]),), (1,), on_kv_written))
    assert heard == [(0, True), (1, True)]


def test_a_step_leaves_the_blocks_of_others_untouched() -> None:
    pair = Pair(model_config())
    pair.pools[0].data.fill_(7)
    pair.ours.forward(Batch((5,), (Span(0, 1, [A]),), (0,)))
    changed = (pair.pools[0].data != 7).flatten(2).any(-1).any(0).nonzero().flatten()
    assert changed.tolist() == [A[0]]


def deterministic_logits(
    fields: dict[str, Any], steps: Sequence[Sequence[tuple[int, int, list[int]]]]
) -> Tensor:
    """Logits of the last row of the last step."""
    config = model_config(**fields)
    pool = KvPool(KvLayout.of(config, "auto"), NUM_BLOCKS)
    weights = random_weights(config)
    model = CudaModel(config, weights, pool, POSITIONS, graph_rows=4, deterministic=True)
    for spans in steps:
        token_ids = [
            (7 * at + blocks[0]) % VOCAB for start, n, blocks in spans for at in range(start, start + n)
        ]
        batch = Batch(
            token_ids, [Span(start, rows, [blocks]) for start, rows, blocks in spans], range(len(token_ids))
        )
        logits = model.forward(batch)
    return logits[-1]


@pytest.mark.thorough(but="dense")
@pytest.mark.usefixtures("dot_products_of_one_order")
@pytest.mark.parametrize("fields", [SMALL, CONFIGS["experts"]], ids=["dense", "experts"])
def test_deterministic_logits_are_bitwise_the_same_in_chunks_alone_and_in_company(
    fields: dict[str, Any],
) -> None:
    at_once = deterministic_logits(fields, [[(0, 7, A)]])
    in_chunks = deterministic_logits(fields, [[(0, 2, A)], [(2, 4, A)], [(6, 1, A)]])
    in_company = deterministic_logits(fields, [[(0, 6, A), (0, 2, B)], [(0, 1, C), (2, 1, B), (6, 1, A)]])
    assert torch.equal(at_once, in_chunks)
    assert torch.equal(at_once, in_company)


@pytest.mark.thorough(but="0")
@pytest.mark.parametrize("graph_rows", [0, GRAPH_ROWS])
def test_blocks_behind_all_windows_are_never_read(graph_rows: int) -> None:
    windows = (LayerConfig(ROPE, window_tokens=9), LayerConfig(ROPE, window_tokens=5))
    config = model_config(layers=windows, **ONE_PAIR)
    pair = Pair(config, graph_rows=graph_rows)
    blocks = [3, 9, 1, 7, 0, 22, 5, 6]
    pair.steps_of_reference((0, 30, blocks), (30, 43, blocks))
    first = pair.pools[0].layout.groups.windows[0].first_block(73)
    assert first == 4
    for pool in pair.pools:
        pool.data[:, blocks[:first]] = 0xFF  # no numbers
    kept = [NO_BLOCK] * first + blocks[first:]
    for start, num_rows in ((73, 1), (74, 3), (77, GRAPH_ROWS + 1)):
        assert pair.step([(start, num_rows, kept)]).isfinite().all()


@pytest.mark.thorough(but="0")
@pytest.mark.parametrize("graph_rows", [0, GRAPH_ROWS])
def test_blocks_behind_the_window_of_some_layers_are_never_read(graph_rows: int) -> None:
    config = model_config(layers=(LayerConfig(ROPE, window_tokens=9), LayerConfig(ROPE)), **ONE_PAIR)
    pair = Pair(config, graph_rows=graph_rows)
    groups = pair.pools[0].layout.groups
    blocks = [3, 9, 1, 7, 0, 22, 5, 6]
    pair.steps_of_reference((0, 75, blocks))
    (windowed,) = (group for group, window in enumerate(groups.windows) if window.tokens)
    behind = tables_in(pair.pools[0], blocks)[windowed][:4]
    for pool in pair.pools:
        pool.data[:, behind] = 0xFF  # no numbers
    assert pair.step([(75, 1, blocks)]).isfinite().all()
    assert pair.step([(76, 3, blocks)]).isfinite().all()
    assert pair.step([(79, GRAPH_ROWS + 1, blocks)]).isfinite().all()
