"""Which key a client presents, and whose it is."""

from __future__ import annotations

import tracemalloc

import pytest

from services.gateway.keys.api_keys import MAX_KEY_CHARS, ApiKeys, presented_key
from shared.errors import Unauthenticated
from shared.files.api_key_file import ApiKey, hash_api_key, new_api_key


def test_a_key_is_found_by_itself_and_by_nothing_else() -> None:
    keys = {new_api_key(): name for name in ("a", "b", "c")}
    known = ApiKeys(ApiKey(name, f"tenant-{name}", hash_api_key(key)) for key, name in keys.items())
    for key, name in keys.items():
        assert known.find(key).tenant == f"tenant-{name}"
        for wrong in (key[:-1], key + "x", key.swapcase(), hash_api_key(key), ""):
            with pytest.raises(Unauthenticated, match="does not know"):
                known.find(wrong)


def test_what_is_compared_is_no_digest_that_somebody_outside_could_compute() -> None:
    key = ApiKey("a", "t", hash_api_key("k"))
    first, second = ApiKeys([key]), ApiKeys([key])
    assert set(first._keys).isdisjoint(second._keys)


@pytest.mark.parametrize(
    "value", ["Bearer secret", "bearer secret", "BEARER  secret ", b"Bearer secret"], ids=repr
)
def test_a_bearer_key_is_taken_however_the_scheme_is_written(value: str | bytes) -> None:
    assert presented_key([value]) == "secret"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        ["Bearer    "],
        ["Basic c2VjcmV0"],
        ["secret"],
        ["Bearer secret", "Bearer secret"],
        ["Bearer secr\u00e9t"],
        [b"Bearer \xff\xfe"],
        ["Bearer sec\x00ret"],
        ["Bearer " + "s" * (1 << 20)],
        ["Bearer " + "s" * (MAX_KEY_CHARS + 1)],
    ],
    ids=lambda values: repr(values)[:30],
)
def test_anything_else_is_refused_with_what_to_send_and_without_what_was_sent(
    values: list[str | bytes],
) -> None:
    with pytest.raises(Unauthenticated) as caught:
        presented_key(values)
    assert "send" in str(caught.value)
    assert "secr" not in str(caught.value)
    assert "sss" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_longest_key_is_still_one() -> None:
    assert len(presented_key(["Bearer " + "s" * MAX_KEY_CHARS])) == MAX_KEY_CHARS


def test_ten_thousand_wrong_keys_leave_nothing_behind() -> None:
    known = ApiKeys([ApiKey("a", "t", hash_api_key("k"))])
    tracemalloc.start()
    try:
        for number in range(10_000):
            if number == 1000:
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
            with pytest.raises(Unauthenticated):
                known.find(presented_key([f"Bearer psk_{number}"]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 256 << 10
