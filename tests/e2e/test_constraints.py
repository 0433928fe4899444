"""Allowed ids, bad words and grammars from a client to the model and back, with and without drafts."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.engine import LLM, SamplingParams
from shared.sampling.parameters import Grammar
from tests.e2e.conftest import GetStack
from tests.support.client import Answer, connect, generate, request
from tests.support.oracle import Oracle
from tests.support.stack import Stack, value_of

PROMPT = "Once upon a time"
TRIES = 10
STACKS = [(1, False, "nats"), (1, True, "shm")]
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
)
CONSTRAINTS: dict[str, tuple[dict[str, Any], Grammar]] = {
    "regex": (
        {"regex": "(Lily|Tom) has [0-9]{2} cats\\."},
        Grammar("regex", "(Lily|Tom) has [0-9]{2} cats\\."),
    ),
    "json_schema": ({"json_schema": SCHEMA}, Grammar("json_schema", SCHEMA)),
    "grammar": (
        {"grammar": 'root ::= "go" ("," " "? "go")* "!"'},
        Grammar("ebnf", 'root ::= "go" ("," " "? "go")* "!"'),
    ),
    "json_object": ({"json_object": True}, Grammar("json_object")),
}


@pytest.mark.thorough(but="regex-1-True-shm | json_schema-1-False-nats | grammar-1-True-shm")
@pytest.mark.parametrize(("decode", "drafts", "transport"), STACKS)
@pytest.mark.parametrize("name", CONSTRAINTS)
async def test_a_constrained_answer_is_that_of_the_engine_alone(
    get_stack: GetStack,
    model_dir: Path,
    oracle: Oracle,
    name: str,
    decode: int,
    drafts: bool,
    transport: str,
) -> None:
    asked, grammar = CONSTRAINTS[name]
    ids = oracle.encode(PROMPT)
    stack = get_stack(decode, drafts, transport)
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(ids, temperature=1.0, seed=5, max_tokens=80, **asked))
    assert answer.outcome == "finished", (answer.status, answer.details, stack.tail())
    params = SamplingParams(seed=5, max_tokens=80, grammar=grammar)
    (alone,) = LLM(model_dir, kv_blocks=64).generate([ids], params)
    assert (tuple(answer.ids), answer.finish_reason) == (alone.token_ids, alone.finish_reason)
    if name == "regex":
        assert re.fullmatch(asked["regex"], answer.text)


async def generate_in_time(stub: rpc.InferenceStub, message: pb.GenerateRequest) -> Answer:
    """Ask again, as the answer says, where no core was free in time to compile a large grammar."""
    for _ in range(TRIES):
        answer = await generate(stub, message)
        if answer.status is not grpc.StatusCode.UNAVAILABLE:
            break
    return answer


def trials(stack: Stack) -> tuple[int, int]:
    """How many grammars the prefill and the decode worker have tried."""
    (prefill,), (decode,) = stack.instances("prefill"), stack.instances("decode")
    tried = [value_of(worker, "penstock_grammar_trials_total") for worker in (prefill, decode)]
    return round(tried[0]), round(tried[1])


@pytest.mark.thorough  # on a busy machine a worker that waits long for the other's word tries it, too
async def test_a_grammar_is_tried_once_for_the_two_workers_that_need_it(
    get_stack: GetStack, oracle: Oracle
) -> None:
    """Also one that is refused, which is not tried again."""
    stack, ids = get_stack(1, True, "shm"), oracle.encode(PROMPT)
    new, bad = "[a-z]{3,9} [0-9]", "(ab"
    before = trials(stack)
    async with connect(stack.grpc) as stub:
        for asked, outcome, more in (
            (new, "finished", 1),
            (new, "finished", 1),
            (bad, "failed", 2),
            (bad, "failed", 2),
        ):
            answer = await generate(stub, request(ids, max_tokens=4, regex=asked))
            assert answer.outcome == outcome, (answer.status, answer.details, stack.tail())
            assert trials(stack) == (before[0], before[1] + more)


async def test_allowed_ids_and_bad_words_bind(get_stack: GetStack, oracle: Oracle) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 60}
    options["allowed_token_ids"] = oracle.encode(PROMPT)[1:]
    async with connect(get_stack().grpc) as stub:
        free = await generate(stub, request(PROMPT, **options))
        pair = (free.ids[4], free.ids[5])
        bound = await generate(stub, request(PROMPT, bad_word_ids=[pb.TokenIds(ids=pair)], **options))
    assert set(free.ids) <= set(options["allowed_token_ids"])
    assert set(bound.ids) <= set(options["allowed_token_ids"])
    assert len(bound.ids) == 60
    assert pair not in set(pairwise(bound.ids))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a regex that is none": ({"regex": "(ab"}, "unclosed group"),
    "a schema that is no JSON": ({"json_schema": "{"}, "json_schema"),
    "a schema of no known type": ({"json_schema": '{"type": "strin"}'}, "strin"),
    "a grammar with a missing rule": ({"grammar": "start: missing"}, "missing"),
    "too large a grammar": ({"grammar": "x" * 65537}, "65536"),
    "ids outside the vocabulary": ({"allowed_token_ids": [4_000_000]}, "allowed_ids"),
    "bad words outside the vocabulary": ({"bad_word_ids": [pb.TokenIds(ids=[4_000_000])]}, "bad_words"),
    "nothing left": ({"allowed_token_ids": [5], "bad_word_ids": [pb.TokenIds(ids=[5])]}, "nothing is left"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_constraint_that_cannot_be_used_is_refused_with_what_is_wrong(
    get_stack: GetStack, name: str
) -> None:
    sampling, fault = BAD[name]
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request("hello", **sampling))
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert fault in answer.details
    assert (answer.outcome, answer.ends) == ("failed", 1)
    await stack.until_idle()


def contradiction(oracle: Oracle) -> tuple[int, dict[str, Any]]:
    """An id that alone may be drawn, and never twice in a row: what is wrong shows after the first token."""
    (only,) = oracle.encode(PROMPT)[1:2]
    return only, {"allowed_token_ids": [only], "bad_word_ids": [pb.TokenIds(ids=[only, only])]}


@pytest.mark.thorough(but="1-True-shm")
@pytest.mark.parametrize(("decode", "drafts", "transport"), STACKS)
async def test_constraints_that_leave_nothing_to_draw_later_fail_the_request_behind_its_tokens(
    get_stack: GetStack, oracle: Oracle, decode: int, drafts: bool, transport: str
) -> None:
    only, sampling = contradiction(oracle)
    stack = get_stack(decode, drafts, transport)
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(PROMPT, **sampling))
    assert (answer.outcome, answer.ends) == ("failed", 1), stack.tail()
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "leave no token to draw" in answer.details
    assert list(answer.ids) == [only]
    assert answer.end is not None
    assert answer.end.usage.replacements == 0
    await stack.until_idle()


async def test_constraints_that_leave_no_first_token_fail_the_request(
    get_stack: GetStack, oracle: Oracle
) -> None:
    """Each can be met alone: that they contradict each other shows when the first token is drawn."""
    only, _ = contradiction(oracle)
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(PROMPT, allowed_token_ids=[only], regex="[0-9]+"))
    assert (answer.outcome, answer.ends, list(answer.ids)) == ("failed", 1, [])
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "leave no token to draw" in answer.details
    await stack.until_idle()


@pytest.mark.thorough(but="1-False-nats")
@pytest.mark.parametrize(("decode", "drafts", "transport"), STACKS)
async def test_a_grammar_that_becomes_too_complex_fails_its_own_request_by_name(
    get_stack: GetStack, decode: int, drafts: bool, transport: str
) -> None:
    """One "{" begins each of hundreds of objects at once. They are compiled soon: a machine of busy tests
    leaves little of its cores to a trial."""
    objects = [{"type": "object", "properties": {f"p{number}": {"const": 1}}} for number in range(300)]
    stack = get_stack(decode, drafts, transport)
    async with connect(stack.grpc) as stub:
        refused, beside = await asyncio.gather(
            generate_in_time(stub, request(PROMPT, json_schema=json.dumps({"anyOf": objects}), seed=1)),
            generate(stub, request(PROMPT, temperature=0.0, max_tokens=60)),
        )
    assert (refused.outcome, refused.ends) == ("failed", 1), stack.tail()
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "the grammar (json_schema) is too complex" in refused.details
    assert beside.outcome == "finished"
    await stack.until_idle()
