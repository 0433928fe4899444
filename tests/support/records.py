"""Records of requests that never were, for what is made of them."""

from __future__ import annotations

from typing import Any

from services.gateway.scope.request_record import AskedInstance, Attempt, RequestRecord
from shared.telemetry.timeline import Phase
from shared.telemetry.trace_context import new_trace

WORKERS = (("prefill", "prefill-0"), ("decode", "decode-0"), ("detokenizer", "detokenizer-0"))
PHASES = (
    Phase("admit", 0, 100),
    Phase("tokenize", 100, 200),
    Phase("route", 300, 100),
    Phase("prefill.queue", 400, 50),
    Phase("prefill.compute", 450, 2000),
    Phase("detokenize", 2450, 20),
    Phase("bus", 2470, 30),
    Phase("deliver", 2500, 100),
    Phase("kv.transfer", 2600, 400),
    Phase("decode", 3000, 6000),
    Phase("finish", 9000, 100),
)


def make_record(**changes: Any) -> RequestRecord:
    """Return the record of a request that was answered in its first attempt, changed as the test wants."""
    fields: dict[str, Any] = {
        "request_id": "gateway-0.abc",
        "client_id": "",
        "span": new_trace(),
        "parent_span_id": "",
        "tenant": "",
        "model": "test-model",
        "endpoint": "chat",
        "operation": "chat",
        "outcome": "finished",
        "finish": "stop",
        "error": "",
        "error_text": "",
        "hop": "",
        "began_unix_us": 1_700_000_000_000_000,
        "total_us": 9100,
        "ttft_us": 2600,
        "prompt_tokens": 40,
        "output_tokens": 4,
        "cached_tokens": 16,
        "replacements": 0,
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 7,
        "phases": PHASES,
        "asked": (AskedInstance("tokenizer", "tokenizer-0", 120),),
        "attempts": (Attempt(1, WORKERS, 400, 9100),),
    }
    return RequestRecord(**{**fields, **changes})
