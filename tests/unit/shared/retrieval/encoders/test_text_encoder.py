"""BERT encoders, on the kernels and in torch, against transformers' models with the same random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaModel

from shared.engine.native.encoder import Arithmetic, Pooling, States
from shared.engine.native.library import library
from shared.errors import InvalidRequest
from shared.retrieval.encoders.bert import read_encoder
from shared.retrieval.encoders.text_encoder import TextEncoder

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # of width 48: not whole panels
    "intermediate_size": 160,
    "max_position_embeddings": 210,
}
LENGTHS = (1, 2, 33, 200, 16, 129, *range(3, 35))
"""Shorter and longer than tiles, panels and blocks."""


def bert() -> torch.nn.Module:
    torch.manual_seed(0)
    return _ready(BertModel(BertConfig(**SHAPE, pad_token_id=0), add_pooling_layer=False))


def xlm_roberta() -> torch.nn.Module:
    torch.manual_seed(0)
    config = XLMRobertaConfig(**SHAPE, pad_token_id=1, type_vocab_size=1)
    return _ready(XLMRobertaModel(config, add_pooling_layer=False))


def _ready(model: torch.nn.Module) -> torch.nn.Module:
    """With weights large enough to make a difference, norms included."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.train(mode=False)
    return model


def encoder(model: Any, arithmetic: Arithmetic = "float32", *, native: bool) -> TextEncoder:
    if native and library() is None:
        pytest.skip("the kernels were not built, or this CPU cannot run them")
    return TextEncoder(
        read_encoder(model.config.to_dict(), model.state_dict()), arithmetic, threads=2, native=native
    )


def texts() -> tuple[list[list[int]], list[list[int]]]:
    """Ids, none of them padding, and kinds 0 and then 1, as pairs have."""
    generator = np.random.default_rng(0)
    ids = [generator.integers(2, 100, length).tolist() for length in LENGTHS]
    return ids, [[int(place > length // 2) for place in range(length)] for length in LENGTHS]


def oracle(model: Any, ids: list[list[int]], kinds: list[list[int]]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [
            model(input_ids=torch.tensor([text]), token_type_ids=torch.tensor([kind])).last_hidden_state[0]
            for text, kind in zip(ids, kinds, strict=True)
        ]


@pytest.mark.parametrize("native", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("make", [bert, xlm_roberta])
@pytest.mark.parametrize("pooling", ["none", "mean", "first"])
def test_states_are_those_of_transformers(make: Any, pooling: Pooling, native: bool) -> None:
    model = make()
    ids, kinds = texts()
    if make is xlm_roberta:
        kinds = [[0] * len(text) for text in ids]
    states = oracle(model, ids, kinds)
    if pooling == "mean":
        states = [state.mean(0, keepdim=True) for state in states]
    elif pooling == "first":
        states = [state[:1] for state in states]
    found = encoder(model, native=native).encode(ids, pooling, kinds=kinds)
    torch.testing.assert_close(torch.from_numpy(found), torch.cat(states), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("arithmetic", ["float32", "bfloat16", "int8"])
def test_on_the_kernels_a_text_is_bitwise_the_same_among_any_others(arithmetic: Arithmetic) -> None:
    made = encoder(bert(), arithmetic, native=True)
    ids, _ = texts()
    together = made.encode(ids, "mean")
    alone = np.concatenate([made.encode([text], "mean") for text in ids])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize(("arithmetic", "least"), [("bfloat16", 0.9999), ("int8", 0.999)])
def test_coarser_arithmetic_stays_close(arithmetic: Arithmetic, least: float) -> None:
    ids, _ = texts()
    model = bert()
    exact, coarse = (
        _unit(encoder(model, each, native=True).encode(ids, "mean")) for each in ("float32", arithmetic)
    )
    assert (exact * coarse).sum(1).min() > least


def _unit(states: States) -> States:
    return np.asarray(states / np.linalg.norm(states, axis=1, keepdims=True))


@pytest.mark.parametrize("native", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize(
    ("ids", "kinds", "message"),
    [
        ([[5, 100]], None, "token ids are from 5 to 100"),
        ([[-1]], None, "token ids are from -1"),
        ([[5]], [[2]], "kinds are from 2"),
        ([[5] * 211], None, "takes 1 to 210"),
        ([[5], []], None, "0 to 1 tokens"),
    ],
)
def test_what_the_tables_do_not_have_is_refused(
    ids: list[list[int]], kinds: list[list[int]] | None, message: str, native: bool
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        encoder(bert(), native=native).encode(ids, "mean", kinds=kinds)


def test_the_longest_text_is_taken() -> None:
    assert encoder(bert(), native=True).encode([[5] * 210], "mean").shape == (1, 96)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "no encoder that is known"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"position_embedding_type": "relative_key"}, "positions 'relative_key'"),
        ({"num_hidden_layers": 3}, "has no encoder.layer.2"),
        (
            {"num_hidden_layers": 65},
            "num_hidden_layers must be an integer of at least 1 and at most 64, not 65",
        ),
        ({"num_attention_heads": 5}, "with 5 heads"),
        ({"hidden_size": 192}, "not rows of 192"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    model: Any = bert()
    with pytest.raises(InvalidRequest, match=message):
        read_encoder(model.config.to_dict() | change, model.state_dict())
