"""An engine's prefix cache under a flood: each tenant's prompts push out its own."""

from __future__ import annotations

from pathlib import Path

from shared.blocks.block_hash import BlockHasher
from shared.engine import Engine, SamplingParams
from shared.fairness.share import TenantShare
from tests.support.engine import make_engine

HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")
SHORT = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
HASHER = BlockHasher()


def cached_tokens(engine: Engine, key: str, prompt: list[int], share: TenantShare) -> int:
    """Serve a prompt of a tenant to its end, and return how much of it was in the prefix cache."""
    names = HASHER.block_hashes(prompt, HASHER.seed("layout", share.tenant))
    admitted = engine.admit(key, prompt, len(prompt), SHORT, names, share=share)
    while engine.has_work:
        engine.step()
    engine.release(key)
    engine.check()
    return admitted.cached_tokens


def test_a_flood_of_one_tenants_prompts_leaves_the_prefix_of_another(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=8)
    light, heavy = [1] * 50, [[number] * 34 for number in range(2, 22)]
    assert cached_tokens(engine, "light/1", light, LIGHT) == 0
    for number, prompt in enumerate(heavy):
        assert cached_tokens(engine, f"heavy/{number}", prompt, HEAVY) == 0
    assert cached_tokens(engine, "light/2", light, LIGHT) == 48
    assert cached_tokens(engine, "heavy/again", heavy[-1], HEAVY) == 32


def test_a_tenant_that_is_alone_has_the_whole_cache(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=8)
    cached_tokens(engine, "a", [1] * 50, HEAVY)
    cached_tokens(engine, "b", [2] * 50, HEAVY)
    assert cached_tokens(engine, "c", [1] * 50, HEAVY) == 48
