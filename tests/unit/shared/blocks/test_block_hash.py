from __future__ import annotations

import hashlib
import struct

import pytest
import xxhash

from shared.blocks.block_hash import HASH_BYTES, BlockHasher, max_cached_blocks
from shared.errors import InvalidRequest

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
SEED = BlockHasher(KEY).seed("layout")


def block_hashes(ids: list[int], seed: bytes = SEED) -> list[bytes]:
    return BlockHasher(KEY).block_hashes(ids, seed)


def blake2b(person: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16, key=KEY, person=person).digest()


def test_block_hashes_follow_the_documented_chain() -> None:
    ids = list(range(1000, 1040))
    seed = blake2b(b"penstock seed", struct.pack("<Q", 6) + b"layout" + b"tenant")
    first = blake2b(b"penstock block", seed + struct.pack("<16I", *ids[:16]))
    second = blake2b(b"penstock block", first + struct.pack("<16I", *ids[16:32]))
    assert BlockHasher(KEY).seed("layout", "tenant") == seed
    assert block_hashes(ids, seed) == [first, second]


def test_a_name_has_128_bits() -> None:
    assert {len(name) for name in (SEED, *block_hashes([7] * 64))} == {HASH_BYTES} == {16}


def test_a_block_hash_covers_everything_before_it() -> None:
    ids = list(range(64))
    changed = [63, *ids[1:]]
    assert not set(block_hashes(ids)) & set(block_hashes(changed))
    assert block_hashes(ids[:48]) == block_hashes(ids)[:3]


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    assert [max_cached_blocks(tokens) for tokens in (1, 16, 17, 32)] == [0, 0, 1, 1]


def test_a_tail_that_fills_no_block_has_no_hash() -> None:
    assert block_hashes(list(range(15))) == []
    assert len(block_hashes(list(range(16)))) == 1


def test_keys_tenants_and_layouts_never_share_a_seed() -> None:
    hasher = BlockHasher(KEY)
    seeds = {hasher.seed("a", "bc"), hasher.seed("ab", "c"), hasher.seed("abc"), hasher.seed("abc", "x")}
    assert len(seeds | {hasher.seed("", "abc"), BlockHasher(OTHER_KEY).seed("abc")}) == 6


def test_the_seed_of_an_adapter_is_that_of_no_model_and_of_no_other_adapter() -> None:
    hasher = BlockHasher(KEY)
    stated = [
        ("a", "", "x"),
        ("ax", "", ""),
        ("a", "x", ""),
        ("a", "", "y"),
        ("ax", "", "x"),
        ("a", "x", "x"),
    ]
    stated += [("", "", "a"), ("", "a", "x"), ("a", "", "")]
    assert len({hasher.seed(*each) for each in stated}) == len(stated)


def test_names_depend_on_the_key_even_where_the_seed_is_known() -> None:
    ids = list(range(32))
    assert not set(block_hashes(ids, SEED)) & set(BlockHasher(OTHER_KEY).block_hashes(ids, SEED))


def test_a_chain_is_continued_where_it_ends() -> None:
    ids = list(range(80))
    names = block_hashes(ids[:48])
    BlockHasher(KEY).extend(names, ids, 5, SEED)
    assert names == block_hashes(ids)
    BlockHasher(KEY).extend(names, ids, 2, SEED)
    assert names == block_hashes(ids)


# Two blocks of one XXH3-64: the input of 64 bytes is folded in eight multiplications, and where one factor of
# a multiplication is zero, the other may be anything.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c"
)


def colliding_blocks() -> list[list[int]]:
    blocks = []
    for free in (1, 2):
        words = list(range(8))
        # Word 0 of the first 16 bytes meets this part of the secret: their XOR is zero.
        words[0] = int.from_bytes(_SECRET[0:8], "little")
        words[1] = free
        blocks.append(list(struct.unpack("<16I", struct.pack("<8Q", *words))))
    return blocks


def test_two_blocks_that_collided_in_the_unkeyed_hash_have_two_names() -> None:
    first, second = colliding_blocks()
    digests = {xxhash.xxh3_64_intdigest(struct.pack("<16I", *ids)) for ids in (first, second)}
    assert first != second
    assert len(digests) == 1  # what names were made of once
    assert len({block_hashes(ids)[0] for ids in (first, second)}) == 2


@pytest.mark.parametrize("token_id", [-1, 2**32, 1.5, "x"])
def test_ids_that_are_not_u32_are_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        block_hashes([token_id] * 16)


def test_without_a_key_names_are_those_of_development() -> None:
    assert BlockHasher.of("").seed("a") == BlockHasher().seed("a")
    assert BlockHasher.of(KEY.hex()).seed("a") == BlockHasher(KEY).seed("a")
