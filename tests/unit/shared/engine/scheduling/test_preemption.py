from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from shared.engine import Engine, EngineConfig, SamplingParams
from shared.engine.cost_model import Features
from shared.engine.memory import disk_tier
from shared.engine.memory.disk_tier import DiskTier
from shared.engine.scheduling.order import AGING_US, keeps_blocks
from shared.errors import InvalidRequest, Overloaded
from shared.fairness.share import TenantShare
from shared.fairness.token_cost import prompt_cost, step_cost
from tests.support.engine import (
    FANCY,
    GREEDY,
    admit,
    drive,
    make_engine,
    prompts,
    undisturbed,
)

VOCAB = 97


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


def offload_fields(tier: str, tmp_path: Path) -> dict[str, Any]:
    tiers: dict[str, dict[str, Any]] = {
        "none": {},
        "memory": {"offload_memory_mb": 1},
        "disk": {"offload_dir": str(tmp_path), "offload_disk_mb": 1},
    }
    return tiers[tier]


@pytest.mark.parametrize("params", [GREEDY, FANCY, SamplingParams(max_tokens=40, ignore_eos=True, seed=2)])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("tier", ["none", "memory", "disk"])
def test_preempted_sequences_draw_what_undisturbed_ones_draw(
    model_dir: Path, params: SamplingParams, prefix_cache: bool, tier: str, tmp_path: Path
) -> None:
    many = prompts(4, VOCAB, longest=20)
    expected = {str(i): undisturbed(model_dir, p, params) for i, p in enumerate(many)}
    engine = make_engine(model_dir, kv_blocks=8, prefix_cache=prefix_cache, **offload_fields(tier, tmp_path))
    known = {str(i): list(p) for i, p in enumerate(many)}
    for key, prompt in known.items():
        admit(engine, key, prompt, params)
    assert run_until_preempted(engine, known)
    drive(engine, known)
    assert {key: known[key][len(many[int(key)]) :] for key in known} == expected
    assert engine.held() == {}
    engine.close()
    assert list(tmp_path.iterdir()) == []


def three_on_three_blocks(engine: Engine) -> dict[str, list[int]]:
    """ "c" has been preempted, and its KV offloaded where that is configured."""
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    run_until_preempted(engine, known)
    return known


def test_offloaded_kv_is_not_computed_again(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4, prefix_cache=False, offload_memory_mb=1)
    known = three_on_three_blocks(engine)
    saved = engine.offload_stats
    assert saved is not None
    assert (saved.saved, saved.memory_bytes) == (1, engine.layout.block_bytes)
    for key in "ab":
        engine.release(key)
    computed = 0
    while engine.has_work:
        computed += engine.step().num_prefill_tokens
        engine.check()
    restored = engine.offload_stats
    assert computed == 0
    assert restored is not None
    assert (restored.restored, restored.memory_bytes) == (1, 0)
    assert len(known["c"]) > 14


def test_a_released_sequence_leaves_nothing_in_the_offload_store(model_dir: Path, tmp_path: Path) -> None:
    for tier in ("memory", "disk"):
        engine = make_engine(model_dir, kv_blocks=4, **offload_fields(tier, tmp_path))
        three_on_three_blocks(engine)
        assert engine.release("c")
        engine.check()
        stats = engine.offload_stats
        assert stats is not None
        assert (stats.saved, stats.memory_bytes, stats.disk_bytes) == (1, 0, 0)
        engine.close()


def disk_of(engine: Engine) -> DiskTier:
    assert engine._offloads is not None
    assert engine._offloads._disk is not None
    return engine._offloads._disk


def test_steps_go_on_while_kv_is_read_from_disk(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(model_dir, [2] * 14)
    engine = make_engine(model_dir, kv_blocks=4, prefix_cache=False, **offload_fields("disk", tmp_path))
    known = three_on_three_blocks(engine)
    disk_of(engine)._entries["c"].writing.result(timeout=60)
    reads = Event()
    real_read = disk_tier._read

    def slow_read(*arguments: Any) -> Any:
        assert reads.wait(60)
        return real_read(*arguments)

    monkeypatch.setattr(disk_tier, "_read", slow_read)
    engine.release("b")  # there is room for "c"
    for _ in range(5):
        assert [output.key for output in engine.step().outputs] == ["a"]
        engine.check()
    reads.set()
    engine.release("a")  # nobody else is held up by waiting for it
    del known["a"], known["b"]
    computed = engine.step()
    assert (computed.num_prefill_tokens, computed.num_decode) == (0, 1)
    known["c"] += [token for output in computed.outputs for token in output.token_ids]
    drive(engine, known)
    assert known["c"][14:] == expected
    engine.close()


def test_kv_that_the_disk_lost_is_computed_again(model_dir: Path, tmp_path: Path) -> None:
    expected = undisturbed(model_dir, [2] * 14)
    engine = make_engine(model_dir, kv_blocks=4, prefix_cache=False, **offload_fields("disk", tmp_path))
    known = three_on_three_blocks(engine)
    os.ftruncate(disk_of(engine)._entries["c"].writing.result(timeout=60).file.fileno(), 10)
    drive(engine, known)
    assert known["c"][14:] == expected
    stats = engine.offload_stats
    assert stats is not None
    assert (stats.failed, stats.disk_bytes) == (1, 0)
    engine.close()


def test_kv_that_is_cheaper_to_compute_than_to_copy_is_not_offloaded(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4, offload_memory_mb=1)
    for _ in range(20):  # a machine that computes a token in no time
        engine.cost.observe(Features(10, 1, 55), 1e-6)
    engine.cost.observe = lambda *_: None  # type: ignore[method-assign] # and stays one
    three_on_three_blocks(engine)
    stats = engine.offload_stats
    assert stats is not None
    assert (stats.saved, stats.memory_bytes) == (0, 0)


def test_a_missing_offload_folder_is_refused_at_the_start(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="offload_dir"):
        make_engine(model_dir, **offload_fields("disk", tmp_path / "missing"))


def test_the_lowest_class_gives_way_then_the_latest_deadline(model_dir: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": {"priority": 2}}, "a"),
        ({"b": {"deadline_us": 1 << 60}}, "b"),
        ({"a": {"priority": 2}, "b": {"deadline_us": 1 << 60}}, "a"),
    ]
    for fields, victim in cases:
        engine = make_engine(model_dir, kv_blocks=4)
        known = {key: [number] * 14 for number, key in enumerate("abc")}
        for key, prompt in known.items():
            engine.admit(key, prompt, 14, GREEDY, **fields.get(key, {}))
        assert run_until_preempted(engine, known) == (victim,)


def test_a_higher_class_comes_in_past_a_preempted_sequence_until_that_has_waited_long(
    model_dir: Path,
) -> None:
    now_us = [0]
    config = EngineConfig(str(model_dir), kv_blocks=5, max_sequences=8)
    engine = Engine(config, now_us=lambda: now_us[0])
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    engine.reserve("r", 10, [])
    run_until_preempted(engine, known)
    with pytest.raises(Overloaded, match="preempted"):
        admit(engine, "d", [1])
    engine.release("r")
    engine.admit("e", [1], 1, GREEDY, priority=0)
    engine.release("e")
    now_us[0] += AGING_US
    with pytest.raises(Overloaded, match="preempted"):
        engine.admit("f", [1], 1, GREEDY, priority=0)


def test_the_latest_admitted_sequence_gives_way(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    assert run_until_preempted(engine, known) == ("c",)
    assert engine.held() == {"a": 2, "b": 2, "c": 0}


def test_nobody_new_comes_in_while_a_preempted_sequence_waits(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=3)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    run_until_preempted(engine, known)
    with pytest.raises(Overloaded, match="preempted"):
        admit(engine, "d", [1])


def test_kv_promised_to_others_is_never_taken(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    engine.admit("held", [1] * 20, 20, GREEDY, stop_after=1)
    engine.reserve("reserved", 10, [])
    engine.step()
    admit(engine, "live", [2] * 10)
    expected = undisturbed(model_dir, [2] * 10)
    known = {"live": [2] * 10, "held": [], "reserved": []}
    assert run_until_preempted(engine, known) == ("live",)
    assert engine.held() == {"held": 2, "reserved": 1, "live": 0}
    can_go_on = [engine.has_work, engine.release("held") and engine.has_work]
    assert can_go_on == [False, True]  # nothing to do until somebody lets go
    engine.release("reserved")
    drive(engine, known)
    assert known["live"][10:] == expected


def test_a_prefill_whose_kv_is_on_its_way_out_is_never_preempted(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4, max_batch_tokens=5, max_sequences=2)
    known = {"live": [2] * 14, "promised": [1] * 40}
    admit(engine, "live", known["live"])
    while engine.step().num_decode == 0:
        engine.check()
    result = engine.admit("promised", [1] * 40, 40, GREEDY, stop_after=1)
    known["live"] += [0, 0]  # two tokens are drawn already
    assert run_until_preempted(engine, known) == ("live",)
    assert engine.held() == {"live": 0, "promised": len(result.tables[0])}


def test_a_preempted_sequence_can_be_released(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=3)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        admit(engine, key, prompt)
    run_until_preempted(engine, known)
    for key in known:
        assert engine.release(key)
    engine.check()
    assert engine.blocks.num_held == 0
    assert not engine.has_work


def test_stop_after_takes_all_blocks_it_will_need_at_once(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    assert len(engine.admit("p", [1] * 16, 16, GREEDY, stop_after=20).tables[0]) == 3
    with pytest.raises(Overloaded):
        admit(engine, "q", [1] * 20)


def test_a_sequence_that_gave_way_is_not_the_next_to_do_so_for_later_ones(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    for key, prompt in known.items():
        engine.admit(key, prompt, 14, GREEDY, priority=2 if key == "c" else 1)
    assert run_until_preempted(engine, known) == ("c",)
    again = engine._scheduler.sequences["c"]
    within_tenant = keeps_blocks(again, engine._scheduler.counters)[2:]
    assert within_tenant < (1, again.deadline_us + 1, 0)  # as if it had come in as normal
    drive(engine, known)


def test_a_sequence_whose_rules_cannot_be_made_leaves_no_block(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(model_dir)
    admit(engine, "a", [1] * 20)
    engine.step()
    held = engine.blocks.num_held
    reservation = engine.reserve("r", 20, [])

    def no_memory(*_: object) -> None:
        raise Overloaded("no memory")

    monkeypatch.setattr(engine._sampler, "track", no_memory)
    with pytest.raises(Overloaded, match="no memory"):
        admit(engine, "b", [2] * 20)
    with pytest.raises(Overloaded, match="no memory"):
        engine.fork("a", "c", GREEDY)
    with pytest.raises(Overloaded, match="no memory"):
        engine.attach("r", [1] * 21, 21, GREEDY)
    engine.check()
    assert sorted(engine.held()) == ["a", "r"]
    assert engine.blocks.num_held == held + len(reservation.tables[0])


def test_ids_and_priorities_out_of_range_are_refused_by_name(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    for wrong in (-1, 2**40):
        with pytest.raises(InvalidRequest, match="token ids"):
            admit(engine, "a", [wrong] * 16)
        with pytest.raises(InvalidRequest, match="token ids"):
            engine.admit("a", [wrong] * 16, 16, GREEDY, tenant="t")
    engine.reserve("r", 15, [])
    with pytest.raises(InvalidRequest, match="priority"):
        engine.attach("r", [1] * 16, 16, GREEDY, priority=3)
    engine.check()


HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def held_by(engine: Engine, known: dict[str, list[int]], shares: dict[str, TenantShare]) -> None:
    for key, prompt in known.items():
        engine.admit(key, prompt, 14, GREEDY, share=shares[key], priority=0 if shares[key] == HEAVY else 2)


def test_the_tenant_that_has_had_most_gives_way_to_the_other_whatever_its_class(model_dir: Path) -> None:
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    expected = {key: undisturbed(model_dir, prompt) for key, prompt in known.items()}
    engine = make_engine(model_dir, kv_blocks=4)
    shares = {"a": HEAVY, "b": HEAVY, "c": LIGHT}
    held_by(engine, known, shares)
    assert run_until_preempted(engine, known) == ("b",)
    drive(engine, known)
    assert {key: tokens[14:] for key, tokens in known.items()} == expected


def test_a_tenants_newcomer_does_not_wait_behind_anothers_that_gave_way(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    known = {key: [number] * 14 for number, key in enumerate("abc")}
    held_by(engine, known, {"a": HEAVY, "b": HEAVY, "c": LIGHT})
    run_until_preempted(engine, known)
    engine.release("a")
    with pytest.raises(Overloaded, match="preempted sequence waits"):
        engine.admit("d", [5] * 4, 4, GREEDY, share=HEAVY)
    engine.admit("e", [6] * 4, 4, GREEDY, share=LIGHT)
    engine.check()


def test_what_is_computed_again_after_giving_way_is_charged_once(model_dir: Path) -> None:
    """The same work with and without room: what a tenant has had does not depend on who gave way."""
    had: dict[int, list[float]] = {}
    for blocks in (4, 16):
        engine = make_engine(model_dir, kv_blocks=blocks, prefix_cache=False)
        known = {key: [number] * 14 for number, key in enumerate("abc")}
        shares = {"a": HEAVY, "b": HEAVY, "c": LIGHT}
        held_by(engine, known, shares)
        for share in (HEAVY, LIGHT):
            engine._scheduler.counters.join(share.tenant)  # as if they wanted more: they are remembered
        drive(engine, known)
        had[blocks] = [engine._scheduler.counters.standing(share.tenant)[0] for share in (HEAVY, LIGHT)]
    assert had[4] == pytest.approx(had[16])


def test_of_a_tenant_that_is_alone_in_the_engine_only_prompts_count(model_dir: Path) -> None:
    """What it draws is a charge a step, and nobody is there to be compared with."""
    engine = make_engine(model_dir)
    engine.admit("a", [1] * 20, 20, GREEDY, share=HEAVY)
    for _ in range(5):
        engine.step()
    counted = prompt_cost(20) + step_cost(1, 20)
    assert engine._scheduler.counters.standing(HEAVY.tenant)[0] == counted
