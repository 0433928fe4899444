"""The record of a call that was no request, as Embed or Retrieve: what its trace is made of."""

from __future__ import annotations

from dataclasses import dataclass

from shared.telemetry.trace_context import TraceContext

EMBEDDINGS = "embeddings"
RETRIEVAL = "retrieval"
RERANK = "rerank"
TOKENIZE = "tokenize"
DETOKENIZE = "detokenize"
SPELLING = "spelling"
"""Asked for a request; it has no record of its own."""


@dataclass(frozen=True, slots=True)
class CallAsk:
    """One question to an instance. `error` is the code of why it gave no answer, "" where it did."""

    role: str
    instance: str
    start_us: int
    end_us: int
    error: str


@dataclass(frozen=True, slots=True)
class TextCallRecord:
    """Times are microseconds since `began_unix_us`, by the gateway's clock alone. `span` is the call's own
    span, `parent_span_id` that of its client, "" without one. `model` and `corpus` are "" where the call is
    of none, `error` and what follows where it was answered."""

    call_id: str
    client_id: str
    span: TraceContext
    parent_span_id: str
    tenant: str
    operation: str
    model: str
    corpus: str
    began_unix_us: int
    total_us: int
    input_tokens: int
    error: str
    error_text: str
    hop: str
    asks: tuple[CallAsk, ...]
