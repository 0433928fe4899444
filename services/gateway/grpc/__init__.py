"""The gRPC edge.

In reading order: `edge` has the calls that generate and `edge_text` the others, `edge_status` makes
statuses of errors, `edge_reflection` tells what there is, `edge_intake` takes every call in and reads what
it sends, once `message_parts` has counted that, `wide_server` takes many up at once, `idle_connections`
make room for others, `edge_server` listens and drains.
"""
