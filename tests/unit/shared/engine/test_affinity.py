from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.engine.affinity import MAX_CPU, parse_cpus, stay_on
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "cpus"), [("", ()), ("0", (0,)), ("0,2-4", (0, 2, 3, 4)), (str(MAX_CPU), (MAX_CPU,))]
)
def test_a_list_of_cpus_is_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0;1", "1-2-3", "3-1", str(MAX_CPU + 1)])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="list like"):
        parse_cpus(text)


def test_a_thread_stays_where_it_was_told_to_and_others_do_not() -> None:
    allowed = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(stay_on, [min(allowed)]).result()
        assert executor.submit(os.sched_getaffinity, 0).result() == {min(allowed)}
    assert os.sched_getaffinity(0) == allowed


def test_cpus_that_the_process_may_not_use_are_named() -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_CPU)):
        stay_on([MAX_CPU])
