"""An answer of the console is made once for all who ask at about the same time."""

from __future__ import annotations

import json

from services.gateway.http.console.console_pages import MADE_FOR_S, _KeptAnswer
from tests.support.clock import FakeClock


def test_an_answer_is_made_anew_when_its_time_is_over() -> None:
    clock, made = FakeClock(), []

    def make() -> dict[str, int]:
        made.append(1)
        return {"made": len(made)}

    answer = _KeptAnswer(make, clock)
    told = [json.loads(answer.get())["made"] for _ in range(1000)]
    assert set(told) == {1}
    clock.advance(MADE_FOR_S - 0.001)
    assert json.loads(answer.get()) == {"made": 1}
    clock.advance(0.001)
    assert json.loads(answer.get()) == {"made": 2}
