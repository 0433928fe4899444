"""A draft head is read as it is saved, and refused by a sentence where it is damaged or another target's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.engine import load_model_config
from shared.engine.draft_head.config import MAX_CONFIG_BYTES
from shared.engine.draft_head.weights import DraftHeadWeights, load_draft_head
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.linear import DenseLinear
from shared.errors import InvalidRequest, NotFound
from tests.support.draft_heads import SMALL, fields_of, random_tensors, save_head
from tests.support.engine import save_random_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("target"))


def load(folder: Path, target: Path) -> DraftHeadWeights:
    return load_draft_head(folder, load_model_config(target), target)


def test_a_head_is_read_as_it_was_saved(target: Path, tmp_path: Path) -> None:
    tensors = random_tensors(SMALL)
    tensors["fuse.weight"] = tensors["fuse.weight"].bfloat16()
    of = {**fields_of(SMALL)["target"], "digest": checkpoint_digest(target)}
    head = load(save_head(tmp_path, SMALL, tensors, target=of), target)
    assert head.config.tap_layers == (0, 1, 2)
    assert isinstance(head.fuse, DenseLinear)
    assert isinstance(head.mix, DenseLinear)
    assert torch.equal(head.fuse.weight, tensors["fuse.weight"].float())
    assert torch.equal(head.mix.weight[:, 40:], tensors["mix_embed.weight"])
    assert torch.equal(head.ids, tensors["ids"])
    assert head.confidence_bias == tensors["confidence.bias"].item()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("model_type", "llama", "model_type must be 'penstock_draft_head'"),
        ("target", None, "target must be an object"),
        ("target", {"digest": 5}, "target.digest must be the digest"),
        (
            "target",
            {"vocab_size": 98, "hidden_size": 48},
            "whose vocab_size is 98, this one's is 97",
        ),
        ("target", {"vocab_size": 97, "hidden_size": 49}, "hidden_size is 49, this one's is 48"),
        ("target", {**fields_of(SMALL)["target"], "digest": "ab"}, "is for the checkpoint ab, this model is"),
        ("hidden_size", 0, "hidden_size must be an integer from 1 to 65536, not 0"),
        ("intermediate_size", 1 << 17, "intermediate_size must be an integer from 1 to 65536"),
        ("num_blocks", 9, "num_blocks must be an integer from 1 to 8, not 9"),
        ("num_blocks", True, "num_blocks must be an integer"),
        ("tap_layers", [0, 1], "tap_layers must be 3 ascending layers from 0 to 2"),
        ("tap_layers", [0, 2, 1], "tap_layers must be 3 ascending layers"),
        ("tap_layers", [0, 1, 3], "tap_layers must be 3 ascending layers"),
        ("tap_layers", [0, [], 2], "tap_layers must be 3 ascending layers"),
        ("draft_vocab_size", 98, "draft_vocab_size must be an integer from 1 to 97"),
        ("rms_norm_eps", 0.0, "rms_norm_eps must be a number above 0"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps must be a number above 0"),
        ("hidden_size", 41, r"tensor fuse.weight of the draft head is \[40, 144\], its config wants"),
    ],
)
def test_a_wrong_config_is_refused(
    name: str, value: Any, sentence: str, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        load(save_head(tmp_path, **{name: value}), target)


def _with(name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    tensors = random_tensors(SMALL)
    return tensors | {name: change(tensors[name])}


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("ids", lambda ids: ids.flip(0), "must ascend from 0 to below 97"),
        ("ids", lambda ids: torch.cat([ids[:1], ids[:-1]]), "must ascend"),
        ("ids", lambda ids: ids + 97 - ids[-1], "must ascend"),
        ("ids", lambda ids: ids - ids[0] - 1, "must ascend"),
        ("ids", lambda ids: ids.long(), "ids of the draft head is I64; it must be I32"),
        ("head.weight", lambda weight: weight.half(), "head.weight of the draft head is F16"),
        ("head.weight", lambda weight: weight * torch.inf, "holds what is not a finite number"),
        ("out_norm.weight", lambda weight: weight[1:].clone(), "tensor out_norm.weight of the draft head is"),
    ],
)
def test_a_wrong_tensor_is_refused(
    name: str, change: Callable[[Tensor], Tensor], sentence: str, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        load(save_head(tmp_path, SMALL, _with(name, change)), target)


def test_missing_and_unknown_tensors_are_refused(target: Path, tmp_path: Path) -> None:
    tensors = random_tensors(SMALL)
    norm = tensors.pop("state_norm.weight")
    with pytest.raises(InvalidRequest, match=r"has no tensor state_norm.weight"):
        load(save_head(tmp_path, SMALL, tensors), target)
    with pytest.raises(InvalidRequest, match="has a tensor 'other', which no draft head has"):
        load(
            save_head(tmp_path, SMALL, {**tensors, "state_norm.weight": norm, "other": norm.clone()}), target
        )


def test_missing_and_damaged_files_are_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"has no config.json; give the directory of a draft head"):
        load(tmp_path, target)
    folder = save_head(tmp_path)
    (folder / "model.safetensors").write_bytes(b"\x08" + bytes(30))
    with pytest.raises(InvalidRequest, match=r"model.safetensors of the draft head is damaged"):
        load(folder, target)
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFound, match=r"has no model.safetensors"):
        load(folder, target)
    for text in ("{", "[]", "[" * 100_000):
        (folder / "config.json").write_text(text)
        with pytest.raises(InvalidRequest, match=r"config.json of the draft head is not"):
            load(folder, target)
    (folder / "config.json").write_text(json.dumps(fields_of(SMALL)) + " " * MAX_CONFIG_BYTES)
    with pytest.raises(InvalidRequest, match="is larger than 1048576 bytes"):
        load(folder, target)
