"""What a job takes of its worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.engine.results import NO_STEP
from shared.messages import Mark
from shared.worker.marks import ComputeUse, StepCost

Engine: Any = SimpleNamespace


def engine(**config: object) -> Any:
    fields = {"device": "cpu", "tensor_parallel": 1, **config}
    return Engine(threads_now=2, config=Engine(**fields))


@pytest.mark.parametrize(
    ("config", "row_us", "unit"),
    [
        ({}, 2 * 1000 / 8, "core"),
        ({"device": "cuda"}, 1000 / 8, "device"),
        ({"device": "cuda", "tensor_parallel": 4}, 4 * 1000 / 8, "device"),
    ],
)
def test_each_row_of_a_step_costs_its_part_of_the_cores_or_devices(
    config: dict[str, object], row_us: float, unit: str
) -> None:
    result: Any = SimpleNamespace(step_us=1000, batch_tokens=8)
    assert StepCost.of(result, engine(**config)) == StepCost(row_us, unit)


def test_a_step_without_rows_costs_nobody_anything() -> None:
    assert StepCost.of(NO_STEP, engine()).row_us == 0.0


def test_kv_counts_by_its_time_and_what_was_told_is_not_told_again() -> None:
    use = ComputeUse(engine_us=1500.6)
    use.hold(4096, now_s=12.0, since_s=10.0)
    assert use.take_marks("decode", "core") == (Mark("count:decode_core_us", 1500), Mark("count:kv_kib_s", 8))
    use.engine_us += 0.5
    use.hold(2048, now_s=13.0, since_s=0.0)
    assert use.take_marks("decode", "core") == (Mark("count:decode_core_us", 1), Mark("count:kv_kib_s", 2))
