"""A server of gRPC over HTTP/2 whose frames are read and written natively.

In reading order: `limits` bounds what clients may do; `native_codec` finds the codec, which `codec/` has the
C++ of; `codes` are the numbers of both; `metadata` reads and writes what stands in headers, `compression`
opens messages; `grpc_call` is what a method is called with, `method_call` calls it; `http2_connection` is one
client's connection, `keepalive` ends those that nobody is at; `grpc_server` is all of it.
"""
