"""Ids and hashes as bytes, and errors that cross the bus."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import (
    ERROR_TYPES,
    InternalError,
    Overloaded,
    PenstockError,
    ProtocolError,
    error_from_code,
)
from shared.messages import (
    MAX_HASHES,
    MAX_PROMPT_TOKENS,
    Failure,
    pack_hashes,
    pack_ids,
    unpack_hashes,
    unpack_ids,
)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_survive_packing(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == ids


@given(st.lists(st.binary(min_size=16, max_size=16)))
def test_hashes_survive_packing(hashes: list[bytes]) -> None:
    assert unpack_hashes(pack_hashes(hashes)) == hashes


def test_ids_are_little_endian_u32() -> None:
    assert pack_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"


@pytest.mark.parametrize("size", [1, 3, 4 * MAX_PROMPT_TOKENS + 4])
def test_bytes_that_are_no_id_list_within_the_limit_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_ids(bytes(size))


@pytest.mark.parametrize("size", [8, 15, 17, 16 * MAX_HASHES + 16])
def test_bytes_that_are_no_hash_list_within_the_limit_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_hashes(bytes(size))


def test_a_hash_of_another_length_is_an_error_at_the_sender() -> None:
    with pytest.raises(ProtocolError):
        pack_hashes([bytes(16), bytes(8)])


@pytest.mark.parametrize("value", [-1, 2**32])
def test_an_id_outside_u32_is_an_error_at_the_sender(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_ids([value])


@pytest.mark.parametrize("error_type", ERROR_TYPES.values())
def test_every_error_crosses_the_bus_as_itself(error_type: type[PenstockError]) -> None:
    error = Failure.of(error_type("why", hop="decode", retry_after_ms=7)).to_error()
    assert type(error) is error_type
    assert (error.message, error.hop, error.retry_after_ms) == ("why", "decode", 7)


def test_an_unknown_error_code_is_kept_in_the_sentence() -> None:
    error = error_from_code("from_the_future", "why")
    assert isinstance(error, InternalError)
    assert "from_the_future" in str(error)


def test_an_error_names_its_hop() -> None:
    assert str(Overloaded("full", hop="prefill")) == "prefill: full"
