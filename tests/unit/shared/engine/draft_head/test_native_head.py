"""The draft head in C++ guesses what the one in torch operations does, row by row and bit for bit alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.engine.native.library import library
from shared.engine.scheduling.head_model import CONFIDENCE_BINS, DraftRequest, HeadDraft
from tests.support.draft_heads import SMALL, WIDE, random_tensors
from tests.support.head_pair import SURE, HeadPair

pytestmark = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)
WIDE_TARGET = {
    "hidden_size": 576,
    "intermediate_size": 64,
    "vocab_size": WIDE.target_vocab_size,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> HeadPair:
    return HeadPair(tmp_path_factory.mktemp("small"), SMALL, 2)


def assert_alike(pair: HeadPair, requests: list[DraftRequest]) -> None:
    for ours, right in zip(pair.draft(requests), pair.right.draft(pair.taps, requests, SURE), strict=True):
        assert ours.token_ids == right.token_ids
        assert np.allclose(ours.confidences, right.confidences, atol=2e-3)
        assert ours.steps == right.steps


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_ids_are_guessed_with_the_same_confidence(small: HeadPair, temperature: float) -> None:
    assert_alike(small, small.requests(temperature))


def test_the_same_ids_are_guessed_at_the_widths_of_smollm2(tmp_path: Path) -> None:
    pair = HeadPair(tmp_path, WIDE, 2, **WIDE_TARGET)
    requests = pair.requests(0.0, 3)[:3] + pair.requests(0.7, 3)[3:5]
    assert_alike(pair, requests)
    together = pair.draft(requests)
    assert [pair.draft([request])[0] for request in requests] == together


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_invariant_5_a_row_is_guessed_for_alone_as_among_others(small: HeadPair, temperature: float) -> None:
    requests = small.requests(temperature)
    requests = [each._replace(length=1 + each.slot % 5) for each in requests]
    together = small.draft(requests)
    assert [len(draft.token_ids) for draft in together] == [each.length for each in requests]
    assert [small.draft([request])[0] for request in requests] == together
    assert small.draft(requests[::-1]) == together[::-1]
    assert all(0 < confidence < 1 for draft in together for confidence in draft.confidences)


def test_a_guess_ends_where_its_chance_falls_below_what_it_costs(small: HeadPair) -> None:
    requests = small.requests(0.0, 8)
    chances = [0.02 * place for place in range(1, CONFIDENCE_BINS + 1)]
    for floor, need in ((0.2, 0.2), (0.02, 0.2)):
        asked = [each._replace(floor=floor, need=need, trust=1.2) for each in requests]
        ours = small.ours.draft(small.taps, asked, chances)
        right = small.right.draft(small.taps, asked, chances)
        assert [(each.token_ids, each.steps) for each in ours] == [
            (each.token_ids, each.steps) for each in right
        ]
        assert {len(each.token_ids) for each in ours} != {8}


def test_only_ids_of_the_heads_own_vocabulary_are_guessed(small: HeadPair) -> None:
    known = set(random_tensors(SMALL)["ids"].tolist())
    for temperature in (0.0, 1.5):
        for draft in small.draft(small.requests(temperature, 8)):
            assert set(draft.token_ids) <= known


def test_hidden_states_that_are_no_numbers_are_guessed_nothing_from(small: HeadPair) -> None:
    taps = small.taps.copy()
    taps[3, 5] = np.nan
    for temperature in (0.0, 0.8):
        requests = small.requests(temperature)
        drafts, whole = small.draft(requests, taps), small.draft(requests)
        assert drafts[3] == HeadDraft((), (), 1)
        assert drafts[:3] + drafts[4:] == whole[:3] + whole[4:]
