"""What steps say of the pace of a decode worker."""

from __future__ import annotations

from dataclasses import replace

from services.decode.pace import DecodePace
from shared.engine import NO_STEP


def test_a_step_in_which_all_wait_for_masks_says_nothing_of_the_time_that_steps_take() -> None:
    pace = DecodePace(512)
    pace.observe_step(replace(NO_STEP, batch_tokens=4, num_decode=4, step_us=20_000))
    for _ in range(20):
        pace.observe_step(NO_STEP)
    assert (pace.plain_step_us, pace.step_s) == (20_000, 0.02)
