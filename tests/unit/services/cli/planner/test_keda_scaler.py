"""KEDA's questions over gRPC, by the names and numbers of its own contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from protos.keda import externalscaler_pb2 as pb
from services.cli.planner.fleet_planner import Targets
from services.cli.planner.keda_scaler import OLD_AFTER_S, SERVICE, KedaScaler
from tests.support.clock import FakeClock
from tests.unit.services.cli.planner.sights import fleet, sight, small

TARGETS: Targets = {"large": {"prefill": 2, "decode": 3}, "small": {"prefill": 0, "decode": 0}}
TIMEOUT_S = 60.0


@asynccontextmanager
async def scaler(clock: FakeClock) -> AsyncIterator[tuple[KedaScaler, grpc.aio.Channel]]:
    keda = KedaScaler(clock.monotonic_s)
    port = await keda.start("127.0.0.1:0")
    try:
        options = (("grpc.enable_http_proxy", 0),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield keda, channel
    finally:
        await keda.close()


def ref(**metadata: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name="decode", namespace="penstock", scalerMetadata=metadata)


async def ask(channel: grpc.aio.Channel, method: str, message: Message, answer: type[Message]) -> Any:
    call = channel.unary_unary(
        f"/{SERVICE}/{method}",
        type(message).SerializeToString,
        answer.FromString,
    )
    return await call(message, timeout=TIMEOUT_S)


async def test_keda_is_told_the_plan_as_a_value_of_which_an_instance_is_for_one() -> None:
    async with scaler(FakeClock()) as (keda, channel):
        await keda.apply(sight(fleet(*small())), TARGETS)
        where = ref(role="decode", model="large")
        spec = await ask(channel, "GetMetricSpec", where, pb.GetMetricSpecResponse)
        asked = pb.GetMetricsRequest(scaledObjectRef=where, metricName="penstock-decode")
        value = await ask(channel, "GetMetrics", asked, pb.GetMetricsResponse)
        active = await ask(channel, "IsActive", where, pb.IsActiveResponse)
        resting = await ask(channel, "IsActive", ref(role="decode", model="small"), pb.IsActiveResponse)
    assert [(each.metricName, each.targetSizeFloat) for each in spec.metricSpecs] == [
        ("penstock-decode", 1.0)
    ]
    assert [(each.metricName, each.metricValueFloat) for each in value.metricValues] == [
        ("penstock-decode", 3.0)
    ]
    assert (active, resting) == (pb.IsActiveResponse(result=True), pb.IsActiveResponse(result=False))


async def test_a_stream_says_at_once_that_a_model_is_wanted_again() -> None:
    async with scaler(FakeClock()) as (keda, channel):
        seen = sight(fleet(*small()))
        await keda.apply(seen, TARGETS)
        stream: Any = channel.unary_stream(
            f"/{SERVICE}/StreamIsActive", pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )
        call = stream(ref(role="decode", model="small"), timeout=TIMEOUT_S)
        first = await call.read()
        await keda.apply(seen, {**TARGETS, "small": {"prefill": 1, "decode": 1}})
        then = await call.read()
        call.cancel()
    assert (first.result, then.result) == (False, True)


@pytest.mark.parametrize(
    ("metadata", "code", "said"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "write one of prefill, decode"),
        ({"role": "decode"}, grpc.StatusCode.NOT_FOUND, "write model in the trigger's metadata"),
    ],
)
async def test_a_trigger_that_lacks_something_is_told_so(
    metadata: dict[str, str], code: grpc.StatusCode, said: str
) -> None:
    async with scaler(FakeClock()) as (keda, channel):
        await keda.apply(sight(fleet(*small())), TARGETS)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(channel, "IsActive", ref(**metadata), pb.IsActiveResponse)
    assert refused.value.code() == code
    assert said in (refused.value.details() or "")


async def test_a_plan_that_is_old_counts_as_none() -> None:
    clock = FakeClock()
    async with scaler(clock) as (keda, channel):
        await keda.apply(sight(fleet()), {"large": {"decode": 3}})
        clock.advance(OLD_AFTER_S + 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(channel, "IsActive", ref(role="decode"), pb.IsActiveResponse)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
