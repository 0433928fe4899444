from __future__ import annotations

import struct

import pytest
import xxhash

from shared.errors import InvalidRequest
from shared.kv_hash import block_hashes, chain_hash, hash_seed, max_cached_blocks


def test_block_hashes_follow_the_published_chain() -> None:
    ids = list(range(1000, 1040))
    seed = hash_seed("model", "tenant")
    local = [xxhash.xxh3_64_intdigest(struct.pack("<16I", *ids[start : start + 16])) for start in (0, 16)]
    first = xxhash.xxh3_64_intdigest(struct.pack("<QQ", seed, local[0]))
    second = xxhash.xxh3_64_intdigest(struct.pack("<QQ", first, local[1]))
    assert block_hashes(ids, seed) == [first, second]


def test_a_block_hash_covers_everything_before_it() -> None:
    ids = list(range(64))
    changed = [63, *ids[1:]]
    assert not set(block_hashes(ids, 1)) & set(block_hashes(changed, 1))
    assert block_hashes(ids[:48], 1) == block_hashes(ids, 1)[:3]


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    assert [max_cached_blocks(tokens) for tokens in (1, 16, 17, 32)] == [0, 0, 1, 1]


def test_a_tail_that_fills_no_block_has_no_hash() -> None:
    assert block_hashes(list(range(15)), 0) == []
    assert len(block_hashes(list(range(16)), 0)) == 1


def test_tenants_and_models_never_share_a_seed() -> None:
    seeds = {hash_seed("a", "bc"), hash_seed("ab", "c"), hash_seed("abc"), hash_seed("abc", "x")}
    assert len(seeds) == 4


@pytest.mark.parametrize("token_id", [-1, 2**32, 1.5, "x"])
def test_ids_that_are_not_u32_are_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        block_hashes([token_id] * 16, 0)


def test_a_previous_hash_that_is_not_u64_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="64-bit"):
        chain_hash(2**64, [0] * 16)
