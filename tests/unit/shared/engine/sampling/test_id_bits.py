from __future__ import annotations

import numpy as np
import pytest

from shared.engine.sampling.id_bits import bits_of, from_bytes, has_id, is_within, unpacked, without

SIZES = [1, 7, 8, 9, 15, 16, 17, 97, 128]


@pytest.mark.parametrize("vocab_size", SIZES)
def test_what_is_packed_is_unpacked(vocab_size: int) -> None:
    ids = list(range(0, vocab_size, 3))
    bits = bits_of(ids, vocab_size)
    assert np.flatnonzero(unpacked(bits, vocab_size)).tolist() == ids
    assert [token_id for token_id in range(vocab_size) if has_id(bits, token_id)] == ids


@pytest.mark.parametrize("vocab_size", SIZES)
def test_every_size_has_whole_pairs_of_bytes_and_nothing_beyond_the_vocabulary(vocab_size: int) -> None:
    bits = from_bytes(b"\xff" * 40, vocab_size)
    assert len(bits) == 2 * -(-vocab_size // 16)
    assert np.unpackbits(bits).sum() == vocab_size


def test_of_a_shorter_set_the_last_ids_are_missing() -> None:
    assert np.flatnonzero(unpacked(from_bytes(b"\x81", 40), 40)).tolist() == [0, 7]


def test_ids_are_taken_out_of_a_copy() -> None:
    bits = bits_of(range(20), 20)
    left = without(bits, [0, 9, 19, 19])
    assert np.flatnonzero(~unpacked(left, 20)).tolist() == [0, 9, 19]
    assert unpacked(bits, 20).all()


@pytest.mark.parametrize(("ids", "within"), [([], False), ([3], True), ([3, 11], True), ([3, 4], False)])
def test_a_set_is_within_others_when_it_has_some_of_them_alone(ids: list[int], within: bool) -> None:
    assert is_within(bits_of(ids, 20), [3, 11, 12]) is within
