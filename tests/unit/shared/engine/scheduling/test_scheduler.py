from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.engine import Engine, EngineConfig, SamplingParams
from shared.engine.cost_model import Features
from shared.engine.scheduling.order import AGING_US, LOWEST_PRIORITY, PATIENCE_US
from shared.engine.scheduling.scheduler import monotonic_us
from shared.engine.scheduling.step_limits import AWAITED_SHARE, COLD_CHUNK_TOKENS, MIN_CHUNK_TOKENS
from shared.errors import DeadlineExpired, InvalidRequest
from tests.support.block_hashes import hashes_of
from tests.support.engine import GREEDY, admit, drive, make_engine, undisturbed
from tests.support.known_cost import learn_nothing_of_rows

# Features of steps that tell all coefficients apart.
STEPS = [
    Features(1, 1, 9),
    Features(9, 1, 80),
    Features(48, 2, 960),
    Features(8, 8, 5000),
    Features(3, 3, 90),
]


def knowing(engine: Engine, *, step_us: float, token_us: float) -> Engine:
    """An engine whose cost model believes this, whatever the clock says."""
    for _ in range(20):
        for features in STEPS:
            engine.cost.observe(features, step_us + token_us * features.tokens)
    engine.cost.observe = lambda *_: None  # type: ignore[method-assign] # no clock in tests
    learn_nothing_of_rows(engine)
    return engine


def with_a_decoding_sequence(engine: Engine) -> Engine:
    admit(engine, "live", [3, 4])
    engine.step()
    return engine


def test_while_rows_decode_prompts_are_cut_to_the_longest_step(model_dir: Path) -> None:
    engine = knowing(make_engine(model_dir, max_step_ms=5.0), step_us=1000, token_us=100)
    with_a_decoding_sequence(engine)
    admit(engine, "long", [5] * 200)
    result = engine.step()
    assert result.num_decode == 1
    assert result.num_prefill_tokens == pytest.approx(39, abs=1)  # 1 ms and 40 rows


def test_while_nothing_decodes_prompts_fill_the_batch(model_dir: Path) -> None:
    engine = knowing(make_engine(model_dir, max_step_ms=5.0), step_us=1000, token_us=100)
    admit(engine, "long", [5] * 200)
    assert engine.step().num_prefill_tokens == 200


def test_without_a_longest_step_prompts_fill_the_batch(model_dir: Path) -> None:
    engine = with_a_decoding_sequence(knowing(make_engine(model_dir), step_us=1000, token_us=100))
    admit(engine, "long", [5] * 200)
    assert engine.step().num_prefill_tokens == 200


def test_a_prompt_gets_a_little_of_every_step_even_when_all_are_too_long(model_dir: Path) -> None:
    engine = knowing(make_engine(model_dir, max_step_ms=0.01), step_us=1000, token_us=100)
    with_a_decoding_sequence(engine)
    admit(engine, "long", [5] * 200)
    assert engine.step().num_prefill_tokens == MIN_CHUNK_TOKENS


def test_before_steps_were_seen_prompts_are_cut_by_a_guess(model_dir: Path) -> None:
    engine = with_a_decoding_sequence(make_engine(model_dir, max_step_ms=5.0))
    admit(engine, "long", [5] * 200)
    assert not engine.cost.ready
    assert engine.step().num_prefill_tokens == COLD_CHUNK_TOKENS


def test_while_rows_decode_prompts_are_cut_to_so_many_times_their_step(model_dir: Path) -> None:
    engine = knowing(make_engine(model_dir, max_step_ratio=3.0), step_us=1000, token_us=100)
    with_a_decoding_sequence(engine)
    admit(engine, "long", [5] * 200)
    assert engine.step().num_prefill_tokens == pytest.approx(22, abs=1)  # 1.1 ms, and twice as much again


def test_of_two_limits_the_shorter_step_counts(model_dir: Path) -> None:
    for limits in ({"max_step_ms": 5.0, "max_step_ratio": 3.0}, {"max_step_ms": 3.3, "max_step_ratio": 9.0}):
        engine = knowing(make_engine(model_dir, **limits), step_us=1000, token_us=100)
        with_a_decoding_sequence(engine)
        admit(engine, "long", [5] * 200)
        assert engine.step().num_prefill_tokens == pytest.approx(22, abs=1)


def test_beside_clients_that_await_tokens_prompts_are_cut_to_what_the_most_impatient_waits(
    model_dir: Path,
) -> None:
    engine = knowing(make_engine(model_dir, max_step_ratio=9.0), step_us=1000, token_us=100)
    engine._scheduler._now_us = lambda: 0
    for key, inter_token_us in (("patient", 50_000), ("impatient", 5000)):
        engine.admit(key, [3, 4], 2, GREEDY, inter_token_us=inter_token_us)
        engine.step()
    admit(engine, "long", [5] * 200)
    result = engine.step()
    assert result.num_decode == 2
    left_us = AWAITED_SHARE * 5000 - 1000
    assert result.num_prefill_tokens == pytest.approx(left_us / 100 - 2, abs=1)


def test_a_token_is_due_so_long_after_the_last_one_and_the_first_when_it_was_asked_for(
    model_dir: Path,
) -> None:
    engine, due_us = make_engine(model_dir, max_batch_tokens=16), []
    engine.admit("a", [5] * 20, 20, GREEDY, first_token_us=7000, inter_token_us=50)
    engine.admit("b", [6] * 4, 4, GREEDY)
    for now_us in (200, 300, 400):
        engine._scheduler._now_us = lambda now_us=now_us: now_us  # type: ignore[misc]
        engine.step()
        due_us.append(engine._scheduler.sequences["a"].due_us)
    assert due_us == [7000, 350, 450]
    assert engine._scheduler.sequences["b"].due_us == math.inf


def test_a_prompt_that_would_be_late_makes_steps_longer_and_changes_no_token(model_dir: Path) -> None:
    late, chunks = [5] * 150, {}
    for due_us in (1e9, 1.0):
        engine = knowing(
            make_engine(model_dir, max_step_ratio=1.5, itl_target_ms=10.0), step_us=1000, token_us=100
        )
        engine._scheduler._now_us = lambda: 0
        with_a_decoding_sequence(engine)
        engine.admit("late", late, len(late), GREEDY, first_token_us=due_us)
        chunks[due_us] = engine.step().num_prefill_tokens
        drawn = drive(engine, {"live": engine.tokens_since("live", 0), "late": list(late)})
        assert drawn["late"] == undisturbed(model_dir, late)
    assert chunks == {1e9: MIN_CHUNK_TOKENS, 1.0: pytest.approx(AWAITED_SHARE * 100 - 11, abs=1)}


def test_a_low_prompt_that_is_served_climbs_no_further(model_dir: Path) -> None:
    """Its class rises with the time since it last got rows, not with the time since it came."""
    engine, now_us = make_engine(model_dir, max_batch_tokens=16), 0
    engine._scheduler._now_us = lambda: now_us
    engine.admit("low", [5] * 200, 200, GREEDY, priority=LOWEST_PRIORITY, deadline_us=PATIENCE_US)
    for _ in range(3):
        now_us += AGING_US - 1
        assert [progress.key for progress in engine.step().computed] == ["low"]
    engine.admit("normal", [6] * 200, 200, GREEDY, deadline_us=2 * PATIENCE_US)
    assert [progress.key for progress in engine.step().computed] == ["normal"]


def test_cutting_steps_changes_no_token(model_dir: Path) -> None:
    many = {"a": [3, 4], "b": [5] * 150, "c": [6] * 30, "d": list(range(90))}
    expected = {key: undisturbed(model_dir, prompt) for key, prompt in many.items()}
    engine = make_engine(model_dir, max_step_ms=0.5)
    for key, prompt in many.items():
        admit(engine, key, prompt)
    assert drive(engine, {key: list(prompt) for key, prompt in many.items()}) == expected


def test_a_short_prompt_is_done_while_a_long_one_is_still_computed(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=64)
    admit(engine, "long", [5] * 200)
    admit(engine, "short", [6] * 20)
    result = engine.step()
    assert [output.key for output in result.outputs] == ["short"]
    assert {(each.key, each.end_token) for each in result.computed} == {("short", 20), ("long", 44)}


def test_a_higher_class_and_an_earlier_deadline_are_computed_first(model_dir: Path) -> None:
    fields: dict[str, dict[str, Any]] = {
        "a": {"priority": 2},
        "b": {},
        "c": {"deadline_us": monotonic_us() + 10_000_000},
        "d": {"priority": 0},
    }
    engine = make_engine(model_dir, max_batch_tokens=40)
    for number, (key, each) in enumerate(fields.items()):
        engine.admit(key, [number] * 40, 40, GREEDY, **each)
    first_tokens: list[str] = []
    while len(first_tokens) < 4:
        first_tokens += [output.key for output in engine.step().outputs if output.position == 40]
        engine.check()
    assert first_tokens == ["d", "c", "b", "a"]


def test_a_prompt_that_cannot_be_computed_in_time_is_refused(model_dir: Path) -> None:
    engine = Engine(EngineConfig(str(model_dir), kv_blocks=32, max_sequences=8), now_us=lambda: 0)
    knowing(engine, step_us=1000, token_us=100)
    prompt = list(range(90)) * 2  # 19 ms
    with pytest.raises(DeadlineExpired, match="180 prompt tokens"):
        engine.admit("a", prompt, 180, GREEDY, deadline_us=8_000)
    assert engine.held() == {}
    engine.admit("a", prompt, 180, GREEDY, deadline_us=12_000)  # predictions may err by a factor of two
    drive(engine, {"a": list(prompt)})
    engine.admit("cached", prompt, 180, GREEDY, deadline_us=1_000)


def test_a_deadline_that_has_passed_is_refused(model_dir: Path) -> None:
    engine = Engine(EngineConfig(str(model_dir), kv_blocks=32, max_sequences=8), now_us=lambda: 10)
    with pytest.raises(DeadlineExpired):
        engine.admit("a", [1], 1, GREEDY, deadline_us=9)


def test_a_priority_that_does_not_exist_is_refused(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    for priority in (-1, 3):
        with pytest.raises(InvalidRequest, match="priority"):
            engine.admit("a", [1], 1, GREEDY, priority=priority)
    assert engine.held() == {}


def test_drafts_that_cost_more_than_they_save_are_left_out(model_dir: Path) -> None:
    prompt = [3, 4]
    answer = prompt + undisturbed(model_dir, prompt)
    used = []
    for token_us in (1, 400, 3000):
        engine = with_a_decoding_sequence(make_engine(model_dir))
        engine.propose("live", 3, answer[3:4])  # what a drafter is worth has to be seen
        engine.step()
        knowing(engine, step_us=1000, token_us=token_us)
        engine.propose("live", 5, answer[5:15])
        used.append(engine.step().outputs[0].proposed_drafts)
    assert used[0] > 4
    assert 0 < used[1] < used[0]
    assert used[2] == 0


def test_a_step_is_known_by_the_keys_that_its_rows_and_their_drafts_read(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_a_decoding_sequence(make_engine(model_dir))
    observed: list[Features] = []
    monkeypatch.setattr(engine.cost, "observe", lambda features, *_us: observed.append(features))
    engine.propose("live", 3, [5, 6, 7])
    engine.step()
    assert observed == [Features(tokens=4, sequences=1, keys=3 + 4 + 5 + 6)]


def test_predicted_prefill_times_grow_with_what_is_not_cached(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    assert engine.cost.prefill_us(100, 0) == 0
    knowing(engine, step_us=1000, token_us=100)
    assert engine.cost.prefill_us(100, 0) == pytest.approx(11_000, rel=0.05)
    assert engine.cost.prefill_us(100, 90) == pytest.approx(2000, rel=0.05)


# --- the prefix cache ---


def test_tenants_share_no_prefix(model_dir: Path) -> None:
    engine, prompt = make_engine(model_dir), list(range(40))
    cached = []
    for number, tenant in enumerate(["", "blue", "red", "blue", ""]):
        cached.append(engine.admit(str(number), prompt, 40, GREEDY, tenant=tenant).cached_tokens)
        drive(engine, {str(number): list(prompt)})
    assert cached == [0, 0, 0, 32, 32]


def computed_and_drawn(engine: Engine, known: dict[str, list[int]]) -> tuple[int, dict[str, list[int]]]:
    """How many prompt tokens were computed until the end, and what was drawn."""
    computed, drawn = 0, {key: list(tokens) for key, tokens in known.items()}
    while engine.has_work:
        result = engine.step()
        engine.check()
        computed += result.num_prefill_tokens
        for output in result.outputs:
            drawn[output.key] += output.token_ids
    return computed, drawn


PREFIX = [number % 97 for number in range(192)]


@pytest.mark.parametrize("chunk", [23, 64, 512])
def test_prompts_that_share_a_cold_prefix_compute_it_once(model_dir: Path, chunk: int) -> None:
    many = {key: [*PREFIX, *(ord(key) - 9 - number for number in range(9))] for key in "abcd"}
    expected = {
        key: prompt + undisturbed(model_dir, prompt, prefix_cache=False) for key, prompt in many.items()
    }
    engine = make_engine(model_dir, max_batch_tokens=chunk)
    for key, prompt in many.items():
        admit(engine, key, prompt)
    computed, drawn = computed_and_drawn(engine, many)
    assert computed == len(PREFIX) + 4 * 9
    assert drawn == expected


def test_a_prompt_that_comes_while_its_prefix_is_computed_computes_only_the_rest(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=50)
    admit(engine, "a", PREFIX)
    engine.step()  # ends within a block
    admit(engine, "b", [*PREFIX, 1, 2, 3])
    assert computed_and_drawn(engine, {"a": [], "b": []})[0] == len(PREFIX) - 50 + 3


def test_without_a_prefix_cache_nobody_waits_for_a_prefix(model_dir: Path) -> None:
    engine = make_engine(model_dir, prefix_cache=False)
    for key in "ab":
        engine.admit(key, PREFIX, len(PREFIX), GREEDY, hashes_of(PREFIX))
    assert engine.step().num_prefill_tokens == 2 * len(PREFIX)


def test_a_prompt_whose_log_probabilities_are_wanted_computes_all_of_itself(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    scored = replace(GREEDY, prompt_logprobs=0)
    admit(engine, "scored", PREFIX, scored)
    for key in "ab":
        admit(engine, key, PREFIX)
    told, computed = 0, 0
    while engine.has_work:
        result = engine.step()
        engine.check()
        told += sum(len(scores.logprobs) for scores in result.prompt_scores)
        computed += result.num_prefill_tokens
    assert told == len(PREFIX) - 1
    assert computed == 2 * len(PREFIX) + 16  # "b" begins with the last block of its own


def test_tenants_wait_for_no_prefix_of_others(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    for tenant in ("blue", "red"):
        engine.admit(tenant, PREFIX, len(PREFIX), GREEDY, tenant=tenant)
    assert engine.step().num_prefill_tokens == 2 * len(PREFIX)


def test_when_the_sequence_that_computes_a_prefix_is_released_another_goes_on(model_dir: Path) -> None:
    expected = PREFIX + undisturbed(model_dir, PREFIX)
    engine = make_engine(model_dir, max_batch_tokens=64)
    for key in "abc":
        admit(engine, key, PREFIX)
    assert [progress.key for progress in engine.step().computed] == ["a"]
    engine.release("a")
    assert [progress.key for progress in engine.step().computed] == ["b"]
    engine.release("b")
    computed, drawn = computed_and_drawn(engine, {"c": list(PREFIX)})
    assert computed == len(PREFIX) - 128
    assert drawn["c"] == expected


def test_a_sequence_that_computes_a_prefix_and_is_preempted_holds_nobody_up(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=64)
    for key in "ab":
        admit(engine, key, PREFIX)
    engine.step()
    engine._block_manager.preempt(engine._scheduler.sequences["a"])
    engine._scheduler._resume_preempted = lambda: None  # type: ignore[method-assign]  # no room for it yet
    assert [progress.key for progress in engine.step().computed] == ["b"]


def test_sequences_that_wait_for_a_prefix_hold_one_copy_of_it(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    for key in "ab":
        admit(engine, key, PREFIX)
    assert engine.blocks.num_held == 24
    engine.step()
    reused = engine.step().reused
    assert [(each.key, each.start_token, each.end_token) for each in reused] == [("b", 0, 176)]
    assert engine.blocks.num_held == 12 + 1  # "a" has begun one with what it drew


def test_blocks_that_are_promised_are_kept_and_get_a_copy_of_what_another_computed(model_dir: Path) -> None:
    engine, prompt = make_engine(model_dir), list(range(40))
    heard: list[tuple[int, int, int]] = []
    admit(engine, "a", prompt)
    promised = engine.admit(
        "p", prompt, 40, GREEDY, stop_after=1, on_layer=lambda *told: heard.append(told)
    ).tables[0]
    engine.step()
    assert heard == []
    engine.step()
    assert tuple(engine._scheduler.sequences["p"].tables[0].blocks) == promised
    assert heard == [(layer, *tokens) for tokens in ((0, 32), (32, 40)) for layer in range(3)]
    first = engine._scheduler.sequences["a"].tables[0].blocks
    for layer in range(3):
        for own, copied in zip(first[:2], promised[:2], strict=True):
            assert engine.kv_pool.block_view(layer, own) == engine.kv_pool.block_view(layer, copied)
    assert engine.blocks.num_held == 6
    engine.release("a")
    engine.check()
    assert engine.blocks.num_held == 5  # two of "a" stay held for the names of what follows
    engine.release("p")
    assert engine.blocks.num_held == 0
    assert engine.admit("again", prompt, 40, SamplingParams()).cached_tokens == 32


def test_a_pool_is_sized_from_a_byte_budget(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_memory_mb=1)
    assert engine.config.kv_blocks == (1 << 20) // engine.layout.block_bytes
    assert engine.blocks.num_blocks == engine.kv_pool.num_blocks == engine.config.kv_blocks
    assert make_engine(model_dir, kv_memory_mb=1, kv_dtype="int8").config.kv_blocks > engine.config.kv_blocks
