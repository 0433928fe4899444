"""All targets by name, cheap ones first."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    adapter,
    bus_codec,
    bus_message,
    chat_template,
    checkpoint,
    document,
    encoder_folder,
    gguf_file,
    grammar,
    grpc_request,
    http2_connection,
    http_head,
    http_request,
    index_folder,
    kv_chunk,
    kv_transfer,
    settings_file,
    telemetry_page,
    text_stream,
    tokenizer_folder,
)

MODULES = (
    bus_codec,
    settings_file,
    gguf_file,
    checkpoint,
    adapter,
    tokenizer_folder,
    encoder_folder,
    chat_template,
    text_stream,
    index_folder,
    document,
    kv_chunk,
    telemetry_page,
    grammar,
    http2_connection,
    http_head,
    http_request,
    grpc_request,
    bus_message,
    kv_transfer,
)
TARGETS: dict[str, Target] = {each.TARGET.name: each.TARGET for each in MODULES}
