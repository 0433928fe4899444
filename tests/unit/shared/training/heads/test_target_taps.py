"""The target's states at its answers, in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.errors import InvalidRequest
from shared.sampling.parameters import SamplingParams
from shared.training.acceptance import TargetAnswer
from shared.training.heads.target_taps import TappedRows, frequent_ids
from shared.training.llama import Llama
from shared.training.taught_rows import TaughtRow, load_rows, save_rows
from tests.unit.shared.training.heads.tiny_heads import small_target, taught_row

LENGTHS = ((3, 9, 0.0), (7, 1, 0.7), (1, 5, 1.0), (4, 12, 0.0), (2, 3, 1.0))


@pytest.fixture(scope="module")
def target() -> Llama:
    torch.manual_seed(0)
    return small_target()


@pytest.fixture(scope="module")
def rows(target: Llama) -> list[TaughtRow]:
    made = []
    for prompt, count, temperature in LENGTHS:
        ids = tuple(torch.randint(0, 64, (prompt + count,)).tolist())
        answer = TargetAnswer(ids[:prompt], ids[prompt:], SamplingParams(temperature=temperature))
        made.append(taught_row(target, answer, (0, 2)))
    return made


@pytest.fixture(scope="module")
def path(rows: list[TaughtRow], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("taps") / "answers.safetensors"
    save_rows(path, rows, 1.0)
    return path


def test_a_tap_comes_back_with_the_token_that_was_drawn_from_it(rows: list[TaughtRow], path: Path) -> None:
    tapped = TappedRows(path)
    assert tapped.num_rows == len(rows)
    for number, row in enumerate(rows):
        places = tapped.row(number)
        segment = tapped.segment(places.start, 1000)
        assert torch.equal(segment.tokens, row.ids[row.prompt_tokens :].long())
        assert segment.temperature == pytest.approx(row.temperature)
        assert row.taps is not None
        assert torch.equal(segment.taps, row.taps)


def test_rows_are_loaded_without_their_taps(rows: list[TaughtRow], path: Path) -> None:
    found, _ = load_rows(path)
    assert [row.taps for row in found] == [None] * len(rows)


def test_the_last_state_is_what_the_final_norm_takes(target: Llama) -> None:
    ids = torch.randint(0, 64, (2, 8))
    with torch.no_grad():
        states = target.model.states_after(ids, (0, 1, 2))
        torch.testing.assert_close(target.model.norm(states[:, :, -1]), target.model(ids))


def test_a_segment_ends_with_its_row_or_before(path: Path) -> None:
    tapped = TappedRows(path)
    assert len(tapped.segment(7, 100).tokens) == 2
    assert len(tapped.segment(9, 100).tokens) == 1
    assert len(tapped.segment(10, 3).tokens) == 3


def test_the_most_frequent_tokens_are_known_and_the_special_ones(path: Path) -> None:
    tapped = TappedRows(path)
    counts = torch.bincount(tapped.tokens, minlength=64)
    ids = frequent_ids([tapped], 8, 64, [63])
    assert ids.dtype == torch.int32
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert 63 in ids.tolist()
    assert counts[ids[:-1].long()].min() >= counts.sort(descending=True).values[7]


def test_lower_ids_fill_up_where_too_little_was_said(path: Path) -> None:
    assert frequent_ids([TappedRows(path)], 64, 64, []).tolist() == list(range(64))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidRequest, match=r"answers.safetensors is damaged .*; remove it, it is"):
        TappedRows(path)


def test_a_file_of_answers_without_states_is_named(rows: list[TaughtRow], tmp_path: Path) -> None:
    path = tmp_path / "answers.safetensors"
    save_rows(path, [replace(row, taps=None) for row in rows], 1.0)
    with pytest.raises(
        InvalidRequest, match=r"answers.safetensors is damaged, states are missing; remove it"
    ):
        TappedRows(path)
