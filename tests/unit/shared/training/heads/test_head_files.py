"""A head's directory: what engines read, and what a run goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shared.errors import InvalidRequest
from shared.training.heads.draft_head import DraftHead
from shared.training.heads.head_files import read_known_ids, round_as_written, write_head
from tests.unit.shared.training.heads.tiny_heads import KNOWN, SHAPE


@pytest.fixture
def head() -> DraftHead:
    torch.manual_seed(0)
    return DraftHead(SHAPE, torch.arange(5, 5 + KNOWN, dtype=torch.int32))


def test_the_files_are_those_that_engines_read(head: DraftHead, tmp_path: Path) -> None:
    write_head(head, tmp_path / "head", "ab12")
    assert json.loads((tmp_path / "head" / "config.json").read_text()) == {
        "model_type": "penstock_draft_head",
        "target": {"digest": "ab12", "vocab_size": 64, "hidden_size": 32},
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_blocks": 1,
        "tap_layers": [0, 1, 2],
        "draft_vocab_size": KNOWN,
        "rms_norm_eps": 1e-5,
    }
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert {name: list(value.shape) for name, value in tensors.items()} == {
        "taps_norm.weight": [96],
        "fuse.weight": [32, 96],
        "state_norm.weight": [32],
        "embed_norm.weight": [32],
        "mix_state.weight": [32, 32],
        "mix_embed.weight": [32, 32],
        "blocks.0.norm.weight": [32],
        "blocks.0.gate_up.weight": [128, 32],
        "blocks.0.down.weight": [32, 64],
        "out_norm.weight": [32],
        "head.weight": [KNOWN, 32],
        "confidence.weight": [32],
        "confidence.bias": [1],
        "ids": [KNOWN],
    }
    kinds = {value.dtype for name, value in tensors.items() if name != "ids"}
    assert (kinds, tensors["ids"].dtype) == ({torch.bfloat16}, torch.int32)


def test_what_is_measured_is_what_was_written(head: DraftHead, tmp_path: Path) -> None:
    write_head(head, tmp_path, "")
    round_as_written(head)
    written = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, written[name].float()) for name, value in head.named_parameters())


def test_the_known_tokens_are_read_where_there_is_a_head(head: DraftHead, tmp_path: Path) -> None:
    assert read_known_ids(tmp_path) is None
    write_head(head, tmp_path, "")
    found = read_known_ids(tmp_path)
    assert found is not None
    assert torch.equal(found, head.ids)


def test_a_damaged_head_is_named(head: DraftHead, tmp_path: Path) -> None:
    write_head(head, tmp_path, "")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InvalidRequest, match=r"model.safetensors is damaged .* give another --out"):
        read_known_ids(tmp_path)
