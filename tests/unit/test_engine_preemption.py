from __future__ import annotations

from pathlib import Path

import pytest

from shared.engine import Engine, SamplingParams
from shared.errors import Overloaded
from tests.unit.engine_support import (
    FANCY,
    GREEDY,
    admit,
    drive,
    generate,
    make_engine,
    prompts,
    save_random_model,
)

VOCAB = 97


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"))


def run_until_preempted(engine: Engine, known: dict[str, list[int]]) -> tuple[str, ...]:
    preempted: tuple[str, ...] = ()
    while engine.has_work and not preempted:
        result = engine.step()
        engine.check()
        for output in result.outputs:
            known[output.key] += output.token_ids
        preempted = result.preempted_keys
    assert preempted
    return preempted


@pytest.mark.parametrize("params", [GREEDY, FANCY, SamplingParams(max_tokens=40, ignore_eos=True, seed=2)])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_sequences_draw_what_undisturbed_ones_draw(
    folder: Path, params: SamplingParams, prefix_cache: bool
) -> None:
    many = prompts(4, VOCAB, longest=20)
    expected = {str(i): generate(make_engine(folder), p, params) for i, p in enumerate(many)}
    engine = make_engine(folder, kv_blocks=8, prefix_cache=prefix_cache)
    known = {str(i): list(p) for i, p in enumerate(many)}
    for key, prompt in known.items():
        admit(engine, key, prompt, params)
    assert run_until_preempted(engine, known)
    drive(engine, known)
    assert {key: known[key][len(many[int(key)]) :] for key in known} == expected
    assert engine.held() == {}


def test_the_latest_admitted_sequence_gives_way(folder: Path) -> None:
    engine = make_engine(folder, kv_blocks=4)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    assert run_until_preempted(engine, known) == ("c",)
    assert engine.held() == {"a": 2, "b": 2, "c": 0}


def test_nobody_new_comes_in_while_a_preempted_sequence_waits(folder: Path) -> None:
    engine = make_engine(folder, kv_blocks=3)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    run_until_preempted(engine, known)
    with pytest.raises(Overloaded, match="preempted"):
        admit(engine, "d", [1])


def test_kv_promised_to_others_is_never_taken(folder: Path) -> None:
    engine = make_engine(folder, kv_blocks=4)
    engine.admit("held", [1] * 20, 20, GREEDY, stop_after=1)
    engine.reserve("reserved", 10, [])
    engine.step()
    admit(engine, "live", [2] * 10)
    expected = generate(make_engine(folder), [2] * 10)
    known = {"live": [2] * 10, "held": [], "reserved": []}
    assert run_until_preempted(engine, known) == ("live",)
    assert engine.held() == {"held": 2, "reserved": 1, "live": 0}
    can_go_on = [engine.has_work, engine.release("held") and engine.has_work]
    assert can_go_on == [False, True]  # nothing to do until somebody lets go
    engine.release("reserved")
    drive(engine, known)
    assert known["live"][10:] == expected


def test_a_prefill_whose_kv_is_on_its_way_out_is_never_preempted(folder: Path) -> None:
    engine = make_engine(folder, kv_blocks=4, max_batch_tokens=5, max_sequences=2)
    known = {"live": [2] * 14, "promised": [1] * 40}
    admit(engine, "live", known["live"])
    while engine.step().num_decode == 0:
        engine.check()
    result = engine.admit("promised", [1] * 40, 40, GREEDY, stop_after=1)
    known["live"] += [0, 0]  # two tokens are drawn already
    assert run_until_preempted(engine, known) == ("live",)
    assert engine.held() == {"live": 0, "promised": len(result.block_ids)}


def test_a_preempted_sequence_can_be_released(folder: Path) -> None:
    engine = make_engine(folder, kv_blocks=3)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    run_until_preempted(engine, known)
    for key in known:
        assert engine.release(key)
    engine.check()
    assert engine.blocks.num_held == 0
    assert not engine.has_work


def test_stop_after_takes_all_blocks_it_will_need_at_once(folder: Path) -> None:
    engine = make_engine(folder, kv_blocks=4)
    assert len(engine.admit("p", [1] * 16, 16, GREEDY, stop_after=20).block_ids) == 3
    with pytest.raises(Overloaded):
        admit(engine, "q", [1] * 20)
