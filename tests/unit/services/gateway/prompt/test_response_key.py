"""Two requests have one key exactly when one answer is right for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.response_key import response_key
from services.gateway.request.request import Request, validate_request
from services.gateway.request.retrieval_use import RetrievalUse
from shared.messages import MAX_COMPARED_BYTES, AdapterId, ResponseKey

MODEL = ModelIdentity("m", "weights", "tokenizer")
FLEET_KEY = b"k" * 32


def request(text: str = "What flows?", seed: int | None = None, **options: object) -> Request:
    message = pb.GenerateRequest(text=text, cache=pb.Cache(mode=pb.CACHE_MODE_SEMANTIC))
    message.sampling.temperature = 0.0 if seed is None else 1.0
    if seed is not None:
        message.sampling.seed = seed
    return replace(validate_request(message, drawn_seed=77), **options)  # type: ignore[arg-type]  # its fields


def chat(*contents: str) -> Request:
    turns = [pb.ChatMessage(role="user", content=content) for content in contents]
    prompt = pb.ChatPrompt(messages=turns)
    message = pb.GenerateRequest(chat=prompt, cache=pb.Cache(mode=pb.CACHE_MODE_SEMANTIC))
    message.sampling.temperature = 0.0
    return validate_request(message, drawn_seed=77)


def key(asked: Request, *models: ModelIdentity) -> ResponseKey:
    return response_key(asked, models or (MODEL,), FLEET_KEY, "history 1")


def greedy_seed(seed: int) -> Request:
    asked = request()
    return replace(asked, sampling=replace(asked.sampling, seed=seed))


@pytest.mark.parametrize(
    "other",
    [
        request(deadline_ms=5, ttft_deadline_ms=5, inter_token_deadline_ms=5, client_sent_unix_us=9),
        request(priority=2),
        request(retrieval=RetrievalUse(may_degrade=False)),
        request(model="m"),
        greedy_seed(78),
    ],
)
def test_what_does_not_change_an_answer_does_not_change_its_key(other: Request) -> None:
    assert key(other) == key(request())


CHANGED: list[Callable[[], tuple[Request, tuple[ModelIdentity, ...]]]] = [
    lambda: (request(tenant="acme"), (MODEL,)),
    lambda: (request(cache_salt="salt"), (MODEL,)),
    lambda: (request(stop=("x",)), (MODEL,)),
    lambda: (request(stop_regex=("x",)), (MODEL,)),
    lambda: (request(retrieval=RetrievalUse(passages=3)), (MODEL,)),
    lambda: (request(retrieval=RetrievalUse(passages=3, corpus="news")), (MODEL,)),
    lambda: (request(retrieval=RetrievalUse(passages=3, query="water")), (MODEL,)),
    lambda: (request(seed=1), (MODEL,)),
    lambda: (replace(request(), sampling=replace(request().sampling, max_tokens=5)), (MODEL,)),
    lambda: (request(), (replace(MODEL, weights="other"),)),
    lambda: (request(), (replace(MODEL, adapter=AdapterId("a", "digest")),)),
    lambda: (request(), (MODEL, replace(MODEL, adapter=AdapterId("a", "digest")))),
    lambda: (chat("What flows?"), (MODEL,)),
    lambda: (replace(request(), text=None, token_ids=(1, 2)), (MODEL,)),
]


@pytest.mark.parametrize("changed", CHANGED)
def test_what_changes_an_answer_changes_both_digests(
    changed: Callable[[], tuple[Request, tuple[ModelIdentity, ...]]],
) -> None:
    other, models = changed()
    found, usual = key(other, *models), key(request())
    assert found.exact != usual.exact
    assert found.near != usual.near


def test_a_salt_makes_other_digests_and_no_other_tenant() -> None:
    salted = [key(request(tenant="acme", cache_salt=f"salt {number}")) for number in range(3)]
    assert {found.tenant for found in salted} == {"acme"}
    assert len({found.exact for found in salted}) == len({found.near for found in salted}) == 3


def test_another_question_is_near_and_not_the_same() -> None:
    found, usual = key(request("What runs?")), key(request())
    assert found.exact != usual.exact
    assert (found.near, found.question) == (usual.near, "What runs?")


def test_what_was_said_before_the_question_has_to_be_the_same() -> None:
    assert key(chat("a", "c")).near == key(chat("a", "d")).near
    assert key(chat("a", "c")).near != key(chat("b", "c")).near


def test_what_another_rewriter_searched_for_is_another_answer_where_something_is_searched_for() -> None:
    def keys(retrieval: RetrievalUse) -> set[bytes]:
        asked = request(retrieval=retrieval)
        return {
            response_key(asked, (MODEL,), FLEET_KEY, rewriter).exact
            for rewriter in ("history 1", "history 2")
        }

    assert len(keys(RetrievalUse(passages=3))) == 2
    assert len(keys(RetrievalUse(passages=3, query="the client's own"))) == 1
    assert len(keys(RetrievalUse())) == 1


def test_seeds_are_told_apart_unless_any_will_do() -> None:
    assert key(request(seed=1)).exact != key(request(seed=2)).exact
    any_seed = [replace(request(seed=seed), cache=replace(request().cache, any_seed=True)) for seed in (1, 2)]
    assert key(any_seed[0]) == key(any_seed[1])


def test_without_the_fleet_s_key_nobody_can_tell_a_digest() -> None:
    assert response_key(request(), (MODEL,), b"j" * 32, "history 1").exact != key(request()).exact


def test_a_question_that_is_too_long_to_compare_is_looked_up_as_it_is() -> None:
    assert key(request("x" * MAX_COMPARED_BYTES)).question != ""
    assert key(request("x" * (MAX_COMPARED_BYTES + 1))).question == ""
