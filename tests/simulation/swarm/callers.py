"""Make a planned call over one of the edges, hand what comes to its readers, and say how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.scope.call_identity import OWN_REQUEST_ID
from services.gateway.scope.outcome import CANCELLED, EXPIRED, FAILED, FINISHED, SHED
from tests.simulation.client_node import GRPC_PORT, HTTP_PORT
from tests.simulation.edges.grpc_client import MemoryChannel
from tests.simulation.edges.http_client import ConnectionBroken, HttpAnswer, ask_http
from tests.simulation.swarm.asks import ASKS, Ask
from tests.simulation.swarm.plan import Edge, PlannedCall
from tests.simulation.swarm.reader import Reader, citation_line, passage_line
from tests.simulation.swarm.record import Record

FINISH_REASONS = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
OUTCOMES = {
    "rate_limit_exceeded": SHED,
    "overloaded": SHED,
    "deadline_expired": EXPIRED,
    "cancelled": CANCELLED,
}
"""How a call ends by the code of its error over HTTP; all other errors are failures."""
UNKNOWN_KEY = "invalid_api_key"


class Caller(Protocol):
    """One call. `details` says how it ended, for the story."""

    details: str

    async def ask(self) -> None:
        """Make the call; returns at its end. Who cancels this hangs up."""

    @property
    def ends(self) -> list[str]:
        """Return the ends that its client was told of: one for each choice, where all is well."""

    @property
    def is_over(self) -> bool:
        """Whether the client was told that the whole call is over."""

    @property
    def is_refused(self) -> bool:
        """Whether the gateway does not know its key."""


class GrpcCaller:
    def __init__(self, call: PlannedCall, secret: str, readers: Sequence[Reader]) -> None:
        self.details = "OK"
        self._call = call
        self._readers = readers
        self._metadata = (("authorization", f"Bearer {secret}"),) if secret else ()
        self._error: grpc.aio.AioRpcError | None = None

    @property
    def stub(self) -> rpc.InferenceStub:
        return rpc.InferenceStub(MemoryChannel(f"{self._call.gateway}:{GRPC_PORT}"))  # type: ignore[arg-type]  # a stand-in

    async def ask(self) -> None:
        call = self._call
        message = ASKS[call.ask].message(call.deadline_s, call.ttft_deadline_s)
        stream = self.stub.Generate(message, metadata=self._metadata)
        try:
            async for event in stream:
                await self._take(event)
        except grpc.aio.AioRpcError as error:
            self._error, self.details = error, f"{error.code()} {error.details()}"
        finally:
            stream.cancel()

    async def _take(self, event: pb.GenerateEvent) -> None:
        match event.WhichOneof("event"):
            case "prompt":
                await self._readers[event.prompt.choice].write_prompt(event.prompt)
            case "prompt_logprobs":
                await self._readers[event.prompt_logprobs.choice].write_prompt_logprobs(event.prompt_logprobs)
            case "text":
                await self._readers[event.text.choice].write_text(event)
            case _:
                await self._readers[event.end.choice].write_end(event.end)

    async def cancel(self, request_id: str, timeout_s: float) -> str:
        """End the request from another call; return what went wrong with that."""
        try:
            message = pb.CancelRequest(request_id=request_id)
            await self.stub.Cancel(message, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return error.details() or str(error.code())
        return ""

    @property
    def ends(self) -> list[str]:
        return [reader.outcome for reader in self._readers if reader.outcome]

    @property
    def is_over(self) -> bool:
        return bool(self.ends) and (self._error is not None or len(self.ends) == len(self._readers))

    @property
    def is_refused(self) -> bool:
        return self._error is not None and self._error.code() is grpc.StatusCode.UNAUTHENTICATED


class HttpCaller:
    def __init__(self, record: Record, call: PlannedCall, secret: str, readers: Sequence[Reader]) -> None:
        self.details = "no answer"
        self.is_over = False
        self._record = record
        self._call = call
        self._secret = secret
        self._readers = readers
        self._events = 0
        self._error = self._message = ""
        self._usage: dict[str, Any] = {}
        self._told: Sequence[dict[str, Any]] = ()
        """What is told of each choice beside OpenAI's fields."""

    @property
    def _ask(self) -> Ask:
        return ASKS[self._call.ask]

    async def ask(self) -> None:
        call, ask = self._call, self._ask
        streams = call.edge is Edge.EVENTS
        body = ask.body(call.deadline_s, call.ttft_deadline_s, stream=streams)
        try:
            answer = await ask_http(
                call.gateway, HTTP_PORT, ask.path, body, self._secret, self.take, pause_s=call.read_pause_s
            )
        except (ConnectionBroken, OSError) as error:
            self.details = repr(error)
            return
        self.end(answer)

    def take(self, answer: HttpAnswer) -> None:
        """Take the events of a stream that are new."""
        self._name_requests(answer)
        new, self._events = answer.events[self._events :], len(answer.events)
        if new and answer.done_marks:
            self._record.breaks("nothing after the end", self._call.name, f"{new[0]}")
        for event in new:
            self._take_part(event)

    def _name_requests(self, answer: HttpAnswer) -> None:
        name = answer.headers.get(OWN_REQUEST_ID, "")
        for number, reader in enumerate(self._readers):
            if name and not reader.request_id:
                reader.request_id = f"{name}/{number}" if number else name

    def _take_part(self, part: dict[str, Any]) -> None:
        """A chunk of a stream, or the whole of an answer."""
        if "error" in part:
            self._error, self._message = part["error"]["code"], part["error"].get("message", "")
        for choice in part.get("choices", ()):
            reader = self._readers[choice["index"]]
            said = choice.get("message") or choice.get("delta") or choice
            text = said.get("text") or said.get("content") or ""
            if text:
                self._record.note(reader.name, f"gets {text!r}")
                reader.take_text(text, checked=not self._ask.corpus)
            if choice.get("finish_reason"):
                reader.take_end(FINISHED, FINISH_REASONS[choice["finish_reason"]])
        self._usage = part.get("usage") or self._usage
        self._told = part.get("penstock", {}).get("requests", self._told)

    def end(self, answer: HttpAnswer) -> None:
        """The answer has come, all of it."""
        self._name_requests(answer)
        if not answer.events:
            self._take_part(answer.json)
        elif answer.done_marks != 1:
            marks = f"{answer.done_marks} marks of the end"
            self._record.breaks("one terminal event", self._call.name, marks)
        self.details = f"{answer.status} {self._error} {self._message}"
        self.is_over = answer.whole and (bool(self._error) or all(one.outcome for one in self._readers))
        if self._error:
            for reader in self._readers:
                if not reader.outcome:
                    outcome = OUTCOMES.get(self._error, FAILED)
                    reader.take_end(outcome, pb.FINISH_REASON_UNSPECIFIED, f": {self._error}")
            return
        for reader, told in zip(self._readers, self._told, strict=False):
            reader.earlier = told.get("cached", {}).get("request_id", "")
            reader.take_prompt(told["degraded"], (passage_line(_fields(one)) for one in told["passages"]))
            reader.got.citations = [citation_line(_fields(one)) for one in told["citations"]]
        for reader in self._readers:
            if reader.outcome:
                reader.check_whole()
        self._check_usage()

    def _check_usage(self) -> None:
        expected = [reader.expected_tokens for reader in self._readers]
        if self._usage and None not in expected and self._usage["completion_tokens"] != sum(expected):  # type: ignore[arg-type]  # none is None
            what = f"{self._usage['completion_tokens']} tokens, and {sum(expected)} came"  # type: ignore[arg-type]
            self._record.breaks("usage is what came", self._call.name, what)
        cached = self._usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        self._readers[0].usage.cached_tokens = cached

    @property
    def ends(self) -> list[str]:
        return [reader.outcome for reader in self._readers if reader.outcome]

    @property
    def is_refused(self) -> bool:
        return self._error == UNKNOWN_KEY


def _fields(told: dict[str, Any]) -> Any:
    """What JSON says of a message, as its fields."""
    return SimpleNamespace(**told)
