"""Server reflection under both of its names: v1, which clients ask for first, and v1alpha.

The library serves v1alpha alone. The two have the same messages, byte for byte, so one servicer answers both.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

V1 = "grpc.reflection.v1.ServerReflection"


def serve_reflection(services: Sequence[str], server: grpc.aio.Server) -> None:
    """Describe `services`, and reflection itself."""
    names = (*services, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # the stubs lack aio
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    info = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": info})
    server.add_generic_rpc_handlers((handler,))
