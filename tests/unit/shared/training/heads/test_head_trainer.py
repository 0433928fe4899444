"""What a head learns in a step."""

from __future__ import annotations

import pytest
import torch

from shared.training.heads.head_trainer import (
    PLACES_PER_BATCH,
    SEGMENT_TOKENS,
    UNROLLED_STEPS,
    HeadBatch,
    TappedBatches,
    TargetVocabulary,
    learn_head_batch,
)
from shared.training.heads.target_taps import TappedRows, TappedSegment
from shared.training.optimizer import Optimizer
from shared.training.taught_rows import save_rows
from tests.unit.shared.training.heads.tiny_heads import (
    drawn_answer,
    small_head,
    small_target,
    taught_row,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> TappedRows:
    torch.manual_seed(0)
    target = small_target()
    path = tmp_path_factory.mktemp("taps") / "answers.safetensors"
    rows = [
        taught_row(target, drawn_answer(target, [3 + seed, 9], 90, temperature, seed))
        for seed, temperature in enumerate((0.0, 1.0))
    ]
    save_rows(path, rows, 1.0)
    return TappedRows(path)


def test_batches_are_parts_of_rows_that_end_where_they_say(tapped: TappedRows) -> None:
    batch = next(TappedBatches([tapped, tapped], seed=1))
    assert PLACES_PER_BATCH <= len(batch.tokens) < PLACES_PER_BATCH + SEGMENT_TOKENS
    lasts = sorted(set(batch.last.tolist()))
    for first, last in zip([0, *(last + 1 for last in lasts[:-1])], lasts, strict=True):
        assert last - first < SEGMENT_TOKENS
        assert (batch.last[first : last + 1] == last).all()
        assert len(set(batch.temperatures[first : last + 1].tolist())) == 1


def test_another_seed_gives_other_batches(tapped: TappedRows) -> None:
    one, same, other = (next(TappedBatches([tapped], seed)).tokens for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert one.tolist() != other.tolist()


def test_learning_brings_drafts_nearer_at_every_step(tapped: TappedRows) -> None:
    torch.manual_seed(0)
    target = small_target()
    head = small_head(target)
    optimizer = Optimizer.of_head(head)
    teacher = TargetVocabulary(target, head.ids)
    batch = HeadBatch.of_segments([tapped.segment(tapped.row(number).start, 90) for number in range(2)])
    measured = []
    for _ in range(8):
        measured.append(learn_head_batch(head, teacher, batch))
        optimizer.step(3.0)
    for step in range(1, UNROLLED_STEPS + 1):
        assert measured[-1][f"loss{step}"] < measured[0][f"loss{step}"]


def test_a_part_that_is_too_short_to_draft_ahead_teaches_as_far_as_it_goes(tapped: TappedRows) -> None:
    target = small_target()
    head = small_head(target)
    figures = learn_head_batch(
        head, TargetVocabulary(target, head.ids), HeadBatch.of_segments([tapped.segment(88, 2)])
    )
    assert [name for name in figures if name.startswith("loss")] == ["loss1"]


def test_confidence_learns_whether_drafts_are_right() -> None:
    """Of tokens that the head does not know none can be right: it becomes sure that it is wrong."""
    target = small_target()
    head = small_head(target)
    segment = TappedSegment(torch.randn(60, 3, 32).bfloat16(), torch.full((60,), 63), 1.0)
    optimizer = Optimizer.of_head(head)
    teacher = TargetVocabulary(target, head.ids)
    for _ in range(10):
        learn_head_batch(head, teacher, HeadBatch.of_segments([segment]))
        optimizer.step(6.0)
    with torch.no_grad():
        _, out = head.advance(head.first_state(segment.taps.float()), teacher.embed(segment.tokens).float())
        assert head.confidence(out).sigmoid().mean() < 0.4
