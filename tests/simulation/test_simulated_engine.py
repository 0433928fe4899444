"""The simulated model is held by the tests of the real ones, as far as these do not compare with a reference:
what it draws depends on tokens, positions and seeds alone, whatever the engine does with it.

And KV that is not what it should be is a wrong token, which is what it is for.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from shared.engine import Engine, EngineConfig, SamplingParams
from shared.engine.batch import Batch, Span
from shared.engine.memory.kv_pool import BLOCK_TOKENS
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.step_profile import StepProfile
from tests.simulation.world import World
from tests.support import engine as engine_support
from tests.support.block_hashes import hashes_of
from tests.support.engine import (
    FANCY,
    GREEDY,
    drive,
    generate,
    logits_by_path,
    make_engine,
    prompts,
    save_random_model,
    tables_in,
)
from tests.support.engine_families import SHAPES
from tests.unit.shared.engine.scheduling.test_preemption import (
    test_a_higher_class_comes_in_past_a_preempted_sequence_until_that_has_waited_long,
    test_a_prefill_whose_kv_is_on_its_way_out_is_never_preempted,
    test_kv_promised_to_others_is_never_taken,
)
from tests.unit.shared.engine.scheduling.test_preemption import (
    test_preempted_sequences_draw_what_undisturbed_ones_draw as preempted_sequences_draw_alike,
)
from tests.unit.shared.engine.scheduling.test_scheduler import (
    test_cutting_steps_changes_no_token,
    test_prompts_that_share_a_cold_prefix_compute_it_once,
)
from tests.unit.shared.engine.test_generate import (
    test_a_cached_prefix_draws_what_a_cold_one_draws,
    test_a_mixed_batch_draws_what_each_sequence_draws_alone,
    test_a_recovered_sequence_continues_as_if_undisturbed,
    test_chunked_prefill_draws_what_whole_prefill_draws,
)
from tests.unit.shared.engine.test_speculation import (
    test_drafts_in_a_mixed_batch_change_nobodys_tokens,
    test_drafts_never_change_what_is_drawn,
)
from tests.unit.shared.engine.test_transfer import (
    test_a_sequence_moved_to_another_engine_goes_on_undisturbed,
    test_blocks_that_arrived_enter_the_prefix_cache_when_attached,
    test_int8_blocks_moved_to_another_engine_give_the_same_tokens,
)

__all__ = [
    "test_a_cached_prefix_draws_what_a_cold_one_draws",
    "test_a_higher_class_comes_in_past_a_preempted_sequence_until_that_has_waited_long",
    "test_a_mixed_batch_draws_what_each_sequence_draws_alone",
    "test_a_prefill_whose_kv_is_on_its_way_out_is_never_preempted",
    "test_a_recovered_sequence_continues_as_if_undisturbed",
    "test_a_sequence_moved_to_another_engine_goes_on_undisturbed",
    "test_blocks_that_arrived_enter_the_prefix_cache_when_attached",
    "test_chunked_prefill_draws_what_whole_prefill_draws",
    "test_cutting_steps_changes_no_token",
    "test_drafts_in_a_mixed_batch_change_nobodys_tokens",
    "test_drafts_never_change_what_is_drawn",
    "test_int8_blocks_moved_to_another_engine_give_the_same_tokens",
    "test_kv_promised_to_others_is_never_taken",
    "test_prompts_that_share_a_cold_prefix_compute_it_once",
]

VOCAB = 97
SIMULATED = partial(Engine, make_model=SimulatedModel.maker())


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model's shape, whose weights nobody reads."""
    return save_random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes an engine by what tests share gets a simulated one."""
    monkeypatch.setattr(engine_support, "Engine", SIMULATED)


@pytest.mark.parametrize("tier", ["none", "memory", "disk"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_sequences_draw_what_undisturbed_ones_draw(
    model_dir: Path, tmp_path: Path, tier: str, prefix_cache: bool
) -> None:
    """Greedy: of the other parameters of that test some end here before anybody is preempted."""
    preempted_sequences_draw_alike(model_dir, GREEDY, prefix_cache, tier, tmp_path)


def test_it_is_a_simulated_one_that_those_tests_get(model_dir: Path) -> None:
    assert isinstance(make_engine(model_dir)._model, SimulatedModel)


@pytest.mark.parametrize("shape", ["llama", "gemma3"])
def test_logits_are_the_same_in_each_way_in_which_an_engine_computes_them(tmp_path: Path, shape: str) -> None:
    engine = make_engine(engine_support.save_shape(tmp_path, SHAPES[shape]), kv_blocks=256)
    prompt, others = prompts(2, VOCAB, longest=90)
    whole, *paths = logits_by_path(engine._model, prompt * 3, others * 3).values()
    assert all(torch.equal(path, whole) for path in paths)


def test_what_is_drawn_depends_on_each_token_and_on_the_seed(model_dir: Path) -> None:
    prompt = prompts(1, VOCAB)[0]
    drawn = {tuple(generate(make_engine(model_dir), prompt, SamplingParams(seed=seed))) for seed in range(4)}
    drawn |= {
        tuple(generate(make_engine(model_dir), [*prompt[:at], (prompt[at] + 1) % VOCAB, *prompt[at + 1 :]]))
        for at in range(len(prompt))
    }
    assert len(drawn) == 4 + len(prompt)


def held_prefill(engine: Engine, prompt: list[int]) -> tuple[tuple[int, ...], list[int]]:
    blocks = engine.admit("p", prompt, len(prompt), GREEDY, hashes_of(prompt), stop_after=1).tables[0]
    known = {"p": list(prompt)}
    drive(engine, known)
    return blocks, known["p"]


FAULTS = ["a block that did not come", "two blocks in the wrong places", "a layer twice", "one bit of one V"]


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_kv_that_is_not_what_it_should_be_is_a_wrong_token(model_dir: Path, fault: str | None) -> None:
    prompt = [token % VOCAB for token in range(50)]
    undisturbed = generate(make_engine(model_dir), prompt)
    source, target = make_engine(model_dir), make_engine(model_dir)
    blocks, tokens = held_prefill(source, prompt)
    table = target.reserve("d", len(prompt), hashes_of(prompt)).tables[0]
    if fault == "two blocks in the wrong places":
        blocks = (blocks[1], blocks[0], *blocks[2:])
    for layer in range(source.layout.num_layers):
        for place, (mine, theirs) in enumerate(zip(blocks, table, strict=True)):
            if fault == "a block that did not come" and place == 1:
                continue
            from_layer = 0 if fault == "a layer twice" else layer
            target.kv_pool.block_view(layer, theirs)[:] = source.kv_pool.block_view(from_layer, mine)
    if fault == "one bit of one V":
        values = target.layout.codes_bytes // 2
        target.kv_pool.block_view(1, table[0])[values + values // BLOCK_TOKENS] ^= 1
    target.attach("d", tokens, len(prompt), GREEDY)
    got = tokens[len(prompt) :] + drive(target, {"d": list(tokens)})["d"]
    assert (got == undisturbed) == (fault is None)


def test_a_step_takes_what_its_profile_says_and_layers_are_told_of_on_the_way(model_dir: Path) -> None:
    profile, told_us = StepProfile(step_us=1000, token_us=10, sequence_us=100, key_us=1), list[float]()
    with World(1) as world:
        maker = SimulatedModel.maker(profile, world.spend_us)
        engine = Engine(EngineConfig(str(model_dir), kv_blocks=64), make_model=maker)
        layers = engine.layout.num_layers

        def step() -> None:
            began_ns = world.loop.now_ns
            spans = [Span(0, 4, tables_in(engine.kv_pool, range(4)))]
            told = lambda _: told_us.append((world.loop.now_ns - began_ns) / 1000)  # noqa: E731
            engine._model.forward(Batch([1, 2, 3, 4], spans, [3], told))

        world.loop.run_job(step)
    took_us = 1000 + 4 * 10 + 100 + (1 + 2 + 3 + 4)
    assert told_us == [pytest.approx(took_us * (layer + 1) / layers, abs=0.1) for layer in range(layers)]


def test_an_engine_in_a_world_learns_the_cost_of_its_steps_from_virtual_time(model_dir: Path) -> None:
    profile = StepProfile(step_us=3000, token_us=200, sequence_us=0, key_us=0)
    with World(1) as world:
        maker = SimulatedModel.maker(profile, world.spend_us)
        engine = Engine(EngineConfig(str(model_dir), kv_blocks=64), make_model=maker)
        steps: list[tuple[int, int]] = []

        def work() -> None:
            for number in range(12):
                engine.admit(f"{number}", list(range(number + 5)), number + 5, FANCY)
                result = engine.step()
                steps.append((result.batch_tokens, result.step_us))

        world.loop.run_job(work)
    for tokens, step_us in steps:
        assert step_us == pytest.approx(3000 + 200 * tokens, abs=2)


def test_a_profile_is_made_of_what_a_benchmark_says() -> None:
    profile = StepProfile.measured(2500, alone_ms=8.0, many=16, many_ms=38.0)
    assert profile.us([(100, 1)]) == pytest.approx(8_000)
    assert profile.us([(100, 1)] * 16) == pytest.approx(38_000)
    assert profile.us([(0, 500)]) - profile.us([(0, 250)]) == pytest.approx(250 * 400)
