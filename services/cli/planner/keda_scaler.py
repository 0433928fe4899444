"""KEDA's external scaler: KEDA asks by gRPC how many instances are planned, and starts and ends them.

`protos/keda/externalscaler.proto` has the contract. One instance is for the value 1, so that KEDA's sum over
instances is the plan. Without a plan, or with an old one, it is answered UNAVAILABLE: KEDA then takes its
`fallback`, and leaves everything as it is where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message

from protos.keda import externalscaler_pb2 as pb
from services.cli.planner.fleet_planner import Targets
from services.cli.planner.fleet_sight import FleetSight
from services.cli.planner.planner_settings import ROLES_PLANNED

CallContext = grpc.aio.ServicerContext[Any, Any]
SERVICE = "externalscaler.ExternalScaler"
MAX_KEDA_CALLS = 64
"""The calls that are answered at a time; more are refused."""
MAX_KEDA_BYTES = 1 << 16
"""The longest question of KEDA."""
OLD_AFTER_S = 60.0
"""A plan that is older counts as none."""
SAME_FOR_S = 20.0
"""A stream says its answer again after so long without another one."""


class KedaScaler:
    """Keeps the latest targets, and answers from them. `monotonic_s` is the clock by which they grow old."""

    asked = True

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._targets: Targets = {}
        self._models: tuple[str, ...] = ()
        self._planned_s = float("-inf")
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def apply(self, sight: FleetSight, targets: Targets) -> str:
        self._planned_s, self._models = self._monotonic_s(), sight.models
        if targets != self._targets:
            self._targets = targets
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        return "KEDA is told when it asks"

    async def start(self, address: str) -> int:
        """Listen at HOST:PORT, and return the port. Raises RuntimeError where that cannot be had."""
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_KEDA_CALLS,
            options=(("grpc.max_receive_message_length", MAX_KEDA_BYTES),),
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        port = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)

    def _handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        def reading(message: type[Message]) -> dict[str, Any]:
            return {"request_deserializer": message.FromString, "response_serializer": _bytes}

        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "IsActive": unary(self.is_active, **reading(pb.ScaledObjectRef)),
                "GetMetricSpec": unary(self.metric_spec, **reading(pb.ScaledObjectRef)),
                "GetMetrics": unary(self.metrics, **reading(pb.GetMetricsRequest)),
                "StreamIsActive": stream(self.stream_is_active, **reading(pb.ScaledObjectRef)),
            },
        )

    # ---- what KEDA asks -----------------------------------------------------------------------

    async def is_active(self, ref: pb.ScaledObjectRef, context: CallContext) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._count(ref, context) > 0)

    async def stream_is_active(
        self, ref: pb.ScaledObjectRef, context: CallContext
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """Say it now, whenever the plan is another one, and from time to time."""
        while True:
            changed = self._changed
            yield pb.IsActiveResponse(result=await self._count(ref, context) > 0)
            try:
                async with asyncio.timeout(SAME_FOR_S):
                    await changed.wait()
            except TimeoutError:
                pass

    async def metric_spec(self, ref: pb.ScaledObjectRef, context: CallContext) -> pb.GetMetricSpecResponse:
        role = await self._role(ref, context)
        return pb.GetMetricSpecResponse(
            metricSpecs=[pb.MetricSpec(metricName=f"penstock-{role}", targetSize=1, targetSizeFloat=1.0)]
        )

    async def metrics(self, asked: pb.GetMetricsRequest, context: CallContext) -> pb.GetMetricsResponse:
        count = await self._count(asked.scaledObjectRef, context)
        value = pb.MetricValue(metricName=asked.metricName, metricValue=count, metricValueFloat=float(count))
        return pb.GetMetricsResponse(metricValues=[value])

    async def _role(self, ref: pb.ScaledObjectRef, context: CallContext) -> str:
        role = ref.scalerMetadata.get("role", "")
        if role not in ROLES_PLANNED:
            await _refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the trigger's metadata has role {role[:40]!r}; write one of {', '.join(ROLES_PLANNED)}",
            )
        return role

    async def _count(self, ref: pb.ScaledObjectRef, context: CallContext) -> int:
        role = await self._role(ref, context)
        if self._monotonic_s() - self._planned_s > OLD_AFTER_S:
            await _refuse(
                context,
                grpc.StatusCode.UNAVAILABLE,
                "there is no plan of the last minute; see the planner's log",
            )
        model = ref.scalerMetadata.get("model", "") or (self._models[0] if len(self._models) == 1 else "")
        count = self._targets.get(model, {}).get(role)
        if count is None:
            await _refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"there is no plan for the {role} of {model[:80]!r}; write model in the trigger's metadata, "
                f"one of {', '.join(self._models)}",
            )
        return count


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


async def _refuse(context: CallContext, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise AssertionError("a call that is aborted is over")
