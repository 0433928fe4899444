"""Calls of a real gateway's gRPC interface, made from the descriptors of its messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import grpc
from google.protobuf import descriptor, message, message_factory

from protos.penstock.v1 import inference_pb2 as pb
from tests.fuzz.fleet import opened_fleet
from tests.fuzz.messages import FLOATS, NUMBERS, WORDS
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, RunOne, Target
from tests.support.stack import Stack

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"]
CALL_S = 20.0
MAX_DEPTH = 4
TEXTS = (
    *WORDS,
    "penstock-demo",
    "default",
    "",
    "{}",
    '{"type": "object"}',
    "\0",
    "[" * 300,
    "start: A",
    "a+",
    "low",
)
BUGS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
FIELD = descriptor.FieldDescriptor
FEW_TOKENS = 4


def make(rng: random.Random) -> bytes:
    """The name of a method, a line end, and the request's bytes."""
    method = rng.choice(SERVICE.methods)
    request = message_factory.GetMessageClass(method.input_type)()
    _fill(request, rng, 0)
    if isinstance(request, pb.GenerateRequest) and rng.random() < 0.7:
        _make_likely(request, rng)
    data = request.SerializeToString()
    return method.name.encode() + b"\n" + (mutated_bytes(data, rng) if rng.random() < 0.1 else data)


def _make_likely(request: pb.GenerateRequest, rng: random.Random) -> None:
    """Most that is drawn is refused at its first field; these go on."""
    request.model = ""
    request.sampling.Clear()
    request.sampling.max_tokens = FEW_TOKENS
    if rng.random() < 0.5:
        _fill(request.sampling, rng, MAX_DEPTH - 1, share=0.1)
    if rng.random() < 0.5:
        request.text = "hello"


def _fill(request: message.Message, rng: random.Random, depth: int, share: float = 0.4) -> None:
    for field in request.DESCRIPTOR.fields:
        if rng.random() > share or (field.message_type is not None and depth >= MAX_DEPTH):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            for _ in range(rng.choice((1, 3))):
                getattr(request, field.name)[_value(key, rng)] = _value(value, rng)
        elif field.is_repeated:
            held = getattr(request, field.name)
            for _ in range(rng.choice((1, 1, 2, 40))):
                if field.message_type is not None:
                    _fill(held.add(), rng, depth + 1)
                else:
                    held.append(_value(field, rng))
        elif field.message_type is not None:
            inner = getattr(request, field.name)
            inner.SetInParent()
            _fill(inner, rng, depth + 1)
        else:
            setattr(request, field.name, _value(field, rng))


def _value(field: Any, rng: random.Random) -> Any:
    whole = rng.choice(NUMBERS)
    match field.cpp_type:
        case FIELD.CPPTYPE_STRING:
            return rng.choice(TEXTS) if field.type == FIELD.TYPE_STRING else rng.randbytes(rng.randrange(40))
        case FIELD.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FIELD.CPPTYPE_FLOAT | FIELD.CPPTYPE_DOUBLE:
            number = rng.choice(FLOATS)
            return number if field.cpp_type == FIELD.CPPTYPE_DOUBLE or abs(number) < 3e38 else 0.5
        case FIELD.CPPTYPE_UINT32:
            return whole & 0xFFFFFFFF
        case FIELD.CPPTYPE_INT32:
            return (whole & 0xFFFFFFFF) - (1 << 31)
        case FIELD.CPPTYPE_UINT64:
            return whole & ((1 << 64) - 1)
        case FIELD.CPPTYPE_INT64:
            return (whole & ((1 << 64) - 1)) - (1 << 63)
        case _:  # an enumeration, which takes what it does not know
            return rng.choice((*field.enum_type.values_by_number, 99)) if field.enum_type else 0


def _as_it_is(data: bytes) -> bytes:
    return data


def sender(stack: Stack) -> RunOne:
    channel = grpc.insecure_channel(stack.grpc)
    calls: dict[str, Callable[..., Any]] = {}
    for method in SERVICE.methods:
        kind = channel.unary_stream if method.server_streaming else channel.unary_unary
        calls[method.name] = kind(f"/{SERVICE.full_name}/{method.name}", _as_it_is, _as_it_is)
    streamed = {method.name for method in SERVICE.methods if method.server_streaming}

    def send(data: bytes) -> None:
        name, _, request = data.partition(b"\n")
        method = name.decode(errors="replace")
        if method not in calls:
            return
        try:
            answer = calls[method](request, timeout=CALL_S)
            if method in streamed:
                list(answer)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            if code in BUGS and not details.startswith("Exception deserializing"):
                raise Fault(f"{code.name}: {details}") from error
            if len(details.split()) < 3:
                raise Fault(f"{code.name} without a sentence: {details!r}") from error

    return send


def opened() -> AbstractContextManager[RunOne]:
    return opened_fleet(sender)


TARGET = Target("grpc_request", make, opened, tries=30, has_stack=True)
