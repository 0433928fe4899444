"""How long a step is in which prompts are computed beside streams: what targets make of it, and its edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.cost_model import NOTHING, CostModel, Features
from shared.engine.scheduling.step_limits import (
    AWAITED_SHARE,
    COLD_CHUNK_TOKENS,
    MIN_CHUNK_TOKENS,
    StepLimits,
)
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus

STEP_US, TOKEN_US = 8000.0, 100.0
ROOM = 512
RATIO = 1.5
ALONE_US = STEP_US + 4 * TOKEN_US
"""A step of four streams."""
USUAL = round((RATIO - 1) * ALONE_US / TOKEN_US)
"""The tokens of prompts in a step where nobody says what they want."""


class Told(CostModel):
    """It knows what steps and their rows take."""

    ready = True

    def coefficients(self) -> tuple[float, float, float, float]:
        return STEP_US, TOKEN_US, 0.0, 0.0


def sequence(tokens: int, **fields: Any) -> LiveSequence:
    made = LiveSequence(
        "a",
        0,
        [0] * tokens,
        tokens,
        SamplingParams(),
        SequenceStatus.ACTIVE,
        HashChain([], None, BlockHasher()),
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def streams(*waits_us: float, now_us: int = 0) -> list[LiveSequence]:
    """Four streams, the last of which wait so long for their next tokens, the others any time."""
    all_us = [*[math.inf] * (4 - len(waits_us)), *waits_us]
    return [sequence(9, prefilling=False, inter_token_us=us, due_us=now_us + us) for us in all_us]


def chunk(
    prompts: Sequence[LiveSequence],
    beside: Sequence[LiveSequence],
    waiting: Sequence[LiveSequence] = (),
    *,
    model: CostModel | None = None,
    now_us: int = 0,
    room: int = ROOM,
    **limits: float,
) -> int:
    made = StepLimits(model or Told(ROOM), **{"max_step_ratio": RATIO, **limits})
    decode = Features(len(beside), len(beside), 40) if beside else NOTHING
    return made.chunk_tokens(prompts, beside, waiting, decode, room, now_us)


def test_where_nobody_wants_anything_a_step_is_so_many_times_as_long() -> None:
    assert chunk([sequence(400)], streams()) == pytest.approx(USUAL, abs=1)
    assert chunk([sequence(400)], streams(), itl_target_us=1e6) == pytest.approx(USUAL, abs=1)


@pytest.mark.parametrize("due_us", [60e6, 3e6])
def test_where_there_is_time_a_step_is_no_longer_than_usual(due_us: float) -> None:
    """Loose targets change nothing: 400 tokens take ten steps and 130 ms."""
    assert chunk([sequence(400, due_us=due_us)], streams(*[1e6] * 4)) == chunk([sequence(400)], streams())


@pytest.mark.parametrize("due_us", [150_000, 90_000, 70_000])
def test_a_step_is_as_long_as_a_first_token_needs_to_come_in_time(due_us: int) -> None:
    prompt, now_us, waits_us = sequence(400, due_us=due_us), 0.0, 60_000
    while prompt.num_uncomputed:
        beside = streams(*[waits_us] * 4, now_us=round(now_us))
        tokens = min(prompt.num_uncomputed, chunk([prompt], beside, now_us=round(now_us)))
        step_us = ALONE_US + TOKEN_US * tokens
        assert step_us <= waits_us
        prompt.num_computed += tokens
        now_us += step_us
    assert due_us / 2 < now_us <= due_us


def test_a_prompt_that_comes_too_late_makes_no_step_longer_than_streams_wait() -> None:
    late = sequence(400, due_us=1)
    tokens = chunk([late], streams(30_000, 20_000))
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(RATIO * ALONE_US, abs=2 * TOKEN_US)
    tokens = chunk([late], streams(30_000, 20_000, 40_000, 50_000))
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(AWAITED_SHARE * 20_000, abs=2 * TOKEN_US)


def test_streams_that_do_not_say_how_long_they_wait_have_the_configured_time() -> None:
    late = [sequence(400, due_us=1)]
    assert chunk(late, streams(), itl_target_us=0.0) == pytest.approx(USUAL, abs=1)
    tokens = chunk(late, streams(), itl_target_us=40_000)
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(AWAITED_SHARE * 40_000, abs=2 * TOKEN_US)
    assert chunk(late, streams(), itl_target_us=1000) == pytest.approx(USUAL, abs=1)


def test_what_a_stream_has_waited_already_is_not_waited_again() -> None:
    late, beside = [sequence(400, due_us=1)], streams(*[40_000] * 4)
    tokens = chunk(late, beside, now_us=10_000)
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(AWAITED_SHARE * 30_000, abs=2 * TOKEN_US)


def test_a_stream_that_rests_waits_for_the_next_step_too() -> None:
    late, resting = [sequence(400, due_us=1)], streams(*[50_000] * 4)[3:]
    tokens = chunk(late, streams(*[60_000] * 4), resting)
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(AWAITED_SHARE * 25_000, abs=2 * TOKEN_US)


def test_a_stream_whose_kv_is_on_its_way_waits_for_the_step_that_runs_and_for_its_own() -> None:
    coming = sequence(9, status=SequenceStatus.RESERVED, inter_token_us=30_000)
    tokens = chunk([sequence(400)], [], [coming])
    assert STEP_US + TOKEN_US * tokens == pytest.approx(AWAITED_SHARE * 15_000, abs=2 * TOKEN_US)
    assert chunk([sequence(400)], [], [sequence(9, status=SequenceStatus.RESERVED)]) == ROOM


def test_prompts_need_the_time_of_those_before_them_too() -> None:
    beside = streams(*[60_000] * 4)
    first, second = sequence(200, due_us=90_000), sequence(200, due_us=95_000)
    assert chunk([second], beside) == pytest.approx(USUAL, abs=1)
    assert chunk([second, first], beside) > 1.5 * USUAL


def test_a_stream_with_less_time_than_usual_shortens_steps() -> None:
    tokens = chunk([sequence(400)], streams(12_500))
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(AWAITED_SHARE * 12_500, abs=2 * TOKEN_US)
    assert chunk([sequence(400)], streams(1000)) == MIN_CHUNK_TOKENS


def test_no_target_makes_a_step_longer_than_is_configured() -> None:
    tokens = chunk([sequence(400, due_us=1)], streams(*[60_000] * 4), max_step_us=15_000)
    assert ALONE_US + TOKEN_US * tokens == pytest.approx(15_000, abs=2 * TOKEN_US)


def test_before_steps_were_seen_a_step_has_a_small_chunk_however_late_prompts_are() -> None:
    late = [sequence(400, due_us=1)]
    assert chunk(late, streams(*[60_000] * 4), model=CostModel(ROOM)) == COLD_CHUNK_TOKENS


def test_without_a_limit_or_without_streams_prompts_fill_the_step() -> None:
    assert chunk([sequence(400)], streams(), max_step_ratio=0.0) == ROOM
    assert chunk([sequence(400)], []) == ROOM
    assert chunk([sequence(400, due_us=1)], streams(), room=5) == 5
