"""Adapters that an engine has, and the sequences that name them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine import LLM, Engine, EngineConfig
from shared.engine.adapters import MAX_ADAPTER_NAME, AdapterRegistry
from shared.engine.batch import PackedAdapter
from shared.engine.loading.adapter import AdapterWeights
from shared.errors import InvalidRequest, NotFound
from tests.support.adapters import save_adapter
from tests.support.block_hashes import hashes_of
from tests.support.engine import FANCY, GREEDY, drive, make_engine, prompts, save_random_model

VOCAB = 97
NAMES = ("a", "b", "")
LONG = [(7 * number + 3) % VOCAB for number in range(40)]  # two full blocks and a part of one
SHORT = replace(GREEDY, max_tokens=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model, and adapters a, b and a third whose content is that of a."""
    root = tmp_path_factory.mktemp("adapted")
    config = make_engine(save_random_model(root / "model")).model_config
    save_adapter(root / "a", config, seed=1)
    save_adapter(root / "b", config, seed=2, rank=6)
    save_adapter(root / "again", config, seed=1, lora_dropout=0.1)
    return root


def engine_with(folder: Path, **fields: object) -> Engine:
    engine = make_engine(folder / "model", **fields)
    engine.load_adapter("a", str(folder / "a"))
    engine.load_adapter("b", str(folder / "b"))
    return engine


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    engine = engine_with(folder)
    yield engine
    engine.check()
    engine.close()


def alone(engine: Engine, prompt: list[int], adapter: str, params: object = SHORT) -> list[int]:
    engine.admit("alone", prompt, len(prompt), params, adapter=adapter)  # type: ignore[arg-type]
    return drive(engine, {"alone": list(prompt)})["alone"]


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    """What LONG goes on with, by adapter; each from an engine of its own."""
    found = {name: alone(engine_with(folder), LONG, name) for name in NAMES}
    assert len({tuple(ids) for ids in found.values()}) == 3
    return found


# --- loading ---


def test_what_is_loaded_is_told(engine: Engine, folder: Path) -> None:
    assert [info.name for info in engine.adapters] == ["a", "b"]
    assert [info.rank for info in engine.adapters] == [4, 6]
    assert all(info.nbytes > 0 for info in engine.adapters)
    assert len({info.digest for info in engine.adapters}) == 2


def test_an_adapter_is_read_and_packed_on_one_thread_and_the_number_is_as_before(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    model: Any = engine._model
    pack = model.pack_adapter

    def packing(weights: AdapterWeights) -> PackedAdapter:
        seen.append(torch.get_num_threads())
        packed: PackedAdapter = pack(weights)
        return packed

    monkeypatch.setattr(model, "pack_adapter", packing)
    torch.set_num_threads(2)
    try:
        engine.load_adapter("c", str(folder / "a"))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_a_name_may_be_loaded_again_with_the_same_content_alone(engine: Engine, folder: Path) -> None:
    before = engine.adapters
    assert engine.load_adapter("a", str(folder / "again")) == before[0]
    with pytest.raises(InvalidRequest, match="'a' is loaded with other weights"):
        engine.load_adapter("a", str(folder / "b"))
    assert engine.adapters == before


@pytest.mark.parametrize("name", ["", "-a", "a:b", "a/b", "ä", "x" * (MAX_ADAPTER_NAME + 1)])
def test_what_is_no_name_is_refused(name: str, engine: Engine, folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="no name for an adapter"):
        engine.load_adapter(name, str(folder / "a"))


def test_the_longest_name_is_one(engine: Engine, folder: Path) -> None:
    assert engine.load_adapter("x" * MAX_ADAPTER_NAME, str(folder / "a")).rank == 4


def test_no_more_than_max_adapters_are_loaded(folder: Path) -> None:
    engine = engine_with(folder, max_adapters=2)
    with pytest.raises(InvalidRequest, match="all 2 adapters are loaded"):
        engine.load_adapter("c", str(folder / "again"))
    assert engine.load_adapter("b", str(folder / "b")) == engine.adapters[1]  # it is there already
    engine.unload_adapter("b")
    engine.load_adapter("c", str(folder / "again"))
    assert [info.name for info in engine.adapters] == ["a", "c"]


def test_a_rank_above_max_adapter_rank_is_refused(folder: Path) -> None:
    engine = make_engine(folder / "model", max_adapter_rank=5)
    engine.load_adapter("a", str(folder / "a"))
    with pytest.raises(InvalidRequest, match="rank 6, above max_adapter_rank 5"):
        engine.load_adapter("b", str(folder / "b"))


@pytest.mark.parametrize("fields", [{"device": "cuda"}, {"tensor_parallel": 2}], ids=str)
def test_backends_that_compute_no_adapters_say_so(fields: dict[str, object], engine: Engine) -> None:
    config = EngineConfig("", **fields)  # type: ignore[arg-type]
    registry = AdapterRegistry(engine._model, engine.model_config, config)
    with pytest.raises(InvalidRequest, match="adapters need device cpu without tensor_parallel"):
        registry.load("a", "anywhere")


def test_what_is_not_loaded_cannot_be_unloaded(engine: Engine) -> None:
    with pytest.raises(NotFound, match="'c' is not loaded"):
        engine.unload_adapter("c")


def test_what_is_not_loaded_is_refused_and_nothing_changes(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="adapter 'c' is not loaded here"):
        engine.admit("x", LONG, len(LONG), SHORT, adapter="c")
    with pytest.raises(InvalidRequest, match="adapter 'c' is not loaded here"):
        engine.logits(LONG, "c")
    engine.reserve("x", len(LONG) - 1, [])
    with pytest.raises(InvalidRequest, match="adapter 'c' is not loaded here"):
        engine.attach("x", LONG, len(LONG), SHORT, adapter="c")
    assert list(engine.held()) == ["x"]  # still reserved
    engine.release("x")
    assert engine.held() == {}


# --- sequences ---


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("fields", [{}, {"max_batch_tokens": 16}, {"deterministic": True}], ids=str)
def test_sequences_of_different_adapters_draw_beside_each_other_what_each_draws_alone(
    folder: Path, expected: dict[str, list[int]], fields: dict[str, object], backend: str
) -> None:
    engine = engine_with(folder, backend=backend, **fields)
    for name in NAMES:
        engine.admit(name, LONG, len(LONG), SHORT, adapter=name)
    assert drive(engine, {name: list(LONG) for name in NAMES}) == expected


@pytest.mark.parametrize("tier", [{}, {"offload_memory_mb": 1}], ids=["computed again", "offloaded"])
def test_preempted_sequences_go_on_with_their_adapters(folder: Path, tier: dict[str, object]) -> None:
    many = dict(zip("wxyz", prompts(4, VOCAB, longest=20), strict=True))
    names = dict(zip(many, ("a", "b", "", "a"), strict=True))
    params = replace(GREEDY, max_tokens=40)
    undisturbed = {key: alone(engine_with(folder), many[key], names[key], params) for key in many}
    engine = engine_with(folder, kv_blocks=8, **tier)
    for key, prompt in many.items():
        engine.admit(key, prompt, len(prompt), params, adapter=names[key])
    known = {key: list(prompt) for key, prompt in many.items()}
    preempted = 0
    while engine.has_work:
        result = engine.step()
        engine.check()
        preempted += len(result.preempted_keys)
        for output in result.outputs:
            known[output.key] += output.token_ids
    assert preempted
    assert {key: known[key][len(many[key]) :] for key in many} == undisturbed


def test_drafts_are_verified_by_the_sequences_adapter(folder: Path, expected: dict[str, list[int]]) -> None:
    engine = engine_with(folder)
    for name in NAMES:
        engine.admit(name, LONG, len(LONG), SHORT, adapter=name)
    outputs: list[object] = []

    def draft(key: str, tokens: list[int]) -> list[int]:
        """Three that are right, and one that is not."""
        right = [*LONG, *expected[key]][len(tokens) : len(tokens) + 3]
        return [*right, 5]

    drawn = drive(engine, {name: list(LONG) for name in NAMES}, draft, outputs)  # type: ignore[arg-type]
    assert drawn == expected
    assert any(output.accepted_drafts for output in outputs)  # type: ignore[attr-defined]


def test_a_fork_has_the_adapter_of_its_source(folder: Path, expected: dict[str, list[int]]) -> None:
    engine = engine_with(folder)
    engine.admit("first", LONG, len(LONG), SHORT, adapter="a")
    known = {"first": list(LONG), "fork": list(LONG)}
    for output in engine.step().outputs:
        known[output.key] += output.token_ids
    engine.fork("first", "fork", SHORT)
    drive(engine, known)
    assert known["fork"] == known["first"] == [*LONG, *expected["a"]]


def test_a_revised_sequence_keeps_its_adapter(folder: Path, expected: dict[str, list[int]]) -> None:
    engine = engine_with(folder)
    params = replace(SHORT, max_tokens=100)
    engine.admit("x", LONG, len(LONG), params, [], stop_after=6, adapter="b")
    known = {"x": list(LONG)}
    drive(engine, known)
    assert engine.revise("x", len(LONG) + 2, expected["b"][2:4], stop_after=9)
    known["x"][len(LONG) + 4 :] = []
    drive(engine, known)
    assert known["x"][len(LONG) :] == expected["b"][:13]


@pytest.mark.parametrize("adapter", NAMES)
def test_kv_that_comes_from_another_engine_goes_on_with_the_adapter(
    adapter: str, folder: Path, expected: dict[str, list[int]]
) -> None:
    source, target = engine_with(folder), engine_with(folder)
    held = source.admit("p", LONG, len(LONG), SHORT, [], stop_after=1, adapter=adapter)
    known = {"p": list(LONG)}
    drive(source, known)
    reservation = target.reserve("d", len(LONG), [])
    for layer in range(source.layout.num_layers):
        for mine, theirs in zip(held.tables[0], reservation.tables[0], strict=True):
            target.kv_pool.block_view(layer, theirs)[:] = source.kv_pool.block_view(layer, mine)
    target.attach("d", known["p"], len(LONG), SHORT, adapter=adapter)
    rest = drive(target, {"d": list(known["p"])})["d"]
    assert known["p"][len(LONG) :] + rest == expected[adapter]


# --- the prefix cache ---


def test_blocks_are_shared_within_an_adapter_and_never_between_two(engine: Engine, folder: Path) -> None:
    """Of the prompt and of what was drawn. Another name for the same content is the same adapter."""
    engine.load_adapter("again", str(folder / "again"))
    answer = alone(engine, LONG, "a")
    longer = [*LONG, *answer]
    cached = {}
    for name in ("b", "", "a", "again"):
        cached[name] = engine.admit(name, longer, len(longer), SHORT, adapter=name).cached_tokens
        engine.release(name)
    assert cached == {"b": 0, "": 0, "a": 48, "again": 48}


def test_blocks_of_an_adapter_are_the_tenants_own(engine: Engine) -> None:
    alone(engine, LONG, "a")
    assert engine.admit("x", LONG, len(LONG), SHORT, adapter="a", tenant="t").cached_tokens == 0


def test_sequences_of_different_adapters_do_not_wait_for_each_others_prefix(
    engine: Engine, expected: dict[str, list[int]]
) -> None:
    """Admitted together with one prompt and names that the engine makes: nothing of it is reused."""
    for name in NAMES:
        engine.admit(name, LONG, len(LONG), SHORT, adapter=name)
    known = {name: list(LONG) for name in NAMES}
    while engine.has_work:
        result = engine.step()
        assert result.reused == ()
        for output in result.outputs:
            known[output.key] += output.token_ids
    assert {name: known[name][len(LONG) :] for name in NAMES} == expected


def test_names_from_outside_are_taken_as_they_are(engine: Engine) -> None:
    """Whoever names blocks keys the names by the adapter's digest."""
    names = hashes_of(LONG)
    engine.admit("x", LONG, len(LONG), SHORT, names, adapter="a")
    drive(engine, {"x": list(LONG)})
    assert engine.admit("y", LONG, len(LONG), SHORT, names, adapter="a").cached_tokens == 32


# --- while it runs ---


def test_an_unloaded_adapter_stays_with_those_that_run_with_it(
    engine: Engine, folder: Path, expected: dict[str, list[int]]
) -> None:
    engine.admit("x", LONG, len(LONG), SHORT, adapter="a")
    known = {"x": list(LONG)}
    for output in engine.step().outputs:
        known[output.key] += output.token_ids
    engine.unload_adapter("a")
    with pytest.raises(InvalidRequest, match="'a' is not loaded here"):
        engine.admit("y", LONG, len(LONG), SHORT, adapter="a")
    engine.load_adapter("a", str(folder / "b"))  # the name is free
    drive(engine, known)
    assert known["x"][len(LONG) :] == expected["a"]
    assert alone(engine, LONG, "a") == expected["b"]


def test_the_memory_of_an_unloaded_adapter_goes_with_the_last_that_runs_with_it(engine: Engine) -> None:
    engine.admit("x", LONG, len(LONG), SHORT, adapter="a")
    packed = weakref.ref(engine._scheduler.sequences["x"].adapter)
    engine.unload_adapter("a")
    gc.collect()
    assert packed() is not None
    drive(engine, {"x": list(LONG)})
    gc.collect()
    assert packed() is None


def test_adapters_come_and_go_while_steps_are_computed(folder: Path, expected: dict[str, list[int]]) -> None:
    engine = engine_with(folder)

    def come_and_go() -> int:
        for number in range(40):
            engine.load_adapter(f"n{number % 3}", str(folder / "ab"[number % 2]))
            engine.unload_adapter(f"n{number % 3}")
        return len(engine.adapters)

    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(come_and_go)
        while not coming.done():
            for name in NAMES:
                engine.admit(name, LONG, len(LONG), SHORT, adapter=name)
            assert drive(engine, {name: list(LONG) for name in NAMES}) == expected
        assert coming.result() == 2


def test_one_name_loaded_by_many_at_once_is_loaded_once(folder: Path) -> None:
    engine = make_engine(folder / "model", max_adapters=1)
    with ThreadPoolExecutor(4) as executor:
        infos = list(executor.map(lambda _: engine.load_adapter("a", str(folder / "a")), range(8)))
    assert set(infos) == set(engine.adapters)
    assert len(engine.adapters) == 1


# --- the in-process API ---


def test_the_in_process_api_completes_with_an_adapter_each(
    folder: Path, expected: dict[str, list[int]]
) -> None:
    llm = LLM(folder / "model")
    for name in "ab":
        llm.load_adapter(name, folder / name)
    completions = llm.generate([LONG] * 3, SHORT, adapters=NAMES)
    assert [list(each.token_ids) for each in completions] == [expected[name] for name in NAMES]
    two = llm.generate([LONG], replace(FANCY, seed=5), n=2, adapters="a")
    again = llm.generate([LONG], replace(FANCY, seed=6), adapters="a")
    assert two[1].token_ids == again[0].token_ids
    assert (llm.logits(LONG, "a") - llm.logits(LONG)).abs().max() > 0.1
