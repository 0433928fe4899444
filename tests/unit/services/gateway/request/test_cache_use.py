"""What a request may ask of the cache, what it is told where it cannot have that, and what defaults do."""

from __future__ import annotations

from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.cache_use import MAX_AGE_MS, CacheUse, settled_cache_use
from services.gateway.request.choices import Choices
from services.gateway.request.request import validate_request
from shared.errors import InvalidRequest
from shared.sampling.parameters import SamplingParams

EXACT, SEMANTIC = pb.CACHE_MODE_EXACT, pb.CACHE_MODE_SEMANTIC


def greedy(**sampling: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", sampling=pb.Sampling(temperature=0.0, **sampling))  # type: ignore[arg-type]


def drawn(**sampling: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", sampling=pb.Sampling(temperature=1.0, **sampling))  # type: ignore[arg-type]


def left_open(**sampling: object) -> pb.GenerateRequest:
    """Whether it is drawn, the model's defaults say."""
    return pb.GenerateRequest(text="hi", sampling=pb.Sampling(**sampling))  # type: ignore[arg-type]


DRAWN, GREEDY = SamplingParams(temperature=0.5), SamplingParams(temperature=0.0)


def chat(role: str, **fields: object) -> pb.GenerateRequest:
    messages = [pb.ChatMessage(role="user", content="a"), pb.ChatMessage(role=role, content="b")]
    prompt = pb.ChatPrompt(messages=messages, **fields)  # type: ignore[arg-type]
    return pb.GenerateRequest(chat=prompt, sampling=pb.Sampling(temperature=0.0))


def use_of(message: pb.GenerateRequest, default: str = "off", **cache: Any) -> CacheUse:
    if cache:
        message.cache.CopyFrom(pb.Cache(**cache))
    return validate_request(message, drawn_seed=77, cache_mode=default).cache


def test_without_a_word_nothing_is_looked_up() -> None:
    assert not use_of(greedy()).wanted


@pytest.mark.parametrize(
    ("message", "cache"),
    [
        (greedy(), {"mode": EXACT}),
        (drawn(seed=0), {"mode": EXACT}),
        (drawn(), {"mode": EXACT, "any_seed": True}),
        (greedy(), {"mode": SEMANTIC, "min_similarity": 1.0}),
        (greedy(), {"mode": EXACT, "max_age_ms": MAX_AGE_MS}),
        (chat("user"), {"mode": SEMANTIC}),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), sampling=pb.Sampling(seed=1)), {"mode": EXACT}),
    ],
)
def test_what_comes_again_may_be_looked_up(message: pb.GenerateRequest, cache: dict[str, Any]) -> None:
    assert use_of(message, **cache).wanted


@pytest.mark.parametrize(
    ("message", "cache", "told"),
    [
        (drawn(), {"mode": EXACT}, "temperature 0, a seed, or cache.any_seed"),
        (greedy(logprobs=0), {"mode": EXACT}, "keeps no log-probabilities"),
        (greedy(prompt_logprobs=0), {"mode": EXACT}, "keeps no log-probabilities"),
        (greedy(), {"mode": EXACT, "min_similarity": 0.5}, "CACHE_MODE_SEMANTIC alone"),
        (greedy(), {"mode": SEMANTIC, "min_similarity": 0.0}, "above 0 and at most 1"),
        (greedy(), {"mode": SEMANTIC, "min_similarity": 1.5}, "above 0 and at most 1"),
        (greedy(), {"mode": SEMANTIC, "min_similarity": float("nan")}, "above 0 and at most 1"),
        (greedy(), {"mode": EXACT, "max_age_ms": -1}, "milliseconds up to 86400000"),
        (greedy(), {"mode": EXACT, "max_age_ms": MAX_AGE_MS + 1}, "milliseconds up to 86400000"),
        (greedy(), {"mode": 99}, "cache.mode is 99"),
        (chat("assistant"), {"mode": SEMANTIC}, "role user"),
        (chat("user", tools=[pb.Tool(name="f")]), {"mode": SEMANTIC}, "chat.tools"),
        (
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), sampling=pb.Sampling(seed=1)),
            {"mode": SEMANTIC},
            "send text or a chat",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(
    message: pb.GenerateRequest, cache: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        use_of(message, **cache)


@pytest.mark.parametrize(
    ("message", "default", "mode"),
    [
        (greedy(), "exact", "exact"),
        (greedy(), "semantic", "semantic"),
        (drawn(), "exact", "off"),
        (greedy(logprobs=1), "exact", "off"),
        (chat("assistant"), "semantic", "exact"),
    ],
)
def test_a_default_refuses_nothing(message: pb.GenerateRequest, default: str, mode: str) -> None:
    assert use_of(message, default).mode == mode


def test_what_the_model_draws_by_itself_is_looked_up_where_it_comes_again() -> None:
    assert settled_cache_use(use_of(left_open(), mode=EXACT), GREEDY).mode == "exact"
    assert settled_cache_use(use_of(left_open(seed=3), mode=EXACT), DRAWN).mode == "exact"
    assert settled_cache_use(use_of(left_open(), mode=EXACT, any_seed=True), DRAWN).mode == "exact"


def test_what_the_model_draws_by_itself_is_refused_as_what_a_client_has_drawn() -> None:
    use = use_of(left_open(), mode=EXACT)
    with pytest.raises(InvalidRequest, match=r"temperature 0, a seed, or cache\.any_seed"):
        settled_cache_use(use, DRAWN)


def test_a_default_is_off_for_what_the_model_draws_by_itself() -> None:
    assert not settled_cache_use(use_of(left_open(), "exact"), DRAWN).wanted
    assert settled_cache_use(use_of(left_open(), "exact"), GREEDY).mode == "exact"


def test_a_client_may_refuse_the_default() -> None:
    assert not use_of(greedy(), "exact", mode=pb.CACHE_MODE_OFF).wanted


def test_several_answers_that_may_be_drawn_with_any_seed_would_be_one() -> None:
    message = drawn()
    message.cache.CopyFrom(pb.Cache(mode=EXACT, any_seed=True))
    assert len(Choices((message,), 1)) == 1
    with pytest.raises(InvalidRequest, match="2 answers one"):
        Choices((message,), 2)
