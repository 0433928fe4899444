"""Settings of a gateway: `[gateway]` of penstock.toml or `PENSTOCK_GATEWAY_<FIELD>`."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.request.retrieval_use import (
    DEFAULT_PASSAGES,
    MAX_PASSAGES,
    ORDERS,
    SHARED_PREFIX,
    WARM_HEAD,
    WARM_MODES,
)
from services.gateway.request.trimming_use import LEAST_PASSAGE_SHARE
from shared.cache_modes import CACHE_MODES, OFF
from shared.config.fields import PathRule, ServiceConfig, field_of
from shared.messages import Trimming
from shared.sampling.defaults import DEFAULT_MAX_TOKENS
from shared.telemetry.trace_sampler import DEFAULT_SAMPLER, SAMPLERS
from shared.text.default_model import ANSWERS_ADAPTER


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    grpc_host: str = field_of("127.0.0.1", help="address the gRPC edge listens on")
    grpc_port: int = field_of(0, help="port of the gRPC edge; 0 takes a free one", minimum=0, maximum=65535)
    grpc_server: str = field_of(
        "native",
        help="what serves the gRPC edge: native (our own HTTP/2, where that was compiled, else the other) "
        "or grpcio",
        choices=("native", "grpcio"),
    )
    http_host: str = field_of("127.0.0.1", help="address the HTTP edge listens on; empty = no HTTP edge")
    http_port: int = field_of(
        8000, help="port of the HTTP edge; 0 takes a free one", minimum=0, maximum=65535
    )
    grpc_max_connections: int = field_of(
        1024,
        help="open gRPC connections, from accept on; the last places are kept free of idle ones, and beyond "
        "them new ones are closed at once",
        minimum=1,
        maximum=65536,
    )
    share_ports: bool = field_of(
        False,
        help="other gateways of this user listen on the same ports; a connection is with one of them",
    )
    own_detokenizer: bool = field_of(
        False,
        help="a detokenizer in the gateway's own process: no token's text goes over the bus, and the two end "
        "together",
    )
    http_max_connections: int = field_of(
        1024,
        help="open HTTP connections, from accept on; above it idle ones make room, and 32 more are for "
        "health and metrics alone",
        minimum=1,
        maximum=65536,
    )
    http_cors_origins: tuple[str, ...] = field_of(
        (),
        help="origins whose pages may ask over HTTP, such as https://example.com; * = all; others get a 403",
    )
    http_hosts: tuple[str, ...] = field_of(
        (),
        help="names by which HTTP clients may call the host, beside localhost and its address; * = any, as "
        "by default where http_host is no loopback address",
    )
    http_max_body_bytes: int = field_of(
        128 << 20,
        help="bytes of HTTP bodies that are on their way at once, of all connections; beyond them a 429",
        minimum=1 << 20,
        maximum=1 << 40,
    )
    max_request_bytes: int = field_of(
        4 << 20, help="longest request, bytes", minimum=1 << 10, maximum=64 << 20
    )

    tls_cert: str = field_of(
        "", help="file with the edge's certificates, PEM; empty = no TLS", path=PathRule.ALWAYS
    )
    tls_key: str = field_of(
        "", help="file with the key of tls_cert, PEM, without a passphrase", path=PathRule.ALWAYS
    )
    tls_client_ca: str = field_of(
        "",
        help="file with the certificates that a client's must be signed by; empty = clients need none",
        path=PathRule.ALWAYS,
    )
    api_keys: str = field_of(
        "",
        help="file of the API keys that clients need (`penstock keys new`); empty = an open edge",
        path=PathRule.ALWAYS,
    )

    otlp_endpoint: str = field_of(
        "",
        help="collector that gets spans, by OTLP over HTTP, such as http://127.0.0.1:4318; empty = none",
        pattern=r"(https?://[^/\s]+(/\S*)?)?",
    )
    otlp_headers: str = field_of(
        "",
        help="headers for the collector, such as authorization=Bearer%20KEY, percent-encoded, with commas "
        "between; empty = those of OTEL_EXPORTER_OTLP_HEADERS",
        secret=True,
    )
    otlp_certificate: str = field_of(
        "",
        help="file with the certificates that a collector's must be signed by, PEM; empty = that of "
        "OTEL_EXPORTER_OTLP_CERTIFICATE, else the system's",
        path=PathRule.ALWAYS,
    )
    trace_sampler: str = field_of(
        "",
        help="of which traces there are spans, by OpenTelemetry's names; empty = OTEL_TRACES_SAMPLER, else "
        f"{DEFAULT_SAMPLER}",
        choices=("", *SAMPLERS),
    )
    trace_sample_ratio: float = field_of(
        1.0, help="share of traces for a trace_sampler by traceidratio", minimum=0.0, maximum=1.0
    )

    max_sessions: int = field_of(
        256, help="live requests; above it new ones are shed", minimum=1, maximum=65536
    )
    max_text_calls: int = field_of(
        256,
        help="live calls that are no requests, as Embed and Retrieve; above it new ones are shed",
        minimum=1,
        maximum=65536,
    )
    max_buffered_tokens: int = field_of(
        4096, help="tokens a slow client may leave unread before its request is cancelled", minimum=1
    )

    default_model: str = field_of(
        "",
        help="model of a request that names none; empty = the only one that is served, and else a refusal",
        pattern=r"[\w.:@/-]{0,128}",
    )
    virtual_models: str = field_of(
        "",
        help="file of virtual model names, each with the rules that say which model answers; empty = none",
        path=PathRule.ALWAYS,
    )
    classifier_wait_ms: float = field_of(
        25.0,
        help="longest wait for how hard a question is, where a rule of a virtual model asks; at most a tenth "
        "of what is left until the first token's deadline",
        minimum=0.1,
        maximum=10_000.0,
    )
    flags: str = field_of(
        "",
        help="file of what `penstock flags` changes, which gateways of one host may share; empty = changes "
        "last as long as a gateway of the fleet does",
        path=PathRule.ALWAYS,
    )
    default_max_tokens: int = field_of(
        DEFAULT_MAX_TOKENS, help="max_tokens of a request that sets none", minimum=1, maximum=1 << 20
    )
    default_deadline_s: float = field_of(
        120.0, help="total deadline of a request that sets none", minimum=0.1, maximum=86400.0
    )
    default_text_deadline_s: float = field_of(
        30.0,
        help="deadline of a call that is no request, as Embed or Retrieve, and sets none",
        minimum=0.1,
        maximum=86400.0,
    )
    default_ttft_deadline_s: float = field_of(
        60.0, help="first-token deadline of a request that sets none", minimum=0.1, maximum=86400.0
    )
    retrieve_share: float = field_of(
        0.15, help="share of the first-token budget that retrieval may take", minimum=0.01, maximum=1.0
    )
    tokenize_share: float = field_of(
        0.10, help="share of the first-token budget that one tokenizer may take", minimum=0.01, maximum=1.0
    )
    place_share: float = field_of(
        0.50,
        help="share of what is left of the deadline to wait for an instance of a missing role",
        minimum=0.01,
        maximum=1.0,
    )
    admit_wait_s: float = field_of(
        10.0, help="longest wait for an instance of a missing role", minimum=0.0, maximum=600.0
    )
    ask_timeout_s: float = field_of(
        2.0, help="longest wait for a worker's answer to a route", minimum=0.05, maximum=60.0
    )
    stall_timeout_s: float = field_of(
        3.0,
        help="silence after the first token before the request is routed anew",
        minimum=0.1,
        maximum=600.0,
    )
    liveness_check_s: float = field_of(
        2.0,
        help="silence before the first token after which decode is asked whether it holds the request",
        minimum=0.05,
        maximum=600.0,
    )
    question_rewriter: str = field_of(
        "history",
        help="what is searched for in place of a question: history (a follow-up with what it leans on), "
        "none, or a function of yours as MODULE:FUNCTION",
    )
    rewrite_timeout_ms: float = field_of(
        200.0,
        help="longest wait for a function of yours that rewrites a question",
        minimum=1.0,
        maximum=60_000.0,
    )
    retrieval_adapter: str = field_of(
        ANSWERS_ADAPTER,
        help="adapter that answers from passages where a model has it and none is asked for; empty = none",
    )
    passage_order: str = field_of(
        SHARED_PREFIX,
        help="how passages stand in the prompt of a request that says nothing about it",
        choices=tuple(ORDERS.values()),
    )
    retrieval_passages: int = field_of(
        DEFAULT_PASSAGES,
        help="passages that a question is answered from where the request says no number",
        minimum=1,
        maximum=MAX_PASSAGES,
    )
    rerank: bool = field_of(
        True, help="passages are looked at more closely; if not, only where the request allows that"
    )
    least_degradation: str = field_of(
        "none",
        help="what is left out of a request that allows it although nothing is pressed",
        choices=("none", "rerank", "retrieval_depth", "retrieval"),
    )
    passage_least_share: float = field_of(
        0.3,
        help="share of the best passage's score that a passage needs to stand in the prompt; 0 = all do",
        minimum=0.0,
        maximum=1.0,
    )
    trim_passage_tokens: int = field_of(
        0,
        help="tokens of all passages of a prompt, by the sentences that fit the question best; 0 = any "
        "number",
        minimum=0,
        maximum=1 << 20,
    )
    trim_passage_share: float = field_of(
        1.0,
        help="share of their tokens that passages are shortened to, by the sentences that fit the question "
        "best; 1 = none is",
        minimum=LEAST_PASSAGE_SHARE,
        maximum=1.0,
    )
    trim_prompt_tokens: int = field_of(
        0,
        help="tokens of a chat's prompt, of which the oldest turns are left out beyond them; 0 = any number",
        minimum=0,
        maximum=1 << 20,
    )
    trim_summary_tokens: int = field_of(
        0,
        help="tokens of a summary in the place of the oldest turns of a chat, by their sentences that say "
        "most; 0 = nothing is put there",
        minimum=0,
        maximum=1 << 20,
    )
    trim_tool_tokens: int = field_of(
        0,
        help="tokens of all tools of a chat, by those that its user asks for; 0 = any number",
        minimum=0,
        maximum=1 << 20,
    )
    trim_to_context: bool = field_of(
        False, help="the oldest turns of a chat are left out where its model has no room for all of them"
    )
    trim_space: bool = field_of(
        False,
        help="turns of a chat, but the model's own, are written without space that says nothing, and JSON of "
        "tools without any between its parts",
    )
    trim_duplicates: bool = field_of(
        False, help="a sentence that another passage says already, in nearly the same words, is left out"
    )
    warm_while_retrieving: str = field_of(
        WARM_HEAD,
        help="what of a prompt idle workers compute while its passages are found: its head, or, while they "
        "are reranked, all of it as it is likely to be",
        choices=WARM_MODES,
    )
    warm_min_tokens: int = field_of(
        64,
        help="fewest uncached tokens that are computed while passages are found",
        minimum=16,
        maximum=1 << 20,
    )
    warm_next_turn: bool = field_of(
        True,
        help="whether idle workers compute ahead what the next call of an agent begins with, while its tool "
        "runs",
    )
    cache_mode: str = field_of(
        OFF,
        help="whether an earlier answer will do for a request of which neither it nor its key says so",
        choices=CACHE_MODES,
    )
    cache_wait_ms: float = field_of(
        3.0,
        help="longest wait for an earlier answer to the same request, once its prompt is ready",
        minimum=0.0,
        maximum=1000.0,
    )
    semantic_cache_wait_ms: float = field_of(
        30.0,
        help="longest wait for the answer to a question that means the same, once the prompt is ready",
        minimum=0.0,
        maximum=1000.0,
    )
    cite_wait_ms: float = field_of(
        300.0,
        help="longest wait at the end of an answer for which passages support what it says; 0 = nobody looks",
        minimum=0.0,
        maximum=10_000.0,
    )
    useful_marker: str = field_of(
        "",
        help="what makes an answer useful, whose time is measured: sentence, json (a whole value), thinking "
        "(text behind it) or regex:PATTERN; empty = nobody looks",
        pattern=r"|sentence|json|thinking|regex:(?s:.{1,1000})",
    )
    local_prefill_tokens: int = field_of(
        512,
        help="most uncached tokens of a prompt that decode may compute itself where that is sooner; 0 = none",
        minimum=0,
        maximum=1 << 20,
    )
    predict_answers: bool = field_of(
        True,
        help="how long an answer gets is predicted from answers like it, for its turn, its place and the "
        "room that is kept for it; else it counts with its max_tokens",
    )
    use_speculator: bool = field_of(
        True, help="a speculator drafts tokens, where there is one; n-gram drafts are the engine's own"
    )
    coalesce: bool = field_of(
        True,
        help="requests of a tenant that are the same and get the same answer share one computation while "
        "they are in flight",
    )
    cancel_ack_s: float = field_of(
        0.25, help="wait for a CancelAck before the broadcast", minimum=0.01, maximum=10.0
    )
    max_replacements: int = field_of(
        4, help="failures of workers that one request survives", minimum=0, maximum=100
    )

    def usual_trimming(self) -> Trimming:
        """Return the budgets of a prompt whose request says nothing about them."""
        return Trimming(
            passage_tokens=self.trim_passage_tokens,
            passage_share=self.trim_passage_share,
            duplicates=self.trim_duplicates,
            prompt_tokens=self.trim_prompt_tokens,
            fit_context=self.trim_to_context,
            compact=self.trim_space,
            summary_tokens=self.trim_summary_tokens,
            tool_tokens=self.trim_tool_tokens,
        )
