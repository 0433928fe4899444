"""Bad input at the edge and on the bus: a typed error, nobody dies, nothing is held."""

from __future__ import annotations

import os

import grpc
import msgpack
import nats
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.codec import encode
from shared.bus.subjects import inbox, subject_of
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import AuditRequest, Envelope, Open, pack_ids
from tests.e2e.conftest import GetStack
from tests.support.client import connect, generate, request
from tests.support.oracle import Oracle

NAN = float("nan")


def bad_requests() -> dict[str, pb.GenerateRequest]:
    chat = pb.GenerateRequest()
    chat.chat.messages.add(role="wizard", content="hello")
    unknown = request("hello")
    unknown.model = "no-such-model"
    deadline = request("hello")
    deadline.deadline_ms = -1
    retrieval = request("hello")
    retrieval.retrieval.enabled = True
    retrieval.retrieval.k = -3
    empty_ids = pb.GenerateRequest()
    empty_ids.token_ids.SetInParent()
    return {
        "no prompt": pb.GenerateRequest(),
        "empty text": request(""),
        "empty ids": empty_ids,
        "id out of the vocabulary": request([5, 4_000_000]),
        "unknown role": chat,
        "unknown model": unknown,
        "negative deadline": deadline,
        "k negative": retrieval,
        "temperature NaN": request("hello", temperature=NAN),
        "temperature negative": request("hello", temperature=-1.0),
        "top_p zero": request("hello", top_p=0.0),
        "top_p over one": request("hello", top_p=1.5),
        "top_k negative": request("hello", top_k=-1),
        "min_p NaN": request("hello", min_p=NAN),
        "repetition_penalty zero": request("hello", repetition_penalty=0.0),
        "presence_penalty infinite": request("hello", presence_penalty=float("inf")),
        "max_tokens zero": request("hello", max_tokens=0),
        "max_tokens negative": request("hello", max_tokens=-5),
        "min over max": request("hello", min_tokens=10, max_tokens=5),
        "empty stop": request("hello", stop=[""]),
        "too many stops": request("hello", stop=[str(n) for n in range(17)]),
        "stop too long": request("hello", stop=["x" * 257]),
        "logprobs over the limit": request("hello", logprobs=21),
        "logit_bias NaN": request("hello", logit_bias={3: NAN}),
    }


@pytest.mark.parametrize("name", sorted(bad_requests()))
async def test_a_bad_request_is_refused_with_a_sentence(get_stack: GetStack, name: str) -> None:
    async with connect(get_stack().grpc) as stub:
        answer = await generate(stub, bad_requests()[name])
    wanted = grpc.StatusCode.NOT_FOUND if name == "unknown model" else grpc.StatusCode.INVALID_ARGUMENT
    assert answer.status is wanted, answer.details
    assert len(answer.details) > 10
    assert answer.outcome == "failed"
    assert answer.ends == 1


async def test_a_prompt_over_the_context_is_refused_with_the_limit(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack()
    story = oracle.encode("Once upon a time " * 400)
    async with connect(stack.grpc) as stub:
        for length in (oracle.context_tokens, oracle.context_tokens + 1):
            answer = await generate(stub, request(story[:length], max_tokens=1))
            assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
            assert str(oracle.context_tokens) in answer.details
        fits = await generate(stub, request(story[: oracle.context_tokens - 1], max_tokens=1))
        assert fits.outcome == "finished"
    await stack.until_idle()


def garbage() -> dict[str, bytes]:
    good = encode(Open("gateway-0", pack_ids([1]), b"", 0, 1, ()), Envelope("gateway-0.x", 1, 0, "gateway-0"))
    fields = msgpack.unpackb(good)
    return {
        "empty": b"",
        "random": os.urandom(300),
        "truncated": good[: len(good) // 2],
        "unknown type": msgpack.packb(["Sing", *fields[1:]]),
        "unknown version": msgpack.packb([fields[0], 99, *fields[2:]]),
        "wrong field": msgpack.packb([*fields[:7], [1, 2, 3]]),
        "deep": b"\x91" * 2000 + b"\x01",
        "huge length": b"\xdd\xff\xff\xff\xff",
    }


async def test_garbage_on_every_inbox_is_counted_and_nobody_dies(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack(3, True, "nats")
    before = {row.id: row.pid for row in stack.instances()}
    operator, refused = stack.credentials(), list[Exception]()

    async def on_error(error: Exception) -> None:
        refused.append(error)

    stranger = await nats.connect(
        stack.nats, user=operator.user, password=operator.password, error_cb=on_error
    )
    try:
        for instance in stack.instances():
            for payload in garbage().values():
                address = inbox(instance.role, instance.id)
                subject = subject_of(address, AuditRequest.__name__, operator.user)
                await stranger.publish(subject, payload)
    finally:
        await stranger.drain()
    assert refused == []
    async with connect(stack.grpc) as stub:
        prompt = oracle.encode("Once upon a time")
        answer = await generate(stub, request(prompt, max_tokens=20))
    assert answer.ids == oracle.greedy(prompt, 20, answer.ids)
    assert {row.id: row.pid for row in stack.instances()} == before
    await stack.until_idle()


async def test_a_well_formed_message_with_impossible_contents_is_answered_with_a_typed_error(
    get_stack: GetStack,
) -> None:
    stack = get_stack(3, True, "nats")
    detokenizer = stack.instances("detokenizer")[0]
    bad = Open("gateway-0", pack_ids([1]), b"\x01\x02\x03", 0, 1, ())  # not a list of u32
    bus = await stack.connect("test-bad-open", user="gateway-0")
    try:
        deadline = Deadline.after(60)
        envelope = bus.envelope("gateway-0.bad", 1, deadline, "gateway-0")
        with pytest.raises(PenstockError, match="3 bytes are not a list"):
            await bus.ask(inbox("detokenizer", detokenizer.id), bad, envelope, deadline)
    finally:
        await bus.close()
    await stack.until_idle()
