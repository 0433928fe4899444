"""Every Prometheus metric of Penstock, created once per process, and which of them a service shows.

Latency histograms have vLLM's bucket edges plus finer ones from 0.5 to 8 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# One more series of each counter and histogram, which nobody looks at.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it

_FINE = (0.0005, 0.001, 0.002, 0.004, 0.008)
TTFT_BUCKETS = (
    *_FINE,
    0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
ITL_BUCKETS = (
    *_FINE,
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
E2E_BUCKETS = (
    *_FINE,
    0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0,
)  # fmt: skip
HOP_BUCKETS = (0.0001, 0.0002, *_FINE, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0, 16.0)

PROMPT_EDGES_TOKENS = (16, 128, 512, 2048, 8192, 32768)


def prompt_bucket(prompt_tokens: int) -> str:
    """Return the value of the label `prompt_tokens`: the smallest edge that is not below the length, as a
    number of as many digits as all of them have, so that they sort as text too; `inf` beyond the last."""
    for edge in PROMPT_EDGES_TOKENS:
        if prompt_tokens <= edge:
            return f"{edge:05}"
    return "inf"


def observe_many(histogram: Histogram, counts: Sequence[int], total: float) -> None:
    """Observe `counts` values in the buckets, in their order, which are `total` together; the histogram has
    no labels. The library itself adds them one by one."""
    histogram._sum.inc(total)  # noqa: SLF001 - as its own `observe` does
    for bucket, count in zip(histogram._buckets, counts, strict=True):  # noqa: SLF001
        if count:
            bucket.inc(count)


BUILD_INFO = Gauge("penstock_build_info", "1, with what this process is made of.", ["version", "python"])
TIME_TO_FIRST_TOKEN = Histogram(
    "penstock_time_to_first_token_seconds",
    "Request to first token.",
    ["model", "prompt_tokens"],
    buckets=TTFT_BUCKETS,
)
TIME_TO_USEFUL_ANSWER = Histogram(
    "penstock_time_to_useful_answer_seconds",
    "Request to as much of its answer as the gateway's useful_marker wants, where that is set.",
    ["model", "prompt_tokens"],
    buckets=TTFT_BUCKETS,
)
INTER_TOKEN_LATENCY = Histogram(
    "penstock_inter_token_latency_seconds", "Between two deliveries of tokens.", buckets=ITL_BUCKETS
)
E2E_REQUEST_LATENCY = Histogram(
    "penstock_e2e_request_latency_seconds",
    "Request to its end.",
    ["model", "prompt_tokens"],
    buckets=E2E_BUCKETS,
)
HOP_SECONDS = Histogram(
    "penstock_hop_seconds", "Phases of a request by hop.", ["hop", "phase"], buckets=HOP_BUCKETS
)
QUEUE_DEPTH = Gauge("penstock_queue_depth", "Requests waiting.", ["service"])
BREAKER_STATE = Gauge(
    "penstock_breaker_state",
    "Breakers of this gateway: 0 closed after failures, 1 half-open, 2 open.",
    ["instance"],
)
REQUESTS = Counter(
    "penstock_requests_total",
    "Requests by outcome; model, endpoint and tenant are empty where they are not known.",
    ["outcome", "model", "endpoint", "tenant"],
)
TENANT_TOKENS = Counter(
    "penstock_tenant_tokens_total",
    "Tokens of requests that were answered, by tenant: prompt, cached (of the prompt), generated, and of "
    "these reasoning, kept, coalesced, drafted.",
    ["tenant", "model", "kind"],
)
TENANT_COMPUTE = Counter(
    "penstock_tenant_compute_seconds_total",
    "Seconds of a core, or of a GPU (device), that engines have spent on the requests of a tenant.",
    ["tenant", "model", "role", "unit"],
)
TENANT_KV = Counter(
    "penstock_tenant_kv_byte_seconds_total",
    "Bytes of KV times the seconds for which requests of a tenant held them.",
    ["tenant", "model"],
)
TRACED_REQUESTS = Counter(
    "penstock_traced_requests_total",
    "Requests with spans, by what became of these: sent; or dropped, as queue_full, refused, unreachable.",
    ["result"],
)
ROUTING_DECISIONS = Counter(
    "penstock_routing_decisions_total",
    "Placements that workers took, by who computes the prompt: disaggregated (prefill) or local (decode).",
    ["path"],
)
REGION_ROUTES = Counter(
    "penstock_region_routes_total",
    "Routes that workers took, where the gateway is told its region, by the region that they go to and why: "
    "home; or away, as no_instance, full, deadline, sooner, hold (home is not trusted yet).",
    ["region", "why"],
)
REGION_ROUND_TRIP = Gauge(
    "penstock_region_round_trip_seconds",
    "There and back to another region, the least of the latest measurements.",
    ["region"],
)
MODEL_CHOICES = Counter(
    "penstock_model_choices_total",
    "Requests that named a virtual model, or might fall back, by what answered and by what it was taken: "
    "rule, share or named; or why the first one was passed over: shed, down, slow, context, failed.",
    ["asked", "model", "by"],
)
MODEL_CHOICE_SECONDS = Histogram(
    "penstock_model_choice_seconds", "The choice of a model by rules.", buckets=HOP_BUCKETS
)
FLAGGED_REQUESTS = Counter(
    "penstock_flagged_requests_total",
    "Requests that had a change of a setting, by the setting, the change's version and their outcome.",
    ["setting", "version", "outcome"],
)
FLAG_CHANGES = Counter(
    "penstock_flag_changes_total",
    "Changes of settings that this gateway took or made: set, rollback, or guard where one burnt.",
    ["kind"],
)
FLAGS_IN_FORCE = Gauge("penstock_flags_in_force", "Changes of settings that are in force.")
FLAGS_STALE = Gauge(
    "penstock_flags_stale", "1 while the file of changes of settings cannot be read or written."
)
VIRTUAL_MODELS_STALE = Gauge(
    "penstock_virtual_models_stale",
    "1 while the file of virtual models cannot be used and its last good state is in force.",
)
HTTP_CONNECTIONS = Gauge("penstock_http_connections", "Open connections of the HTTP edge.")
CONNECTIONS_CLOSED = Counter(
    "penstock_connections_closed_total",
    "Connections without a call that made room for others, by edge: grpc or http.",
    ["edge"],
)
FINISHED_REQUESTS = Counter(
    "penstock_finished_requests_total",
    "Requests with a whole answer, by why it ended: stop or length.",
    ["model", "finish_reason"],
)
REQUESTS_RUNNING = Gauge("penstock_requests_running", "Live requests that workers have.", ["model"])
REQUESTS_WAITING = Gauge(
    "penstock_requests_waiting",
    "Live requests that are not placed yet; model is empty until it is known.",
    ["model"],
)
PROMPT_TOKENS = Counter("penstock_prompt_tokens_total", "Tokens of prompts that were answered.", ["model"])
GENERATION_TOKENS = Counter("penstock_generation_tokens_total", "Tokens that were generated.", ["model"])
API_KEYS = Gauge("penstock_api_keys", "API keys in force.")
API_KEYS_STALE = Gauge(
    "penstock_api_keys_stale",
    "1 while the file of API keys cannot be used and its last good state is in force.",
)
TLS_STALE = Gauge(
    "penstock_tls_stale",
    "1 while the files of the edge's certificate cannot be used and the last good ones are in force.",
)
API_KEY_REFUSALS = Counter(
    "penstock_api_key_refusals_total",
    "Calls refused for want of a key or for a limit of one; tenants are those of the file.",
    ["reason", "tenant"],
)
SHED = Counter(
    "penstock_shed_total", "Requests that were refused for want of room or time.", ["hop", "reason"]
)
"""reason: key, sessions, calls, wait, ttft, priority, drain are the gateway's own; full is others' word."""
RESUMED_STREAMS = Counter(
    "penstock_resumed_streams_total",
    "Streams of other gateways that clients wanted to go on with here: resumed, or the code of the error.",
    ["result"],
)
DEGRADED_REQUESTS = Counter(
    "penstock_degraded_requests_total", "Requests that were answered with less.", ["what"]
)
TRIMMED_REQUESTS = Counter(
    "penstock_trimmed_requests_total",
    "Requests of whose prompts something was left out for a budget.",
    ["what"],
)
TRIMMED_TOKENS = Counter(
    "penstock_trimmed_tokens_total", "Tokens that were left out of prompts for budgets.", ["what", "model"]
)
EXPECTED_ANSWERS = Counter(
    "penstock_expected_answers_total",
    "Answers whose length was predicted, by whether it is within what 95 of 100 were expected not to exceed.",
    ["model", "result"],
)
DEGRADATION_LEVEL = Gauge(
    "penstock_degradation_level",
    "What is left out, of the model under most pressure: 0 nothing to 7 new requests.",
)
DEGRADATION_STEPS = Counter(
    "penstock_degradation_steps_total", "Levels of degradation entered and left.", ["step", "direction"]
)

PLANNED_INSTANCES = Gauge(
    "penstock_planned_instances", "Instances that the planner wants, by model and role.", ["model", "role"]
)
PLAN_CHANGES = Counter(
    "penstock_plan_changes_total",
    "Instances that the planner has had come (out) or go (in).",
    ["model", "role", "direction"],
)
PLAN_ROUNDS = Counter(
    "penstock_plan_rounds_total",
    "Rounds of the planner: planned; lacking, where something was not known; failed to scale.",
    ["result"],
)

QUESTION_VECTORS = Counter(
    "penstock_question_vectors_total",
    "Vectors of questions that were wanted: kept (also by who asked at the same time), computed.",
    ["result"],
)
COALESCED_REQUESTS = Counter(
    "penstock_coalesced_requests_total",
    "Requests that shared the computation of another one that was in flight; one may do so several times.",
    ["model"],
)
RESPONSE_CACHE_ASKS = Counter(
    "penstock_response_cache_asks_total",
    "Requests that an earlier answer will do for: exact, semantic, miss; none where no retriever answered.",
    ["result"],
)
RESPONSE_CACHE_LOOKUPS = Counter(
    "penstock_response_cache_lookups_total",
    "Lookups by what was found: exact, semantic, miss, late.",
    ["result"],
)
RESPONSE_CACHE_STORES = Counter(
    "penstock_response_cache_stores_total",
    "Answers that came to be kept: kept, too_large, stale.",
    ["result"],
)
RESPONSE_CACHE_EVICTIONS = Counter(
    "penstock_response_cache_evictions_total",
    "Answers that went: for want of room, by age, by a new index.",
    ["why"],
)
RESPONSE_CACHE_BYTES = Gauge(
    "penstock_response_cache_bytes", "Memory of kept answers and of the vectors of their questions."
)
RESPONSE_CACHE_ENTRIES = Gauge("penstock_response_cache_entries", "Answers that are kept.")
CORPUS_PASSAGES = Gauge(
    "penstock_corpus_passages", "Passages of the index that is searched; 0 where there is none.", ["corpus"]
)
CORPUS_TROUBLED = Gauge(
    "penstock_corpus_troubled",
    "1 where a corpus could not be indexed or its newest index not be read; what there is serves.",
    ["corpus"],
)

SERVED_MODEL = Gauge(
    "penstock_served_model",
    "1 for the model that this process serves: joined by instance, workers of two models differ.",
    ["model"],
)
ADAPTERS = Gauge("penstock_adapters", "Adapters over the model that requests may name here.")
ADAPTERS_STALE = Gauge(
    "penstock_adapters_stale",
    "1 while the file of adapters cannot be used and what it said last is in force.",
)
KV_BLOCKS = Gauge("penstock_kv_blocks", "Blocks of the KV pool by state.", ["state"])
KV_RESIDENT_BYTES = Gauge("penstock_kv_resident_bytes", "Memory that blocks of the KV pool take.")
ENGINE_THREADS = Gauge(
    "penstock_engine_threads", "Threads that a step is computed with: now, and with nobody beside.", ["state"]
)
PREEMPTIONS = Counter("penstock_preemptions_total", "Sequences that gave way when KV blocks ran out.")
MASK_WAITS = Counter(
    "penstock_mask_waits_total",
    "Draws that waited a step for what their grammar allows: their own tokens came later, nobody else's.",
)
RESTS = Counter(
    "penstock_rests_total",
    "Steps that streams sat out, of tenants with more of them, while others had their rows.",
)
GRAMMAR_TRIALS = Counter(
    "penstock_grammar_trials_total", "Grammars that were tried in a process that can be killed."
)
KV_TRANSFER_BYTES = Counter("penstock_kv_transfer_bytes_total", "KV bytes moved.", ["transport"])
"""Verified bytes, at the receiver."""
KV_TRANSFER_SECONDS = Histogram(
    "penstock_kv_transfer_seconds", "Grant to verified arrival.", ["transport"], buckets=HOP_BUCKETS
)
KV_TRANSFER_EXPOSED_SECONDS = Histogram(
    "penstock_kv_transfer_exposed_seconds",
    "Part of a KV transfer that its request waited for: token sampled to KV verified.",
    ["transport"],
    buckets=HOP_BUCKETS,
)
HAND_OVERS = Counter(
    "penstock_hand_overs_total",
    "Streams that were to go on at another decode worker, by how that ended.",
    ["outcome"],
)
HAND_OVER_SECONDS = Histogram(
    "penstock_hand_over_seconds",
    "Pause of a stream that another decode worker has handed over: last token there to its place here.",
    buckets=HOP_BUCKETS,
)
KV_TRANSFERS = Counter(
    "penstock_kv_transfers_total", "KV transfers by how they ended.", ["transport", "outcome"]
)
KV_CELLS_AGAIN = Counter(
    "penstock_kv_transfer_cells_again_total", "Cells asked for or sent once more.", ["why"]
)
KV_CHECKSUM_FAILURES = Counter(
    "penstock_kv_transfer_checksum_failures_total", "KV bodies that failed their checksum."
)
KV_CHUNKS_DISCARDED = Counter(
    "penstock_kv_transfer_chunks_discarded_total", "Chunks that did not land in the pool.", ["why"]
)
PREFIX_CACHE_QUERIES = Counter("penstock_prefix_cache_queries_total", "Prompt blocks looked up.")
PREFIX_CACHE_HITS = Counter("penstock_prefix_cache_hits_total", "Prompt blocks found.")
PREFIX_FETCHES = Counter(
    "penstock_prefix_fetches_total",
    "Prefixes that another prefill worker had: fetched, or why not: not_worth_it, busy, cancelled, expired "
    "or another error.",
    ["outcome"],
)
PREFIX_FETCHED_TOKENS = Counter(
    "penstock_prefix_fetched_tokens_total", "Prompt tokens whose KV came from another prefill worker."
)

WARM_HINTS = Counter(
    "penstock_warm_hints_total",
    "Prompts that could be computed while their passages are found: asked for, or why not: short (or known), "
    "busy, suspect, nobody, failed.",
    ["result"],
)
NEXT_TURNS = Counter(
    "penstock_next_turns_total",
    "Next turns of agents that could be computed while their tools run: asked for, or why not: short (or "
    "known), unknown, pressed, nobody, failed.",
    ["result"],
)
AGENT_CALLS = Counter(
    "penstock_agent_calls_total",
    "Calls that name the session of an agent: its first here, or a next.",
    ["turn"],
)
WARMED_PREFIXES = Counter(
    "penstock_warmed_prefixes_total",
    "Prefixes to compute ahead of their requests, by what became of them: done, skipped, refused; or, before "
    "they were done, replaced, given_up, cancelled, expired, evicted.",
    ["result"],
)
WARMED_TOKENS = Counter("penstock_warmed_tokens_total", "Prompt tokens computed ahead of their requests.")

DRAFT_PROPOSED = Counter(
    "penstock_draft_proposed_total",
    "Draft tokens verified, by who drafted: speculator, lookup or head.",
    ["source"],
)
DRAFT_ACCEPTED = Counter(
    "penstock_draft_accepted_total", "Draft tokens accepted, by who drafted.", ["source"]
)
DRAFT_LATE = Counter("penstock_draft_late_total", "Draft tokens that came too late to be used.")
DRAFT_ROUNDS = Counter(
    "penstock_draft_rounds_total",
    "Steps with drafts of a speculator, by what of it was there for the next one: hit, missed (branches for "
    "other outcomes), late.",
    ["end"],
)
DRAFT_SESSIONS_REFUSED = Counter(
    "penstock_draft_sessions_refused_total", "Draft sessions that the draft model cannot follow."
)
DRAFT_DIVERGENCES = Counter(
    "penstock_draft_divergences_total",
    "Draft sessions that held other tokens than their decode worker, and were opened anew.",
)

STALE_MESSAGES = Counter("penstock_stale_messages_total", "Messages of an earlier epoch, dropped.")
DROPPED_MESSAGES = Counter("penstock_dropped_messages_total", "Messages dropped unanswered.", ["reason"])
PROTOCOL_ERRORS = Counter("penstock_protocol_errors_total", "Bytes that are not a message of ours.", ["code"])
RECONNECTS = Counter("penstock_reconnects_total", "Reconnections to NATS.")
CLOCK_SKEW = Gauge("penstock_clock_skew_seconds", "This clock minus the clock of the origin.", ["origin"])
TASKS = Gauge("penstock_tasks", "Tasks of the process's event loop.")
ACTOR_RESTARTS = Counter(
    "penstock_actor_restarts_total", "Actors and tasks restarted after a crash.", ["name"]
)

MetricFamily = Counter | Gauge | Histogram

COMMON: tuple[MetricFamily, ...] = (
    ACTOR_RESTARTS,
    BUILD_INFO,
    CLOCK_SKEW,
    DROPPED_MESSAGES,
    PROTOCOL_ERRORS,
    RECONNECTS,
    STALE_MESSAGES,
    TASKS,
)
"""The metrics that every service shows."""
_ADAPTERS: tuple[MetricFamily, ...] = (ADAPTERS, ADAPTERS_STALE)
_TRANSFERS: tuple[MetricFamily, ...] = (
    KV_CELLS_AGAIN,
    KV_CHECKSUM_FAILURES,
    KV_CHUNKS_DISCARDED,
    KV_TRANSFERS,
    KV_TRANSFER_BYTES,
    KV_TRANSFER_EXPOSED_SECONDS,
    KV_TRANSFER_SECONDS,
)
_PREFIXES: tuple[MetricFamily, ...] = (
    PREFIX_CACHE_HITS,
    PREFIX_CACHE_QUERIES,
    WARMED_PREFIXES,
    WARMED_TOKENS,
)

FAMILIES: Mapping[str, tuple[MetricFamily, ...]] = {
    "gateway": (
        AGENT_CALLS,
        API_KEYS,
        API_KEYS_STALE,
        API_KEY_REFUSALS,
        BREAKER_STATE,
        CONNECTIONS_CLOSED,
        COALESCED_REQUESTS,
        DEGRADATION_LEVEL,
        DEGRADATION_STEPS,
        DEGRADED_REQUESTS,
        E2E_REQUEST_LATENCY,
        EXPECTED_ANSWERS,
        FINISHED_REQUESTS,
        FLAGGED_REQUESTS,
        FLAGS_IN_FORCE,
        FLAGS_STALE,
        FLAG_CHANGES,
        GENERATION_TOKENS,
        HOP_SECONDS,
        HTTP_CONNECTIONS,
        INTER_TOKEN_LATENCY,
        MODEL_CHOICES,
        MODEL_CHOICE_SECONDS,
        NEXT_TURNS,
        REGION_ROUND_TRIP,
        REGION_ROUTES,
        ROUTING_DECISIONS,
        PROMPT_TOKENS,
        QUEUE_DEPTH,
        REQUESTS,
        REQUESTS_RUNNING,
        REQUESTS_WAITING,
        RESPONSE_CACHE_ASKS,
        RESUMED_STREAMS,
        SHED,
        TENANT_COMPUTE,
        TENANT_KV,
        TENANT_TOKENS,
        TIME_TO_FIRST_TOKEN,
        TIME_TO_USEFUL_ANSWER,
        TRIMMED_REQUESTS,
        TRIMMED_TOKENS,
        TLS_STALE,
        TRACED_REQUESTS,
        VIRTUAL_MODELS_STALE,
        WARM_HINTS,
    ),
    "tokenizer": (QUEUE_DEPTH, SERVED_MODEL),
    "retriever": (
        CORPUS_PASSAGES,
        CORPUS_TROUBLED,
        HOP_SECONDS,
        QUESTION_VECTORS,
        QUEUE_DEPTH,
        RESPONSE_CACHE_BYTES,
        RESPONSE_CACHE_ENTRIES,
        RESPONSE_CACHE_EVICTIONS,
        RESPONSE_CACHE_LOOKUPS,
        RESPONSE_CACHE_STORES,
        SERVED_MODEL,
    ),
    "prefill": (
        ENGINE_THREADS,
        GRAMMAR_TRIALS,
        HOP_SECONDS,
        KV_BLOCKS,
        KV_RESIDENT_BYTES,
        MASK_WAITS,
        PREFIX_FETCHED_TOKENS,
        PREFIX_FETCHES,
        QUEUE_DEPTH,
        SERVED_MODEL,
        *_ADAPTERS,
        *_PREFIXES,
        *_TRANSFERS,
    ),
    "decode": (
        DRAFT_ACCEPTED,
        DRAFT_LATE,
        DRAFT_ROUNDS,
        DRAFT_PROPOSED,
        ENGINE_THREADS,
        GRAMMAR_TRIALS,
        HOP_SECONDS,
        KV_BLOCKS,
        KV_RESIDENT_BYTES,
        HAND_OVERS,
        HAND_OVER_SECONDS,
        MASK_WAITS,
        PREEMPTIONS,
        QUEUE_DEPTH,
        RESTS,
        SERVED_MODEL,
        *_ADAPTERS,
        *_PREFIXES,
        *_TRANSFERS,
    ),
    "speculator": (
        *_ADAPTERS,
        DRAFT_DIVERGENCES,
        DRAFT_SESSIONS_REFUSED,
        ENGINE_THREADS,
        KV_BLOCKS,
        KV_RESIDENT_BYTES,
        SERVED_MODEL,
    ),
    "detokenizer": (QUEUE_DEPTH, SERVED_MODEL),
    "planner": (PLANNED_INSTANCES, PLAN_CHANGES, PLAN_ROUNDS),
}
"""Role → what it shows beside COMMON: what it can count, and nothing that stays at zero for ever."""


class RoleMetrics(Collector):
    """The metrics that a process of `role` shows: its own families, and those of any process (memory, CPU,
    files). A service in the process of one of the role `inside` shows what that one does not: the two count
    in the same families, and nothing is to be there twice."""

    def __init__(self, role: str, *, inside: str = "") -> None:
        self._shown = _names((*COMMON, *FAMILIES[role]))
        self._is_inside = bool(inside)
        if inside:
            self._shown -= _names((*COMMON, *FAMILIES[inside]))

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            of_process = not metric.name.startswith("penstock_") and not self._is_inside
            if metric.name in self._shown or of_process:
                yield metric


def _names(families: Iterable[MetricFamily]) -> set[str]:
    return {described.name for family in families for described in family.describe()}
