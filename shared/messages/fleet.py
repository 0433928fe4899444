"""What every instance says of itself, and what anybody may ask it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.messages.adapters import AdapterReport
from shared.messages.corpora import CorpusReport
from shared.sampling.defaults import SamplingDefault


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """A gateway keeps its requests away from this life of an instance. `state`: open or half-open."""

    role: str
    instance: str
    incarnation: int
    state: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Every instance, to `fleet.<role>.<instance>`, on change and again within `next_ms`: 250 while it works.

    `incarnation` is the unix µs of the process's start: a new one means that all its state is gone.
    `state` is loading | ready | stalled | draining | stopped. Progress: `steps` counts what the engine has
    finished in this life (0 without an engine), `stalled_ms` is how long something here has had work
    without moving (0 while everything moves); beyond the watchdog's limit the state is stalled. `layout` is
    the fingerprint of a worker's KV: KV passes only between workers where these are equal, and block hashes
    cover it. `model` is the name that clients ask for; what it is say `weights_digest` (of a worker's
    checkpoint) and `tokenizer_digest` (of a worker, tokenizer or detokenizer). Prefix events: `added` and
    `removed` block hashes since the last heartbeat; `prefix_event_id` counts them, so that a gap is seen.
    `degradation` is a gateway's level
    (`shared.degradation.DegradationLevel`). `tokens_per_s` is how fast a worker was lately, 0 unmeasured, and
    `best_tokens_per_s` the highest that this was in its life. `breakers`: of a gateway, whom it avoids; a few
    at most. `context_tokens` is the longest sequence that its model takes here, 0 unknown; `chat_template`
    whether a tokenizer's model has one, `vocab_tokens` how many ids that model has, 0 unknown. `grpc` and
    `http` are where a gateway takes requests, HOST:PORT, "" where it does not. `threads` is how many an
    engine's step would have now, `most_threads` how many with nobody beside it. Of a decode worker, each 0
    while it is not known: `step_us` is what a step of its streams takes with no prompt in it,
    `prompt_tokens_per_s` how fast it computes prompts (its `queued_tokens` are theirs), `transfer_us` how
    long KV from prefill makes a request wait. `kv_groups` says how many of its blocks 16 tokens
    take, and behind which window they come back. `adapters`: of a worker, those over its model that it was
    told of, by name. `reranker`: the name of a retriever's, "" where it has none. `corpora`: what it
    searches. `default_sampling`: of a decode worker, what a request takes that does not say, where that is
    not built in. `backend`: which arithmetic computes a worker's model.
    """

    role: str
    instance: str
    incarnation: int
    state: str
    sent_unix_us: int
    host: str
    pid: int
    metrics: str
    model: str
    layout: str
    capacity: int
    live: int
    queued: int
    queued_tokens: int
    kv_blocks: int
    kv_blocks_free: int
    tokens_per_s: float
    prefix_event_id: int
    added: bytes
    removed: bytes
    steps: int = 0
    stalled_ms: int = 0
    degradation: int = 0
    best_tokens_per_s: float = 0.0
    breakers: tuple[BreakerReport, ...] = ()
    weights_digest: str = ""
    tokenizer_digest: str = ""
    context_tokens: int = 0
    chat_template: bool = False
    vocab_tokens: int = 0
    grpc: str = ""
    http: str = ""
    threads: int = 0
    most_threads: int = 0
    next_ms: int = 250
    step_us: int = 0
    prompt_tokens_per_s: float = 0.0
    transfer_us: int = 0
    kv_groups: KvGroups = ONE_GROUP
    adapters: tuple[AdapterReport, ...] = ()
    reranker: str = ""
    corpora: tuple[CorpusReport, ...] = ()
    default_sampling: tuple[SamplingDefault, ...] = ()
    backend: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Who listens to heartbeats → instances of `roles`, or one that rests: send yours now."""

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
    """`kind`: kv_blocks, session, decoder, lease, draft, transfer, queued, warming; `count` of them."""

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
    """Take no new work, finish what is there, then exit."""
