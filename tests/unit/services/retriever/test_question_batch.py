"""Who is embedded together, and who goes first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from services.retriever.question_batch import EMBEDDED_BYTES, next_batch
from shared.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Waiting:
    name: str
    end: Deadline
    question_bytes: int


def waiting(*each: tuple[str, float, int]) -> list[Waiting]:
    return [Waiting(name, Deadline(end_s), size) for name, end_s, size in each]


def chosen(*each: tuple[str, float, int], most: int = 16, most_bytes: int = 100) -> list[str]:
    return [asked.name for asked in next_batch(waiting(*each), most, most_bytes)]


def test_nobody_waits_no_batch() -> None:
    assert next_batch([], 16, 100) == []


def test_the_most_urgent_goes_first_whoever_came_before() -> None:
    assert chosen(("late", 9.0, 1), ("urgent", 1.0, 1), ("soon", 5.0, 1)) == ["urgent", "soon", "late"]


@pytest.mark.parametrize(("most", "count"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_a_batch_has_at_most_so_many(most: int, count: int) -> None:
    assert len(chosen(("a", 1.0, 1), ("b", 1.0, 1), ("c", 1.0, 1), most=most)) == count


@pytest.mark.parametrize(("most_bytes", "names"), [(30, ["a", "b"]), (29, ["a"])])
def test_a_batch_has_at_most_so_many_bytes(most_bytes: int, names: list[str]) -> None:
    assert chosen(("a", 1.0, 10), ("b", 2.0, 20), most_bytes=most_bytes) == names


def test_whose_time_is_short_is_not_held_up_by_long_questions() -> None:
    long = [(f"long {number}", 5.0, 90) for number in range(3)]
    assert chosen(*long, ("urgent", 1.0, 40)) == ["urgent"]


def test_short_questions_pass_a_long_one_that_does_not_fit_and_it_goes_first_in_its_turn() -> None:
    each = [("a", 1.0, 40), ("long", 2.0, 90), ("b", 3.0, 40)]
    assert chosen(*each) == ["a", "b"]
    assert chosen(each[1]) == ["long"]


def test_a_question_that_is_longer_than_any_batch_is_embedded_by_itself() -> None:
    assert chosen(("endless", 1.0, 10**6), ("short", 2.0, 1), most_bytes=100) == ["endless"]


def test_a_question_counts_as_long_as_the_encoder_reads() -> None:
    sizes = [("a", 1.0, 10**6), ("b", 2.0, 10**6), ("c", 3.0, 1)]
    assert chosen(*sizes, most_bytes=2 * EMBEDDED_BYTES) == ["a", "b"]
