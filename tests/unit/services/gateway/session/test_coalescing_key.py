"""Requests that have one answer have one key."""

from __future__ import annotations

from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.request.request import Request, validate_request
from services.gateway.session.coalescing_key import coalescing_key

MODEL = ModelIdentity("m", "weights", "tokenizer")


def request(drawn_seed: int = 1, tenant: str = "", cache_salt: str = "", **fields: Any) -> Request:
    fields.setdefault("sampling", pb.Sampling(temperature=0.0))
    prompt = pb.ChatPrompt(
        messages=[pb.ChatMessage(role="user", content="hello")],
        tools=[pb.Tool(name="look", parameters='{"type": "object"}')],
    )
    return validate_request(
        pb.GenerateRequest(chat=prompt, **fields),
        drawn_seed=drawn_seed,
        tenant=tenant,
        cache_salt=cache_salt,
        coalesces=True,
    )


def test_a_greedy_answer_depends_on_no_seed_no_deadline_and_no_name_of_its_model() -> None:
    other = request(2, deadline_ms=10, ttft_deadline_ms=5, client_sent_unix_us=9, model="alias")
    assert coalescing_key(request(), MODEL) == coalescing_key(other, MODEL)
    assert hash(coalescing_key(request(), MODEL)) == hash(coalescing_key(other, MODEL))


@pytest.mark.parametrize(
    "other",
    [
        request(tenant="acme"),
        request(cache_salt="mine"),
        request(sampling=pb.Sampling(temperature=0.0, max_tokens=3)),
        request(sampling=pb.Sampling(temperature=0.0, stop=["x"])),
        request(sampling=pb.Sampling(temperature=0.0, stop_regex=["x"])),
        request(sampling=pb.Sampling(temperature=0.0, logprobs=1)),
        request(sampling=pb.Sampling(temperature=0.0, json_schema="{}")),
        request(retrieval=pb.Retrieval(enabled=True)),
        request(priority=pb.PRIORITY_HIGH),
        request(inter_token_deadline_ms=9),
    ],
)
def test_all_else_counts(other: Request) -> None:
    assert coalescing_key(request(), MODEL) != coalescing_key(other, MODEL)


def test_the_model_counts() -> None:
    assert coalescing_key(request(), MODEL) != coalescing_key(request(), ModelIdentity("m", "others"))


@pytest.mark.parametrize(
    ("sampling", "coalesces"),
    [
        (pb.Sampling(temperature=0.0), True),
        (pb.Sampling(temperature=0.7, seed=1), True),
        (pb.Sampling(), True),  # the model's own temperature may be 0
        (pb.Sampling(temperature=0.7), False),
        (pb.Sampling(temperature=0.0, prompt_logprobs=0), False),
    ],
)
def test_only_an_answer_that_comes_again_can_be_shared(sampling: pb.Sampling, coalesces: bool) -> None:
    assert request(sampling=sampling).coalesces is coalesces
