"""Heartbeats of every instance, and questions that anybody may ask it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.fairness.share import TenantShare
from shared.messages.adapters import AdapterReport
from shared.sampling.defaults import SamplingDefault

MAX_DRAIN_S = 3600
"""The longest time that an instance is asked to give what it has, as it drains."""
MAX_REPORTED_TENANTS = 16
"""The most tenants whose parts of a queue a heartbeat tells."""
DUE_EDGES_S = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The times until a first token's deadline for which a heartbeat tells what is computed before it."""


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """A gateway keeps its requests away from this life of an instance. `state`: open or half-open."""

    role: str
    instance: str
    incarnation: int
    state: str


@dataclass(frozen=True, slots=True)
class ModelLevel:
    """A gateway's level (`shared.degradation.DegradationLevel`) for the workers of one model."""

    model: str
    weights_digest: str
    level: int


@dataclass(frozen=True, slots=True)
class RegionReport:
    """A region as a gateway sees it: how far away it is, there and back, 0 for its own and while nobody has
    measured it, and how many routes of this life of the gateway were taken there."""

    region: str
    round_trip_us: int
    routes: int


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """The report of a gateway. `grpc` and `http`: where it takes requests, HOST:PORT, "" where it does not.

    `degradation` is the highest of its levels, `model_levels` those of models that it leaves something out
    of; `breakers` are the instances that it avoids, a few at most. `flags` is the digest of the changes of
    settings that it knows, "" where there are none. `wanted_models` are those that requests wait for while
    they have no worker, some at most. `regions` are those that it routes to, its own first; none where it is
    told no region.
    """

    grpc: str = ""
    http: str = ""
    degradation: int = 0
    breakers: tuple[BreakerReport, ...] = ()
    model_levels: tuple[ModelLevel, ...] = ()
    flags: str = ""
    wanted_models: tuple[str, ...] = ()
    regions: tuple[RegionReport, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class CorpusReport:
    """The report of a retriever on a corpus. `generation` numbers the index that is searched, of `passages`;
    both are 0 where there is none. `trouble` says why there is none, or none newer; "" = nothing is wrong."""

    name: str
    passages: int
    generation: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """The report of a tokenizer. `vocab_tokens`: how many ids its model has, 0 unknown; `most_token_bytes`:
    of a text one token stands for so many at most, 0 unknown."""

    chat_template: bool = False
    vocab_tokens: int = 0
    most_token_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RetrieverReport:
    """The report of a retriever. `reranker`: its name, "" without one; `corpora`: what is searched."""

    reranker: str = ""
    corpora: tuple[CorpusReport, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """The tokens that a prefill worker has to compute for a tenant, which is named by its digest; the weight
    is that of its latest prompt."""

    share: TenantShare
    tokens: int


@dataclass(frozen=True, slots=True)
class TenantJobs:
    """The jobs that a decode worker has of a tenant, which is named by its digest."""

    share: TenantShare
    jobs: int


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The time that a prefill worker needs for prefixes of prompts that others have: they begin to come after
    `answer_us`, `tokens_per_s` of them, at most `most_tokens` at a time. All is 0 where it would begin no
    fetch."""

    answer_us: int = 0
    tokens_per_s: float = 0.0
    most_tokens: int = 0


NO_FETCHES = FetchReport()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The report of a prefill worker, a decode worker or a speculator about its engine.

    `layout` is the fingerprint of its KV: KV passes only between workers where these are equal, and block
    hashes cover it. `kv_groups` says how many of its blocks 16 tokens take, and behind which window they
    come back. `tokens_per_s` is how fast it was lately, 0 unmeasured, and `best_tokens_per_s` the highest
    that this was in its life. `threads` is how many a step would have now, `most_threads` how many with
    nobody beside it. `backend` names the arithmetic. `adapters` are those over its model that it was told of.
    `tenant_queues` are parts of `queued_tokens`, those of the MAX_REPORTED_TENANTS with most; none where it
    has prompts of one tenant alone.
    `drafts_for` are the models that a speculator drafts for, by the names that clients ask for; none is all.
    `added` and `removed` are block hashes since the last heartbeat; `prefix_event_id` counts them, so that a
    gap is seen. `fetch` is what prefixes from other workers cost this one, `kv_block_bytes` what one of its
    blocks takes, 0 where it does not say, and `kv_blocks_resident` how many of them take memory, -1 likewise.
    `due_tokens`: how many of `queued_tokens` are computed before a prompt whose first token is due in each of
    DUE_EDGES_S, as those of earlier deadlines go first; none where that is not so.
    """

    layout: str = ""
    kv_blocks: int = 0
    kv_blocks_free: int = 0
    kv_groups: KvGroups = ONE_GROUP
    queued_tokens: int = 0
    tenant_queues: tuple[TenantQueue, ...] = ()
    tokens_per_s: float = 0.0
    best_tokens_per_s: float = 0.0
    threads: int = 0
    most_threads: int = 0
    backend: str = ""
    adapters: tuple[AdapterReport, ...] = ()
    drafts_for: tuple[str, ...] = ()
    prefix_event_id: int = 0
    added: bytes = b""
    removed: bytes = b""
    fetch: FetchReport = NO_FETCHES
    kv_block_bytes: int = 0
    kv_blocks_resident: int = -1
    due_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """The report of a decode worker beside its `WorkerReport`; 0 is not known yet.

    `step_us` is what a step of its streams takes with no prompt in it, `prompt_tokens_per_s` how fast it
    computes prompts (its `queued_tokens` are theirs), `transfer_us` how long KV from prefill makes a request
    wait. `default_sampling`: what a request takes that does not say, where that is not built in. `guests`:
    how many it takes beyond its capacity, of tenants that have less than another; `tenants`: whose its jobs
    are, of the MAX_REPORTED_TENANTS with most. `longest_step_us`: how long steps may be for its streams where
    prompts beside them need it.
    """

    step_us: int = 0
    prompt_tokens_per_s: float = 0.0
    transfer_us: int = 0
    default_sampling: tuple[SamplingDefault, ...] = ()
    guests: int = 0
    tenants: tuple[TenantJobs, ...] = ()
    longest_step_us: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Every instance, to `fleet.<role>.<instance>`, on change and again within `next_ms`: 250 while it works.

    Who it is: `incarnation` is the unix µs of the process's start; a new one means that all its state is
    gone. `state` is loading | ready | stalled | draining | stopped, `metrics` the HOST:PORT of its metrics.
    `region` and `zone` are where it is, "" where nobody has said so.
    `sent_unix_us` is its time of day, `sent_steady_us` its steady clock (`shared.deadline`).

    What it serves: `model` is the name that clients ask for; what it is say `weights_digest` (of a worker's
    checkpoint) and `tokenizer_digest` (of a worker, tokenizer or detokenizer). `context_tokens` is the
    longest sequence that it takes, 0 unknown.

    Whether it moves: `steps` counts what the engine has finished in this life (0 without an engine),
    `stalled_ms` is how long something here has had work without moving; beyond the watchdog's limit the state
    is stalled.

    Whether it hears: `reconnects` counts how often it had lost its connection and has it again. What was sent
    to it meanwhile is lost.

    Then a report of its role; the others stay empty.
    """

    role: str
    instance: str
    incarnation: int
    state: str
    sent_unix_us: int = 0
    host: str = ""
    pid: int = 0
    metrics: str = ""
    next_ms: int = 250
    model: str = ""
    weights_digest: str = ""
    tokenizer_digest: str = ""
    context_tokens: int = 0
    steps: int = 0
    stalled_ms: int = 0
    reconnects: int = 0
    sent_steady_us: int = 0
    capacity: int = 0
    live: int = 0
    queued: int = 0
    gateway: GatewayReport = GatewayReport()
    tokenizer: TokenizerReport = TokenizerReport()
    retriever: RetrieverReport = RetrieverReport()
    worker: WorkerReport = WorkerReport()
    decode: DecodeReport = DecodeReport()
    region: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A listener to heartbeats → instances of `roles`, or one that rests: send yours now."""

    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """gateway → a worker (ask): a page of the block hashes you have, from bucket `bucket` on; 0 to begin."""

    bucket: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`hashes` are those of the asked bucket and of all before `next_bucket` (0: of all that follow it) after
    the events up to `prefix_event_id`. Pages of one snapshot may be of different event ids: together with the
    events since the first page they are the whole prefix cache.
    """

    prefix_event_id: int
    hashes: bytes
    next_bucket: int = 0


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """any → an instance (ask): what do you hold, per request?"""


@dataclass(frozen=True, slots=True)
class Held:
    """`count` of a `kind`: kv_blocks, session, decoder, lease, draft, transfer, queued, warming, parked (a
    stream that waits for another gateway), or slot (of a tenant, its phase, which no live request has)."""

    request_id: str
    kind: str
    count: int
    phase: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    role: str
    instance: str
    incarnation: int
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new work, finish what is there, then exit. What is there may take `patience_s`, up to
    MAX_DRAIN_S, where that is longer than the instance was told to give it."""

    patience_s: int = 0
