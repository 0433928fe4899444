from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from shared.engine import LLM, Engine, EngineConfig, SamplingParams, TokenOutput
from shared.engine.memory.pool_pages import shared_page_bytes
from shared.errors import InvalidRequest, NotFound, Overloaded
from tests.support.block_hashes import hashes_of, numbered_hashes
from tests.support.clock import FakeClock
from tests.support.engine import (
    FANCY,
    GREEDY,
    admit,
    drive,
    generate,
    make_engine,
    oracle,
    oracle_greedy,
    prompts,
    trained_model,
    undisturbed,
)
from tests.support.memory import resident_bytes

VOCAB = 97


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> PreTrainedModel:
    return oracle(model_dir)


@pytest.fixture
def engine(model_dir: Path) -> Iterator[Engine]:
    engine = make_engine(model_dir)
    yield engine
    engine.check()


def mixed_params() -> list[SamplingParams]:
    plain = SamplingParams(max_tokens=30, ignore_eos=True)
    return [GREEDY, FANCY, plain, replace(plain, seed=5, top_p=0.8), replace(FANCY, seed=3, temperature=0.0)]


# --- against transformers ---


def test_twenty_prompts_at_once_equal_transformers_greedy_tokens() -> None:
    model_dir = trained_model()
    if model_dir is None:
        pytest.skip("the shared test data is not here")
    reference, many = oracle(model_dir), prompts(20, 512, longest=200)
    engine = make_engine(model_dir, kv_blocks=512, max_sequences=32, max_batch_tokens=96)
    params = replace(GREEDY, max_tokens=60)
    for index, prompt in enumerate(many):
        admit(engine, str(index), prompt, params)
    drawn = drive(engine, {str(index): list(prompt) for index, prompt in enumerate(many)})
    for index, prompt in enumerate(many):
        ours = drawn[str(index)]
        assert ours == oracle_greedy(reference, prompt, 60, ours)


def test_a_prompt_of_one_token_equals_transformers(engine: Engine, reference: PreTrainedModel) -> None:
    assert generate(engine, [3]) == oracle_greedy(reference, [3], 40)


def test_a_prompt_one_below_the_limit_draws_one_token(engine: Engine, reference: PreTrainedModel) -> None:
    prompt = (prompts(1, VOCAB)[0] * 256)[:255]
    outputs: list[TokenOutput] = []
    admit(engine, "a", prompt)
    drawn = drive(engine, {"a": list(prompt)}, outputs=outputs)
    assert drawn["a"] == oracle_greedy(reference, prompt, 1)
    assert outputs[-1].finish_reason == "length"


# --- the same answer, however it is computed ---


@pytest.mark.thorough(but="1-params1 | 16-params2 | 33-params3 | 7-params4 | 7-params0")
@pytest.mark.parametrize("params", mixed_params())
@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_chunked_prefill_draws_what_whole_prefill_draws(
    model_dir: Path, params: SamplingParams, chunk: int
) -> None:
    prompt = (prompts(1, VOCAB)[0] * 80)[:79]
    whole = undisturbed(model_dir, prompt, params)
    chunked = make_engine(model_dir, max_batch_tokens=chunk, max_sequences=1)
    assert generate(chunked, prompt, params) == whole


@pytest.mark.thorough(but="50-params4 | 17-params0 | 16-params1 | 15-params2 | 32-params3")
@pytest.mark.parametrize("params", mixed_params())
@pytest.mark.parametrize("length", [15, 16, 17, 32, 50])
def test_a_cached_prefix_draws_what_a_cold_one_draws(
    model_dir: Path, params: SamplingParams, length: int
) -> None:
    prompt = (prompts(1, VOCAB)[0] * 50)[:length]
    cold = undisturbed(model_dir, prompt, params, prefix_cache=False)
    engine = make_engine(model_dir)
    assert generate(engine, prompt, params) == cold
    result = engine.admit("again", prompt, length, params)
    assert result.cached_tokens == (length - 1) // 16 * 16
    assert drive(engine, {"again": list(prompt)})["again"] == cold


def test_a_mixed_batch_draws_what_each_sequence_draws_alone(model_dir: Path) -> None:
    alone = make_engine(model_dir, prefix_cache=False)
    together = make_engine(model_dir, max_batch_tokens=24, kv_blocks=128)
    many, params = prompts(10, VOCAB), mixed_params() * 2
    expected: dict[str, list[int]] = {}
    known: dict[str, list[int]] = {}
    for index, (prompt, each) in enumerate(zip(many, params, strict=True)):
        expected[str(index)] = generate(alone, prompt, each)
        admit(together, str(index), prompt, each)
        known[str(index)] = list(prompt)
    assert drive(together, known) == expected


@pytest.mark.parametrize("params", mixed_params())
@pytest.mark.parametrize("done", [1, 5, 20])
def test_a_recovered_sequence_continues_as_if_undisturbed(
    model_dir: Path, params: SamplingParams, done: int
) -> None:
    prompt = prompts(1, VOCAB)[0]
    whole = undisturbed(model_dir, prompt, params)
    done = min(done, len(whole) - 1)
    engine = make_engine(model_dir)
    known = prompt + whole[:done]
    engine.admit("b", known, len(prompt), params)
    assert whole[:done] + drive(engine, {"b": list(known)})["b"] == whole


def test_decode_goes_on_while_a_long_prompt_is_prefilled(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=16, max_sequences=4)
    admit(engine, "live", [1, 2, 3])
    engine.step()
    admit(engine, "long", prompts(1, VOCAB)[0] * 3)
    result = engine.step()
    assert result.num_decode == 1
    assert result.num_prefill_tokens == 15
    assert [output.key for output in result.outputs] == ["live"]
    assert [(each.key, each.start_token, each.end_token) for each in result.computed] == [("long", 0, 15)]


def test_the_earliest_admitted_prompt_is_prefilled_first(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=20, max_sequences=4)
    for key in ("first", "second"):
        admit(engine, key, [5] * 15)
    computed = engine.step().computed
    assert [(each.key, each.end_token) for each in computed] == [("first", 15), ("second", 5)]


# --- how sequences end ---


def finish(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[list[int], str | None]:
    outputs: list[TokenOutput] = []
    admit(engine, "end", prompt, params)
    drawn = drive(engine, {"end": list(prompt)}, outputs=outputs)["end"]
    assert all(output.finish_reason is None for output in outputs[:-1])
    assert engine.held() == {}
    return drawn, outputs[-1].finish_reason


def test_a_stop_id_ends_the_sequence_and_is_part_of_it(engine: Engine) -> None:
    plain = generate(engine, [5, 6])
    stop = plain[7]
    drawn, reason = finish(engine, [5, 6], replace(GREEDY, stop_token_ids=(stop,)))
    assert drawn == plain[: plain.index(stop) + 1]
    assert reason == "stop"


def eos_model(model_dir: Path, target: Path, eos: int) -> Path:
    for name in ("model.safetensors", "config.json"):
        (target / name).write_bytes((model_dir / name).read_bytes())
    (target / "generation_config.json").write_text(f'{{"eos_token_id": {eos}}}')
    return target


def test_the_end_token_ends_the_sequence_unless_ignored(
    model_dir: Path, engine: Engine, tmp_path: Path
) -> None:
    plain = generate(engine, [5, 6])
    ending = make_engine(eos_model(model_dir, tmp_path, plain[9]))
    drawn, reason = finish(ending, [5, 6], replace(GREEDY, ignore_eos=False))
    assert (drawn, reason) == (plain[: plain.index(plain[9]) + 1], "stop")
    assert finish(ending, [5, 6], GREEDY) == (plain, "length")


def test_min_tokens_keeps_end_ids_from_being_drawn(engine: Engine) -> None:
    plain = generate(engine, [5, 6])
    params = replace(GREEDY, stop_token_ids=(plain[2],), min_tokens=8)
    drawn, _ = finish(engine, [5, 6], params)
    assert plain[2] not in drawn[:8]
    assert len(drawn) > 8


def test_logprobs_come_one_per_token(engine: Engine) -> None:
    outputs: list[TokenOutput] = []
    admit(engine, "a", [5], replace(GREEDY, logprobs=2, max_tokens=5))
    drive(engine, {"a": [5]}, outputs=outputs)
    for output in outputs:
        assert [each.token_id for each in output.logprobs] == list(output.token_ids)
        assert all(each.top[0] == (each.token_id, each.logprob) for each in output.logprobs)


def test_a_release_between_steps_frees_everything_and_disturbs_nobody(
    engine: Engine, model_dir: Path
) -> None:
    expected = undisturbed(model_dir, [8, 9])
    admit(engine, "gone", prompts(1, VOCAB)[0], FANCY)
    admit(engine, "stays", [8, 9])
    engine.step()
    assert engine.release("gone")
    assert not engine.release("gone")
    assert list(engine.held()) == ["stays"]
    tokens = expected[:1]
    assert tokens + drive(engine, {"stays": [8, 9, *tokens]})["stays"] == expected
    assert engine.blocks.num_held == 0


# --- naming blocks ---


def test_blocks_named_by_the_caller_are_found_by_the_same_names_only(engine: Engine) -> None:
    prompt = list(range(40))
    params = replace(GREEDY, max_tokens=1)
    for layout, cached in (("1", 0), ("1", 32), ("2", 0)):
        assert engine.admit("a", prompt, 40, params, hashes_of(prompt, layout)).cached_tokens == cached
        drive(engine, {"a": list(prompt)})


def test_generated_blocks_continue_the_callers_chain(engine: Engine) -> None:
    prompt = list(range(20))
    engine.admit("a", prompt, 20, GREEDY, hashes_of(prompt))
    tokens = prompt + drive(engine, {"a": list(prompt)})["a"]
    assert engine.blocks.match(hashes_of(tokens[:-1])) != []
    assert engine.blocks.num_cached == len(hashes_of(tokens[:-1])) == 3


def test_a_sequence_without_an_anchor_never_enters_the_cache(engine: Engine) -> None:
    engine.admit("a", [1, 2], 2, GREEDY, [])
    drive(engine, {"a": [1, 2]})
    assert engine.blocks.num_cached == 0


def test_an_engine_that_is_told_no_time_keeps_its_memory(engine: Engine) -> None:
    generate(engine, [3])
    assert (engine.gives_back_idle, engine.give_back_idle()) == (False, math.inf)
    assert engine.blocks.num_resident > 0


def test_answers_are_the_same_when_the_pool_has_given_all_of_its_memory_back(model_dir: Path) -> None:
    clock = FakeClock()
    engine = Engine(EngineConfig(str(model_dir), kv_blocks=64, kv_idle_s=1.0), clock=clock)
    prompt = prompts(1, VOCAB)[0] * 8
    before = generate(engine, prompt)
    clock.advance(1.0)
    while engine.give_back_idle() == 0.0:
        engine.check()
    pool = engine.kv_pool
    assert engine.blocks.num_resident == 0
    assert resident_bytes(pool.data.data_ptr(), pool.nbytes) < shared_page_bytes()  # the end of the pool
    assert generate(engine, prompt) == before


# --- what is refused ---


@pytest.mark.parametrize(
    ("token_ids", "prompt_len", "sentence"),
    [
        ([], 0, "no tokens"),
        ([97], 1, "from 0 to 96"),
        ([-1], 1, "from 0 to 96"),
        ([1.0], 1, "from 0 to 96"),
        (["1"], 1, "from 0 to 96"),
        ([1, 2], 0, "prompt_len 0"),
        ([1, 2], 3, "prompt_len 3"),
        ([1] * 256, 256, "shorten the prompt"),
        ([1] * 257, 257, "above the limit"),
        ([1] * 50, 10, "no room to generate"),
    ],
)
def test_tokens_that_cannot_be_served_are_refused(
    engine: Engine, token_ids: list[Any], prompt_len: int, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        engine.admit("a", token_ids, prompt_len, GREEDY)
    assert engine.held() == {}


def test_a_sequence_that_has_ended_is_not_continued(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="has ended"):
        engine.admit("a", [1, 2, 3, 7], 3, FANCY)
    engine.admit("a", [1, 2, 3, 7], 4, FANCY)  # in the prompt an end id is a token like any other
    engine.release("a")


def test_wrong_options_are_refused(engine: Engine) -> None:
    options: list[tuple[str, dict[str, Any]]] = [
        ("temperature", {"params": SamplingParams(temperature=-1)}),
        ("too many", {"params": GREEDY, "block_hashes": numbered_hashes([1, 2])}),
        ("16 bytes", {"params": GREEDY, "token_ids": [1] * 33, "prompt_len": 33, "block_hashes": [b"short"]}),
        ("stop_after", {"params": GREEDY, "stop_after": 0}),
        ("on_layer", {"params": GREEDY, "on_layer": lambda *_: None}),
    ]
    for sentence, fields in options:
        with pytest.raises(InvalidRequest, match=sentence):
            engine.admit("a", **{"token_ids": [1], "prompt_len": 1, **fields})
    assert engine.held() == {}


def test_a_key_can_be_held_only_once(engine: Engine) -> None:
    admit(engine, "a", [1])
    with pytest.raises(InvalidRequest, match="already held"):
        admit(engine, "a", [1])
    engine.release("a")


def test_more_sequences_than_configured_are_overload(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_sequences=1)
    admit(engine, "a", [1])
    with pytest.raises(Overloaded, match="max_sequences"):
        admit(engine, "b", [1])


def test_more_prompt_than_free_blocks_is_overload_and_takes_nothing(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    admit(engine, "a", [1] * 40)
    held = engine.held()
    with pytest.raises(Overloaded, match="KV blocks"):
        admit(engine, "b", [2] * 20)
    assert engine.held() == held
    engine.check()


# --- the in-process API ---


def test_llm_completes_more_prompts_than_fit_at_once(model_dir: Path, reference: PreTrainedModel) -> None:
    llm = LLM(model_dir, kv_blocks=16, max_sequences=3)
    many = prompts(7, VOCAB)
    completions = llm.generate(many, GREEDY)
    expected = [oracle_greedy(reference, prompt, 40) for prompt in many]
    assert [list(each.token_ids) for each in completions] == expected
    assert {each.finish_reason for each in completions} == {"length"}
    assert llm.engine.held() == {}


def test_llm_completes_text() -> None:
    model_dir = trained_model()
    if model_dir is None:
        pytest.skip("the shared test data is not here")
    (completion,) = LLM(model_dir).generate(["Once upon a time"], replace(GREEDY, max_tokens=30))
    assert "there was a" in completion.text


def test_llm_without_tokenizer_refuses_text(model_dir: Path) -> None:
    with pytest.raises(NotFound, match=r"tokenizer\.json"):
        LLM(model_dir).generate(["text"], GREEDY)


def test_llm_gives_everything_back_when_a_prompt_is_refused(model_dir: Path) -> None:
    llm = LLM(model_dir)
    with pytest.raises(InvalidRequest):
        llm.generate([[1, 2], [97]], GREEDY)
    assert llm.engine.held() == {}


async def test_an_engine_works_in_a_thread_that_did_not_make_it(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    expected = generate(engine, [4, 5, 6])
    assert await asyncio.to_thread(generate, engine, [4, 5, 6]) == expected
