"""Clients of a simulated fleet: each makes its calls over gRPC as planned, and judges how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.scope.outcome import CANCELLED, EXPIRED, FAILED, FINISHED, SHED
from tests.simulation.client_node import GRPC_PORT
from tests.simulation.edges.grpc_client import MemoryChannel
from tests.simulation.fleet import GATEWAY
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.plan import FaultKind, Leaving, Plan, PlannedCall
from tests.simulation.swarm.reader import Reader, Response
from tests.simulation.swarm.swarm_fleet import SwarmFleet

DEFAULT_DEADLINE_S = 120.0
DEFAULT_TTFT_DEADLINE_S = 60.0
"""The gateway's own, where a request says none."""
LATE_S = 0.5
"""An end may come so much after its deadline: what the gateway needs to say so."""
EARLY_S = 0.1
"""A worker may take a deadline for over so much too soon: what clocks of two nodes differ by unnoticed."""
SLOW_READER_S = 5.0
"""The gateway waits so long for a client that does not read its end."""
CLIENTS = "clients"
"""The node of all clients."""


class Client:
    """One call of a plan, and how it may end by that."""

    def __init__(
        self, fleet: SwarmFleet, plan: Plan, call: PlannedCall, expected: Sequence[Response | None]
    ) -> None:
        self._fleet = fleet
        self._record = fleet.record
        self._plan = plan
        self._call = call
        self._status: grpc.aio.AioRpcError | None = None
        self._began_s = 0.0
        self._left = False
        self.readers = [
            Reader(fleet.record, f"{call.name}{'abcdefgh'[number]}", one, call.read_pause_s)
            for number, one in enumerate(expected)
        ]

    async def live(self) -> str:
        """Make the call and return how it ended, in one word."""
        call, fleet = self._call, self._fleet
        await asyncio.sleep(call.at_s)
        if not fleet.answers:
            self._record.note(call.name, "finds no gateway")
            return "no gateway"
        self._record.note(call.name, f"asks for {ASKS[call.ask].what}")
        self._began_s = fleet.world.now_s
        asking = fleet.client(CLIENTS).start(self._ask(), call.name)
        leaving = asyncio.ensure_future(self._leave(asking))
        latest_s = self._deadline_s() + LATE_S + self._plan.stalls_s(GATEWAY)
        latest_s += SLOW_READER_S + LATE_S if call.read_pause_s else 0.0
        try:
            await asyncio.wait({asking}, timeout=latest_s)
            return self._judge(asking)
        finally:
            leaving.cancel()

    def _deadline_s(self) -> float:
        return self._call.deadline_s or DEFAULT_DEADLINE_S

    # ---- what it does -------------------------------------------------------------------------------

    @property
    def _stub(self) -> rpc.InferenceStub:
        return rpc.InferenceStub(MemoryChannel(f"{GATEWAY}:{GRPC_PORT}"))  # type: ignore[arg-type]  # a stand-in

    async def _ask(self) -> None:
        call = self._call
        stream = self._stub.Generate(ASKS[call.ask].message(call.deadline_s, call.ttft_deadline_s))
        try:
            async for event in stream:
                await self._take(event)
        except grpc.aio.AioRpcError as error:
            self._status = error
        finally:
            stream.cancel()

    async def _take(self, event: pb.GenerateEvent) -> None:
        match event.WhichOneof("event"):
            case "prompt":
                await self.readers[event.prompt.choice].write_prompt(event.prompt)
            case "prompt_logprobs":
                await self.readers[event.prompt_logprobs.choice].write_prompt_logprobs(event.prompt_logprobs)
            case "text":
                await self.readers[event.text.choice].write_text(event)
            case _:
                await self.readers[event.end.choice].write_end(event.end)

    async def _leave(self, asking: asyncio.Task[None]) -> None:
        """End the call as its client does, if it does."""
        await asyncio.sleep(self._call.leaves_after_s)
        request_id = self.readers[0].request_id
        if asking.done() or self._call.leaving is Leaving.STAYS:
            return
        if self._call.leaving is Leaving.DROPS:
            self._record.note(self._call.name, "drops the call")
            self._left = True
            asking.cancel()
        elif request_id:
            self._record.note(self._call.name, "cancels it by its id")
            self._left = True
            await self._fleet.client(CLIENTS).start(self._cancel(request_id), f"{self._call.name}-cancel")

    async def _cancel(self, request_id: str) -> None:
        try:
            await self._stub.Cancel(pb.CancelRequest(request_id=request_id), timeout=self._deadline_s())
        except grpc.aio.AioRpcError as error:
            self._record.note(self._call.name, f"could not cancel: {error.details()}")

    # ---- how it ended -------------------------------------------------------------------------------

    def _judge(self, asking: asyncio.Task[None]) -> str:
        name, took_s = self._call.name, self._fleet.world.now_s - self._began_s
        if not asking.done():
            self._record.breaks("every call ends by its deadline", name, f"no end after {took_s:.3f} s")
            return "no end"
        if asking.cancelled():
            return "dropped"
        if (fault := asking.exception()) is not None:
            self._record.breaks("what comes can be read", name, repr(fault))
            return "fault"
        ends = [reader.outcome for reader in self.readers if reader.outcome]
        outcome = next((word for word in ends if word != FINISHED), FINISHED)
        if not ends or (self._status is None and len(ends) < len(self.readers)):
            if self._gateway_may_go:
                return "gateway gone"
            told = "OK" if self._status is None else f"{self._status.code()} {self._status.details()}"
            self._record.breaks("one terminal event", name, f"{len(ends)} of {len(self.readers)}: {told}")
        self._check_cause(outcome, took_s)
        return outcome

    @property
    def _gateway_may_go(self) -> bool:
        return any(one.node == GATEWAY and one.kind is FaultKind.CRASH for one in self._plan.faults)

    def _check_cause(self, outcome: str, took_s: float) -> None:
        call = self._call
        if outcome == CANCELLED and not self._left and not call.read_pause_s:
            self._record.breaks("cancelled only by its client", call.name, f"after {took_s:.3f} s")
        earliest_s = min(self._deadline_s(), call.ttft_deadline_s or DEFAULT_TTFT_DEADLINE_S)
        if outcome == EXPIRED and took_s < earliest_s - EARLY_S:
            why = f"after {took_s:.3f} s of {earliest_s:.3f} s"
            self._record.breaks("no deadline passes early", call.name, why)
        plan = self._plan
        hurried = call.deadline_s or call.ttft_deadline_s
        if plan.can_always_serve and (
            outcome == FAILED or (outcome in (SHED, EXPIRED) and plan.has_room and not hurried)
        ):
            self._record.breaks("what can be served is", call.name, f"{outcome} after {took_s:.3f} s")


def ended_well(end: pb.Terminal | None) -> bool:
    return end is not None and end.outcome == pb.OUTCOME_FINISHED
