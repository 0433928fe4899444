"""The Python client, blocking and async, before a real gateway and before one that the test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.client import (
    AsyncClient,
    AsyncStream,
    Cancelled,
    ChatMessage,
    Client,
    Expired,
    InvalidRequest,
    NotFound,
    PenstockError,
    RetrieveOptions,
    Retry,
    ServerError,
    Shed,
    Tool,
    Unauthenticated,
    Unavailable,
)
from penstock.client import FinishReason as Finish
from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.grpc.edge_status import retry_details
from shared.errors import Overloaded
from shared.files.api_key_file import ApiKey, KeyLimits, describe_api_key, hash_api_key, new_api_key
from shared.messages import Cancel, Message, Retrieve, Tokenize
from tests.integration.gateway_peers import Answer, Fleet, Running, default_answer, fleet, gateway
from tests.integration.test_gateway_passages import retrieving
from tests.integration.test_gateway_rerank import reranking
from tests.integration.test_gateway_text_asks import answers
from tests.integration.test_gateway_tools import teaching
from tests.support.certificate import make_certificate
from tests.support.wait import until

HINT_MS = 20


async def ready(running: Running) -> None:
    for role in ("tokenizer", "prefill", "decode", "detokenizer"):
        await running.knows(role, 1)


async def answer_with(peers: Fleet, *texts: str, finish: str = "length") -> None:
    """Stream these to the first request that was placed; the last one ends it."""
    envelope, prefill = await peers.placed()
    position = prefill.prompt_len
    for text in texts:
        await peers.text(envelope.request_id, position, text, finish=finish if text is texts[-1] else "")
        position += len(text)


# ---- what both do before a real gateway -----------------------------------------------------------------


@dataclass
class Read:
    """What came of a stream."""

    deltas: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: int = 0


def read_blocking(address: str) -> Read:
    with Client(address) as client, client.generate("hello", max_tokens=3, seed=5) as stream:
        deltas = [delta.text for delta in stream]
        usage = stream.end.usage
        assert stream.prompt.seed == 5
        assert list(stream) == []  # it stays at its end
    return Read(deltas, usage.prompt_tokens, usage.completion_tokens, stream.end.finish_reason)


async def read_async(address: str) -> Read:
    async with AsyncClient(address) as client, client.generate("hello", max_tokens=3, seed=5) as stream:
        deltas = [delta.text async for delta in stream]
        usage = stream.end.usage
        assert stream.prompt.seed == 5
        assert [delta async for delta in stream] == []
    return Read(deltas, usage.prompt_tokens, usage.completion_tokens, stream.end.finish_reason)


def in_thread(function: Callable[[str], Read]) -> Callable[[str], Awaitable[Read]]:
    return lambda address: asyncio.to_thread(function, address)


BOTH = pytest.mark.parametrize("read", [in_thread(read_blocking), read_async], ids=["blocking", "async"])


@pytest.mark.thorough(but="blocking")
@BOTH
async def test_an_answer_streams_with_what_is_known_of_its_prompt_and_its_end(
    nats_url: str, read: Callable[[str], Awaitable[Read]]
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await ready(running)
        reading = asyncio.ensure_future(read(running.server.address))
        await answer_with(peers, "a", "b", "c")
        found = await reading
    assert "".join(found.deltas) == "abc"
    assert (found.prompt_tokens, found.completion_tokens) == (5, 3)
    assert found.finish_reason == Finish.Value("FINISH_REASON_LENGTH")


SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
TOOLS = [Tool(name="weather", parameters=SCHEMA)]
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def call_blocking(address: str) -> ChatMessage:
    with Client(address) as client, client.generate([("user", "hello")], tools=TOOLS) as stream:
        assert "".join(delta.text for delta in stream) == "So."
        assert stream.end.finish_reason == Finish.Value("FINISH_REASON_TOOL_CALLS")
        return stream.message


async def call_async(address: str) -> ChatMessage:
    async with AsyncClient(address) as client, client.generate([("user", "hello")], tools=TOOLS) as stream:
        assert await stream.text() == "So."
        assert stream.end.finish_reason == Finish.Value("FINISH_REASON_TOOL_CALLS")
        return stream.message


@pytest.mark.parametrize(
    "read", [lambda address: asyncio.to_thread(call_blocking, address), call_async], ids=["blocking", "async"]
)
async def test_what_was_called_is_a_message_to_go_on_with(
    nats_url: str, read: Callable[[str], Awaitable[ChatMessage]]
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["tokenizer-0"].answers = teaching
        await ready(running)
        reading = asyncio.ensure_future(read(running.server.address))
        await answer_with(peers, "So.", f"\n{CALLED[:50]}", CALLED[50:], "", finish="stop")
        message = await reading
    (call,) = message.tool_calls
    assert (message.role, message.content) == ("assistant", "So.")
    assert (call.name, call.arguments, len(call.id)) == ("weather", '{"city": "Oslo"}', 9)


async def test_leaving_the_block_cancels_the_request(nats_url: str) -> None:
    def leave(address: str) -> None:
        with Client(address) as client, client.generate("hello") as stream:
            next(stream)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await ready(running)
        for left in (leave_async(running.server.address), asyncio.to_thread(leave, running.server.address)):
            peers["prefill-0"].got.clear()
            task = asyncio.ensure_future(left)
            envelope, prefill = await peers.placed()
            await peers.text(envelope.request_id, prefill.prompt_len, "a")
            await task
            await until(partial(cancelled, peers, envelope.request_id))


def cancelled(peers: Fleet, request_id: str) -> bool:
    return any(envelope.request_id == request_id for envelope, _ in peers["decode-0"].of(Cancel))


async def leave_async(address: str) -> None:
    async with AsyncClient(address) as client, client.generate("hello") as stream:
        await anext(stream)


async def test_a_task_that_is_cancelled_while_it_reads_cancels_the_request(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await ready(running)
        async with AsyncClient(running.server.address) as client:
            reading = asyncio.ensure_future(client.generate("hello").text())
            await peers.placed()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await until(lambda: peers["decode-0"].of(Cancel))


async def test_a_task_that_is_cancelled_in_the_moment_its_call_is_out_cancels_the_request(
    nats_url: str,
) -> None:
    """grpc.aio waits twice in one read, and between the two no cancel ends its call."""
    async with fleet(nats_url), gateway(nats_url) as running:
        await ready(running)
        async with AsyncClient(running.server.address) as client:
            stream = client.generate("hello")
            reading = asyncio.ensure_future(stream.text())
            # Before the task reads: this is called first, when what it waits for is done and it is not awake.
            stream._call._preparation.add_done_callback(lambda _: reading.cancel())  # type: ignore[attr-defined]
            with pytest.raises(asyncio.CancelledError):
                await reading
            await until(lambda: running.registry.audit().held == ())
            assert stream._call.cancelled()


async def test_who_reads_a_stream_that_is_cancelled_is_told_so(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await ready(running)
        async with AsyncClient(running.server.address) as client:
            stream = client.generate("hello")
            reading = asyncio.ensure_future(stream.text())
            await peers.placed()
            stream.cancel()
            with pytest.raises(Cancelled):
                await reading
        with Client(running.server.address) as blocking:
            peers["prefill-0"].got.clear()
            blocked = blocking.generate("hello")
            waiting = asyncio.ensure_future(asyncio.to_thread(blocked.text))
            await peers.placed()
            blocked.cancel()
            with pytest.raises(Cancelled):
                await waiting


async def test_a_request_is_cancelled_by_its_id_from_elsewhere(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await ready(running)
        async with AsyncClient(running.server.address) as client:
            stream = client.generate("hello")
            reading = asyncio.ensure_future(stream.text())
            envelope, _ = await peers.placed()
            with Client(running.server.address) as other:
                assert await asyncio.to_thread(other.cancel, envelope.request_id)
            with pytest.raises(Cancelled, match="by its id") as caught:
                await reading
            assert not await client.cancel("nobody")
    assert caught.value.end is not None


async def test_a_deadline_that_passes_is_told_with_the_usage_so_far(nats_url: str) -> None:
    async with fleet(nats_url), gateway(nats_url) as running:
        await ready(running)
        async with AsyncClient(running.server.address) as client:
            with pytest.raises(Expired) as caught:
                await client.generate("hello", deadline_s=0.3).text()
    assert caught.value.end is not None
    assert caught.value.end.usage.prompt_tokens == 5


async def test_models_ids_texts_and_vectors_are_asked_for_in_a_word(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await peers.add("retriever", model="embedder")
        for peer in peers.peers.values():
            peer.answers = answers
        await ready(running)
        await running.knows("retriever", 1)

        def blocking() -> list[object]:
            with Client(running.server.address) as client:
                return [
                    [model.name for model in client.models()],
                    client.tokenize("hi"),
                    client.tokenize([("user", "hi")]),
                    client.detokenize([104, 105]),
                    [list(one.values) for one in client.embed(["abc"])],
                ]

        found = await asyncio.to_thread(blocking)
        async with AsyncClient(running.server.address) as client:
            assert found == [
                [model.name for model in await client.models()],
                await client.tokenize("hi"),
                await client.tokenize([("user", "hi")]),
                await client.detokenize([104, 105]),
                [list(one.values) for one in await client.embed(["abc"])],
            ]
    assert found == [["test-model", "embedder"], [104, 105], [104, 105], "hi", [[3.0, 0.5]]]


async def test_passages_are_searched_for_with_what_is_wanted_of_them(nats_url: str) -> None:
    options: RetrieveOptions = {"k": 1, "corpus": "docs", "filters": {"lang": "en", "year": ["1", "2"]}}
    options |= {"rerank": False, "may_degrade": False}
    async with retrieving(nats_url) as (peers, running):
        with Client(running.server.address) as client:
            found = await asyncio.to_thread(lambda: client.retrieve("Which?", **options))
        async with AsyncClient(running.server.address) as client_of_tasks:
            again = await client_of_tasks.retrieve("Which?", **options)
            plain = await client_of_tasks.retrieve("Which?")
        questions = [question for _, question in peers["retriever-0"].of(Retrieve)]
    assert [passage.text for passage in found.passages] == ["A gate opens."]
    assert (found, found.warning, len(plain.passages)) == (again, "so-so", 2)
    filters = (("lang", ("en",)), ("year", ("1", "2")))
    wanted = Retrieve("Which?", 1, may_degrade=False, rerank=False, corpus="docs", filters=filters)
    assert questions == [wanted, wanted, Retrieve("Which?", 5, may_degrade=True)]


async def test_texts_are_put_in_the_order_in_which_they_answer(nats_url: str) -> None:
    texts = ["a", "ccc", "bb"]
    async with reranking(nats_url) as (_, running):
        with Client(running.server.address) as client:
            best = await asyncio.to_thread(lambda: client.rerank("q", texts, top_n=2))
        async with AsyncClient(running.server.address) as client_of_tasks:
            ranked = await client_of_tasks.rerank("q", texts)
            with pytest.raises(NotFound, match="send one of"):
                await client_of_tasks.rerank("q", texts, model="other")
    assert [(text.index, text.score) for text in best.texts] == [(1, 3.0), (2, 2.0)]
    assert [text.index for text in ranked.texts] == [1, 2, 0]


async def test_what_is_wrong_with_a_request_is_said(nats_url: str) -> None:
    async with fleet(nats_url), gateway(nats_url) as running:
        await ready(running)
        async with AsyncClient(running.server.address) as client:
            with pytest.raises(InvalidRequest, match="temperature"):
                await client.generate("hello", temperature=-1.0).text()
            with pytest.raises(NotFound, match="send one of test-model"):
                await client.generate("hello", model="other").text()
            with pytest.raises(NotFound, match="send one of test-model"):
                await client.tokenize("hello", model="other")


async def test_where_nobody_listens_the_call_is_unavailable() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable):
        await asyncio.to_thread(client.models)


async def test_the_key_goes_along_over_tls(nats_url: str, tmp_path: Path) -> None:
    key = new_api_key()
    keys = tmp_path / "keys.toml"
    keys.write_text(describe_api_key(ApiKey("one", "acme", hash_api_key(key), KeyLimits())))
    certificate = make_certificate(tmp_path)
    options = {
        "api_keys": str(keys),
        "tls_cert": str(certificate.certificate),
        "tls_key": str(certificate.key),
    }
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        await ready(running)
        credentials = grpc.ssl_channel_credentials(certificate.certificate.read_bytes())
        async with AsyncClient(running.server.address, credentials=credentials) as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.models()
        async with AsyncClient(running.server.address, api_key=key, credentials=credentials) as client:
            reading = asyncio.ensure_future(client.generate("hello").text())
            await answer_with(peers, "a")
            assert await reading == "a"


# ---- retries --------------------------------------------------------------------------------------------


async def test_a_shed_request_is_sent_again_after_the_hint(nats_url: str) -> None:
    def full(message: Message) -> Answer:
        return Overloaded("full", retry_after_ms=HINT_MS) if isinstance(message, Tokenize) else None

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await ready(running)
        peers["tokenizer-0"].answers = full
        async with AsyncClient(running.server.address, retry=Retry(attempts=100)) as client:
            reading = asyncio.ensure_future(client.generate("hello").text())
            asked = peers["tokenizer-0"]
            await until(lambda: len({envelope.request_id for envelope, _ in asked.of(Tokenize)}) > 1)
            asked.answers = default_answer
            await answer_with(peers, "a", "b")
            assert await reading == "ab"


@dataclass
class ScriptedGateway(rpc.InferenceServicer):
    """Each call is shed, after the text `first` and with `hint_ms`, but the one that is number `good`."""

    hint_ms: int = HINT_MS
    first: str = ""
    good: int = 0
    ends: bool = True
    calls: list[pb.GenerateRequest] = field(default_factory=list)

    async def Generate(  # type: ignore[override]  # a stream by `yield` is one too  # noqa: N802
        self,
        request: pb.GenerateRequest,
        context: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent],
    ) -> AsyncIterator[pb.GenerateEvent]:
        self.calls.append(request)
        yield pb.GenerateEvent(prompt=pb.PromptInfo(request_id=f"call-{len(self.calls)}"))
        if self.first:
            yield pb.GenerateEvent(text=pb.TextDelta(text=self.first))
        if len(self.calls) == self.good:
            yield pb.GenerateEvent(text=pb.TextDelta(text="good"))
            if self.ends:
                yield pb.GenerateEvent(end=pb.Terminal(outcome=pb.OUTCOME_FINISHED))
            return
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        await context.abort(code, "full", retry_details(code.value[0], "full", self.hint_ms))


@asynccontextmanager
async def scripted(script: ScriptedGateway) -> AsyncIterator[str]:
    server = grpc.aio.server()
    rpc.add_InferenceServicer_to_server(script, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def blocking_text(address: str, retry: Retry, deadline_s: float) -> tuple[str, str]:
    def read() -> tuple[str, str]:
        with Client(address, retry=retry) as client:
            stream = client.generate("hello", deadline_s=deadline_s)
            return stream.text(), stream.prompt.request_id

    return await asyncio.to_thread(read)


async def async_text(address: str, retry: Retry, deadline_s: float) -> tuple[str, str]:
    async with AsyncClient(address, retry=retry) as client:
        stream: AsyncStream = client.generate("hello", deadline_s=deadline_s)
        return await stream.text(), stream.prompt.request_id


ReadText = Callable[[str, Retry, float], Awaitable[tuple[str, str]]]
EITHER = pytest.mark.parametrize("read", [blocking_text, async_text], ids=["blocking", "async"])


@EITHER
async def test_a_retry_has_what_is_left_of_the_deadline_and_a_prompt_of_its_own(read: ReadText) -> None:
    script = ScriptedGateway(good=3)
    async with scripted(script) as address:
        assert await read(address, Retry(), 60.0) == ("good", "call-3")
    deadlines = [call.deadline_ms for call in script.calls]
    assert deadlines == sorted(deadlines, reverse=True)
    assert deadlines[0] - deadlines[2] >= 2 * HINT_MS


@EITHER
async def test_after_the_last_attempt_the_error_is_raised_with_its_hint(read: ReadText) -> None:
    script = ScriptedGateway()
    async with scripted(script) as address:
        with pytest.raises(Shed) as caught:
            await read(address, Retry(attempts=2), 60.0)
    assert len(script.calls) == 2
    assert caught.value.retry_after_ms == HINT_MS


@EITHER
@pytest.mark.parametrize(
    "script",
    [ScriptedGateway(first="a"), ScriptedGateway(hint_ms=0), ScriptedGateway(hint_ms=61_000)],
    ids=["after the first token", "without a hint", "where the hint is beyond the deadline"],
)
async def test_a_call_is_not_sent_again(read: ReadText, script: ScriptedGateway) -> None:
    script.calls.clear()
    async with scripted(script) as address:
        with pytest.raises(Shed):
            await read(address, Retry(max_wait_s=100.0), 60.0)
    assert len(script.calls) == 1


@EITHER
async def test_a_stream_without_an_end_is_an_error(read: ReadText) -> None:
    async with scripted(ScriptedGateway(good=1, ends=False)) as address:
        with pytest.raises(ServerError, match="terminal event"):
            await read(address, Retry(), 60.0)


async def test_a_call_that_waits_to_be_sent_again_can_be_cancelled() -> None:
    script = ScriptedGateway(hint_ms=50_000)
    async with scripted(script) as address:
        async with AsyncClient(address, retry=Retry(max_wait_s=100.0)) as client:
            stream = client.generate("hello")
            reading = asyncio.ensure_future(stream.text())
            await until(lambda: script.calls)
            stream.cancel()
            with pytest.raises(PenstockError):
                await reading
        with Client(address, retry=Retry(max_wait_s=100.0)) as blocking:
            blocked = blocking.generate("hello")
            waiting = asyncio.ensure_future(asyncio.to_thread(blocked.text))
            await until(lambda: len(script.calls) == 2)
            blocked.cancel()
            with pytest.raises(PenstockError):
                await waiting
    assert len(script.calls) == 2
