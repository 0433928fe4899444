"""A part of a prefix in a real engine: what is computed, what stays, what it never holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.deadline import Deadline
from shared.engine import Engine
from shared.engine.cost_model import span_features
from shared.worker.warming.warm_part import COLD_PART_TOKENS, WarmPart, WarmPrefix, compute_part
from tests.support.engine import GREEDY, drive, make_engine, save_random_model

IDS = tuple(1 + number % 50 for number in range(100))
BLOCK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)


def prefix_of(engine: Engine, ids: tuple[int, ...] = IDS, adapter: str = "") -> WarmPrefix:
    hasher = BlockHasher()
    hashes = tuple(hasher.block_hashes(ids, hasher.seed(engine.layout.fingerprint())))
    return WarmPrefix("r", "gateway-0", Deadline.after(60.0), ids, hashes, adapter)


def part(engine: Engine, prefix: WarmPrefix, start: int = 0) -> WarmPart:
    return compute_part(engine, prefix, start, lambda: None)


def cached(engine: Engine) -> int:
    admitted = engine.admit("look", IDS, len(IDS), GREEDY)
    engine.release("look")
    return admitted.cached_tokens


def test_a_part_stays_in_the_cache_and_nothing_of_it_is_held(folder: Path) -> None:
    engine = make_engine(folder)
    free = engine.blocks.num_free
    assert part(engine, prefix_of(engine)).num_tokens == COLD_PART_TOKENS
    assert (engine.held(), engine.blocks.num_free, engine.has_work) == ({}, free, False)
    assert cached(engine) == COLD_PART_TOKENS
    engine.check()


def test_parts_end_with_the_last_full_block(folder: Path) -> None:
    engine = make_engine(folder)
    prefix = prefix_of(engine)
    ends = [part(engine, prefix, start).num_tokens for start in range(0, 96, COLD_PART_TOKENS)]
    assert ends == [COLD_PART_TOKENS] * 3
    assert cached(engine) == 96


def test_a_warmed_prompt_draws_the_tokens_that_it_would_have_drawn(folder: Path) -> None:
    cold, warmed = make_engine(folder), make_engine(folder)
    cold.admit("r", IDS, len(IDS), GREEDY)
    expected = drive(cold, {"r": list(IDS)})
    prefix = prefix_of(warmed)
    for start in range(0, 96, COLD_PART_TOKENS):
        part(warmed, prefix, start)
    warmed.admit("r", IDS, len(IDS), GREEDY)
    assert drive(warmed, {"r": list(IDS)}) == expected


def test_where_something_else_has_come_nothing_is_computed(folder: Path) -> None:
    engine = make_engine(folder)
    engine.admit("other", IDS, len(IDS), GREEDY)
    prefix = prefix_of(engine)
    assert part(engine, prefix) == WarmPart(prefix)
    assert list(engine.held()) == ["other"]


def test_a_part_takes_about_as_long_as_it_may(folder: Path) -> None:
    engine = make_engine(folder)
    for _ in range(20):  # 500 us a token, steps of up to 48
        for tokens in (16, 48):
            engine.cost.observe(span_features(0, tokens), 500 * tokens)
    assert part(engine, prefix_of(engine)).num_tokens == 32


def test_a_part_is_a_block_at_the_least(folder: Path) -> None:
    engine = make_engine(folder)
    for _ in range(20):
        for tokens in (16, 48):
            engine.cost.observe(span_features(0, tokens), 50_000 * tokens)
    assert part(engine, prefix_of(engine)).num_tokens == BLOCK


def test_a_part_whose_beginning_has_been_evicted_is_not_computed(folder: Path) -> None:
    engine = make_engine(folder)
    assert part(engine, prefix_of(engine), COLD_PART_TOKENS).num_tokens == 0
    assert engine.held() == {}


def test_what_the_engine_refuses_is_told_and_changes_nothing(folder: Path) -> None:
    engine = make_engine(folder)
    refused = part(engine, prefix_of(engine, adapter="unknown"))
    assert refused.error is not None
    assert engine.held() == {}


def test_every_layer_is_told_of(folder: Path) -> None:
    engine, layers = make_engine(folder), list[None]()
    compute_part(engine, prefix_of(engine), 0, lambda: layers.append(None))
    assert len(layers) == engine.layout.num_layers
