"""Both edges of a gateway without sockets, and clients of them.

In reading order: `memory_sockets` is what listens and accepts; `frames` carries the messages of gRPC's calls,
`grpc_context` is what a method is called with, `grpc_server` stands in for the server of grpc.aio; `answer`
is what a client has heard, `grpc_client` and `http_client` hear it.
"""
