"""Kept answers: found until they are too old, of another index or pushed out, and by their tenant alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.response_key import response_key
from services.gateway.request.request import validate_request
from services.retriever.config import RetrieverConfig
from services.retriever.response_cache import ENTRY_BYTES, ResponseCache, check_key, check_response
from shared.errors import InvalidRequest, TooLarge
from shared.messages import (
    CACHE_DIGEST_BYTES,
    MAX_COMPARED_BYTES,
    MAX_KEPT_BYTES,
    MAX_KEPT_TOKENS,
    KeptResponse,
    ResponseKey,
)
from tests.support.clock import FakeClock

RESPONSE = KeptResponse("r", "m", 0, 3, bytes(8), "answer", "stop")


def key(name: str, tenant: str = "") -> ResponseKey:
    return ResponseKey(tenant, name.encode().ljust(CACHE_DIGEST_BYTES), bytes(CACHE_DIGEST_BYTES))


def cache(max_bytes: int = 1 << 20, max_entries: int = 100, clock: FakeClock | None = None) -> ResponseCache:
    return ResponseCache(max_bytes, max_entries, ttl_s=60.0, clock=clock or FakeClock())


def names(kept: ResponseCache, *wanted: ResponseKey) -> str:
    return "".join(each.exact.decode().strip() for each in wanted if kept.find(each, "") is not None)


def test_an_answer_is_found_by_its_tenant_alone() -> None:
    kept = cache()
    kept.put(key("a", "acme"), RESPONSE, "")
    assert kept.find(key("a", "other"), "") is None
    entry = kept.find(key("a", "acme"), "")
    assert entry is not None
    assert entry.response == RESPONSE


def test_after_its_time_an_answer_is_gone_and_its_room_free() -> None:
    clock = FakeClock()
    kept = cache(clock=clock)
    kept.put(key("a"), RESPONSE, "")
    clock.advance(60.0)
    assert names(kept, key("a")) == "a"
    clock.advance(0.001)
    assert names(kept, key("a")) == ""
    assert (len(kept), kept.held_bytes) == (0, 0)


def test_who_wants_a_younger_answer_finds_none_and_others_still_do() -> None:
    clock = FakeClock()
    kept = cache(clock=clock)
    kept.put(key("a"), RESPONSE, "")
    clock.advance(5.0)
    assert kept.find(key("a"), "", max_age_s=4.9) is None
    assert kept.find(key("a"), "", max_age_s=5.1) is not None


def test_an_answer_from_another_index_is_not_found_and_one_from_none_is() -> None:
    kept = cache()
    kept.put(key("a"), RESPONSE, "old")
    kept.put(key("b"), RESPONSE, "")
    assert kept.find(key("a"), "old") is not None
    assert kept.find(key("a"), "new") is None
    assert kept.find(key("b"), "new") is not None


def test_a_new_index_drops_what_was_answered_from_the_old_one() -> None:
    kept = cache()
    for name, generation in (("a", "old"), ("b", ""), ("c", "new")):
        kept.put(key(name), RESPONSE, generation)
    kept.drop_generations("new")
    assert len(kept) == 2
    assert kept.find(key("c"), "new") is not None


def test_the_answer_used_least_lately_gives_way() -> None:
    kept = cache(max_entries=2)
    kept.put(key("a"), RESPONSE, "")
    kept.put(key("b"), RESPONSE, "")
    assert names(kept, key("a")) == "a"
    kept.put(key("c"), RESPONSE, "")
    assert names(kept, key("a"), key("b"), key("c")) == "ac"


def test_bytes_are_bounded_and_counted_to_the_last_one() -> None:
    size = ENTRY_BYTES + len("answer") + 8
    kept = cache(max_bytes=2 * size)
    for name in "ab":
        kept.put(key(name), RESPONSE, "")
    assert (len(kept), kept.held_bytes) == (2, 2 * size)
    kept.put(key("c"), replace(RESPONSE, text="answer!"), "")
    assert (len(kept), kept.held_bytes) == (1, size + 1)


def test_what_does_not_fit_alone_is_refused_and_pushes_nothing_out() -> None:
    size = ENTRY_BYTES + len("answer") + 8
    kept = cache(max_bytes=size)
    kept.put(key("a"), RESPONSE, "")
    with pytest.raises(TooLarge, match="cache_mb"):
        kept.put(key("b"), replace(RESPONSE, text="answer!"), "")
    assert names(kept, key("a")) == "a"


def test_the_same_request_s_later_answer_takes_the_place_of_the_earlier_one() -> None:
    kept = cache()
    kept.put(key("a"), RESPONSE, "")
    before = kept.held_bytes
    kept.put(key("a"), replace(RESPONSE, request_id="r2"), "")
    entry = kept.find(key("a"), "")
    assert entry is not None
    assert (entry.response.request_id, len(kept), kept.held_bytes) == ("r2", 1, before)


def test_a_tenant_that_floods_pushes_out_its_own_answers() -> None:
    kept = cache(max_entries=10)
    for name in "abc":
        kept.put(key(name, "quiet"), RESPONSE, "")
    for number in range(100):
        kept.put(key(str(number), "loud"), RESPONSE, "")
    assert names(kept, *(key(name, "quiet") for name in "abc")) == "abc"
    assert len(kept) == 10


def test_a_tenant_with_a_salt_for_each_request_pushes_out_none_of_another_s() -> None:
    config = RetrieverConfig()
    kept = cache(config.cache_mb << 20, config.cache_entries)
    asked = validate_request(pb.GenerateRequest(text="What flows?"), drawn_seed=1)

    def key_of(tenant: str, number: int, salt: str = "") -> ResponseKey:
        request = replace(asked, tenant=tenant, text=f"question {number}", cache_salt=salt)
        return response_key(request, (ModelIdentity("m", "w", "t"),), bytes(32), "history")

    ours = [key_of("acme", number) for number in range(500)]
    for each in ours:
        kept.put(each, RESPONSE, "")
    for number in range(20_000):
        kept.put(key_of("rival", number, f"salt {number}"), RESPONSE, "")
    assert sum(kept.find(each, "") is not None for each in ours) == 500
    assert len(kept) == config.cache_entries


def test_small_answers_of_one_tenant_push_out_no_larger_ones_of_another() -> None:
    kept = cache(max_bytes=1 << 20, max_entries=20)
    large = replace(RESPONSE, text="x" * 50_000)
    for name in "abcdefghij":
        kept.put(key(name, "quiet"), large, "")
    for number in range(1000):
        kept.put(key(str(number), "loud"), RESPONSE, "")
    assert names(kept, *(key(name, "quiet") for name in "abcdefghij")) == "abcdefghij"
    assert len(kept) == 20


def test_an_answer_that_is_larger_than_every_other_tenant_s_part_is_refused_and_pushes_nothing_out() -> None:
    size = ENTRY_BYTES + len("answer") + 8
    kept = cache(max_bytes=2 * size)
    kept.put(key("a", "acme"), RESPONSE, "")
    kept.put(key("b", "rival"), RESPONSE, "")
    with pytest.raises(TooLarge, match="share"):
        kept.put(key("c", "third"), replace(RESPONSE, text="answer!"), "")
    assert names(kept, key("a", "acme"), key("b", "rival")) == "ab"


def test_without_room_nothing_is_kept() -> None:
    kept = cache(max_bytes=0)
    with pytest.raises(TooLarge):
        kept.put(key("a"), RESPONSE, "")


@pytest.mark.parametrize(
    "wrong",
    [
        replace(key("a"), exact=bytes(CACHE_DIGEST_BYTES - 1)),
        replace(key("a"), near=b""),
        replace(key("a"), question="x" * (MAX_COMPARED_BYTES + 1)),
    ],
)
def test_keys_that_no_gateway_makes_are_refused(wrong: ResponseKey) -> None:
    with pytest.raises(InvalidRequest):
        check_key(wrong)


def test_answers_are_kept_up_to_their_limits() -> None:
    check_response(replace(RESPONSE, token_ids=bytes(4 * MAX_KEPT_TOKENS), text="x" * MAX_KEPT_BYTES))
    with pytest.raises(TooLarge):
        check_response(replace(RESPONSE, token_ids=bytes(4 * MAX_KEPT_TOKENS + 4)))
    with pytest.raises(TooLarge):
        check_response(replace(RESPONSE, text="x" * (MAX_KEPT_BYTES + 1)))
    with pytest.raises(InvalidRequest, match="no list of ids"):
        check_response(replace(RESPONSE, token_ids=bytes(3)))
