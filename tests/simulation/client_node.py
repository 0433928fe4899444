"""A client of a fleet: a node that asks gateways over gRPC and HTTP, and keeps what it has heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.errors import PenstockError
from tests.simulation.edges.grpc_client import MemoryChannel
from tests.simulation.edges.http_client import HttpAnswer, ask_http
from tests.simulation.node import Node
from tests.simulation.node_network import NodeNetwork
from tests.support.client import CALL_TIMEOUT_S, Answer, generate

GRPC_PORT, HTTP_PORT = 50051, 8000

Result = TypeVar("Result")


class CallFailed(PenstockError):
    """A call has not finished: what its client has heard of it is in `answer`."""

    code = "call_failed"

    def __init__(self, answer: Answer) -> None:
        why = f"{answer.status} {answer.details}"
        super().__init__(why if answer.end is None else f"{answer.end.error.message or answer.end} ({why})")
        self.answer = answer


class ClientNode:
    def __init__(self, network: NodeNetwork, node: Node) -> None:
        self.node = node
        self._network = network

    def start(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Run `work` in this node; cancelling it is how the client leaves."""

        async def here() -> Result:
            with self._network.at(self.node.name):
                return await work

        return self._network.world.start(self.node, here(), name)

    def generate(
        self,
        gateway: str,
        message: pb.GenerateRequest,
        *,
        key: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        name: str = "call",
    ) -> asyncio.Task[Answer]:
        """Ask over gRPC; the answer says how it ended."""
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        return self.start(generate(self.stub(gateway), message, timeout_s, metadata), name)

    def stub(self, gateway: str) -> rpc.InferenceStub:
        """Return the calls of a gateway; they are to be made in this node."""
        return rpc.InferenceStub(MemoryChannel(f"{gateway}:{GRPC_PORT}"))  # type: ignore[arg-type]  # a stand-in

    def finish(
        self, gateway: str, message: pb.GenerateRequest, *, name: str = "call"
    ) -> asyncio.Task[Answer]:
        """The same, and raise CallFailed where the call has not finished."""
        asked = self.generate(gateway, message, name=name)

        async def finished() -> Answer:
            answer = await asked
            if answer.end is None or answer.end.outcome != pb.OUTCOME_FINISHED:
                raise CallFailed(answer)
            return answer

        return self.start(finished(), f"{name}-end")

    def ask(
        self,
        gateway: str,
        path: str,
        body: Any = None,
        *,
        key: str = "",
        on_event: Callable[[HttpAnswer], None] = lambda _: None,
        name: str = "http-call",
        **headers: str,
    ) -> asyncio.Task[HttpAnswer]:
        """Ask over HTTP."""
        asked = ask_http(gateway, HTTP_PORT, path, body, key, on_event, 0.0, **headers)
        return self.start(asked, name)
