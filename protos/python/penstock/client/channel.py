"""Open channels for both clients: the methods of the contract, and the options of a channel."""

from __future__ import annotations

from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from penstock.client._proto import inference_pb2 as pb

SERVICE = "/penstock.v1.Inference/"
OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),  # what a gateway may send
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # a machine that is gone is noticed within the two together
)
BACKSTOP_S = 1.0
"""The server keeps a deadline and says how far it came; gRPC ends the call only this much later."""

Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res", bound=Message)


def metadata_of(api_key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {api_key}"),) if api_key else ()


def timeout_of(remaining_s: float | None) -> float | None:
    return None if remaining_s is None else remaining_s + BACKSTOP_S


def blocking_stream(
    channel: grpc.Channel, name: str, request: type[Req]
) -> grpc.UnaryStreamMultiCallable[Req, pb.GenerateEvent]:
    return channel.unary_stream(
        SERVICE + name,
        request_serializer=request.SerializeToString,
        response_deserializer=pb.GenerateEvent.FromString,
    )


def blocking_method(
    channel: grpc.Channel, name: str, request: type[Req], response: type[Res]
) -> grpc.UnaryUnaryMultiCallable[Req, Res]:
    return channel.unary_unary(
        SERVICE + name,
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )


def async_stream(
    channel: grpc.aio.Channel, name: str, request: type[Req]
) -> grpc.aio.UnaryStreamMultiCallable[Req, pb.GenerateEvent]:
    return channel.unary_stream(
        SERVICE + name,
        request_serializer=request.SerializeToString,
        response_deserializer=pb.GenerateEvent.FromString,
    )


def async_method(
    channel: grpc.aio.Channel, name: str, request: type[Req], response: type[Res]
) -> grpc.aio.UnaryUnaryMultiCallable[Req, Res]:
    return channel.unary_unary(
        SERVICE + name,
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
