"""Choose where a prompt is computed: at a prefill worker, or at the decode worker that goes on with it. Pure.

A prefill worker keeps long prompts away from live streams, for the price of a transfer. A decode worker needs
no transfer and knows the earlier turns of a chat, answers too; but every prompt that it computes makes steps
of its streams longer. So it computes those that cost streams little, and those whose first token would come
too late from a prefill worker, as far as streams can wait for their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.gateway.fleet.known_prefixes import KnownPrefixes, prefill_rate
from services.gateway.fleet.routing import Candidate, Need, RoutingDecision
from services.gateway.fleet.sent_prefixes import LEAST_SHARED_BLOCKS, SentPrefixes
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.messages import Heartbeat

MAX_EXTRA_STEPS = 1.0
"""The most that a prompt may add to the steps of streams beside it, in steps of theirs, in all."""
MAX_LOCAL_S = 0.5
"""The longest time that a decode worker may take for a prompt with nothing beside it: who joins meanwhile
waits that long."""
UNMEASURED_TOKENS = 64
"""The most that a decode worker computes before anybody knows how fast prompts are computed there."""
PLANNED_SHARE = 0.8
"""The share of the time until a first token's deadline that is planned with: heartbeats and rates are a
little behind."""
MOST_LATER = 1.1
"""A call waits at most so many times as long for its first token as it would where it computes all itself."""


@dataclass(frozen=True, slots=True)
class PromptRates:
    """Prompt tokens per second at either worker; 0 while nobody knows."""

    local: float
    remote: float


def prompt_rates(decode: Heartbeat, prefill: Heartbeat) -> PromptRates:
    """Return the measured rates; a worker that has not measured is taken to be as fast as the other.

    Alike workers of one host share its cores, so that the faster of both figures is true for both: they
    differ only by the lengths of the prompts that they have seen.
    """
    local, remote = decode.decode.prompt_tokens_per_s, prefill.worker.tokens_per_s
    alike = decode.host == prefill.host and decode.worker.most_threads == prefill.worker.most_threads
    if alike or not local or not remote:
        local = remote = max(local, remote)
    return PromptRates(local, remote)


def uncached_tokens(view: Candidate, need: Need) -> int:
    """Count the tokens of the prompt that would be computed there: its last one always."""
    return need.tokens - HASH_BLOCK_TOKENS * view.overlap(need.reusable_hashes)


def local_first_token_s(decode: Heartbeat, tokens: int, tokens_per_s: float) -> float:
    """Predict when a decode worker has the first token of a prompt of which it computes `tokens`, at so many
    a second, in what its streams leave of their steps; infinity where they leave nothing, or nobody knows.

    Where no stream runs, as while the KV of those that are there is on its way, a prompt is one long step,
    for which who joins would wait: not longer than MAX_LOCAL_S.
    """
    if not tokens_per_s:
        return math.inf
    compute_s = (decode.worker.queued_tokens + tokens) / tokens_per_s
    step_us, longest_us = decode.decode.step_us, decode.decode.longest_step_us
    if not step_us:
        return compute_s if compute_s <= MAX_LOCAL_S else math.inf
    if step_us >= longest_us:
        return math.inf
    return step_us / 1e6 + compute_s / (1 - step_us / longest_us)


def is_local_better(
    decode: Candidate, prefill: Candidate, need: Need, known: KnownPrefixes, *, most_tokens: int
) -> bool:
    """Whether `decode` should compute the prompt itself, rather than `prefill` for it, of which it has what
    is `known`, or fetches that.

    Yes for at most `most_tokens` whose first token is predicted to be there no later than the other one's KV,
    where that costs streams which run there no more than MAX_EXTRA_STEPS; and for those that have their first
    token in time there alone.
    """
    beat = decode.heartbeat
    tokens = uncached_tokens(decode, need)
    rates = prompt_rates(beat, prefill.heartbeat)
    limit = most_tokens if rates.local else min(most_tokens, UNMEASURED_TOKENS)
    if tokens > limit:
        return False
    if not rates.local:  # nothing to predict by: it is short enough where nobody is disturbed
        return not beat.live
    remote_s = known.first_token_s(prefill, rates.remote)
    planned_s = PLANNED_SHARE * need.left_s
    if remote_s > planned_s >= local_first_token_s(beat, tokens, rates.local):
        return True
    compute_s = (beat.worker.queued_tokens + tokens) / rates.local
    if beat.live and compute_s > MAX_EXTRA_STEPS * beat.decode.step_us / 1e6:
        return False
    if compute_s > MAX_LOCAL_S:
        return False
    wait_s = beat.decode.step_us / 1e6 if beat.live else 0.0  # for the step that runs
    return wait_s + compute_s <= remote_s + beat.decode.transfer_us / 1e6


def on_shorter_path(
    route: RoutingDecision,
    fleet: Mapping[str, Sequence[Candidate]],
    need: Need,
    known: KnownPrefixes,
    *,
    most_tokens: int,
) -> RoutingDecision:
    """`route`, on instances of `fleet`, without its prefill worker where `is_local_better`; never with
    `most_tokens` 0."""
    decode, prefill = (
        next(view for view in fleet[role] if view.heartbeat.instance == route.instance_of(role))
        for role in ("decode", "prefill")
    )
    local = most_tokens > 0 and is_local_better(decode, prefill, need, known, most_tokens=most_tokens)
    return replace(route, prefill="") if local else route


def beside_shared_prefix(
    route: RoutingDecision,
    fleet: Mapping[str, Sequence[Candidate]],
    need: Need,
    known: KnownPrefixes,
    sent: SentPrefixes,
) -> RoutingDecision:
    """`route`, on instances of `fleet`, at the prefill worker that computes most of the prompt for others
    already, where its first token comes about as soon there."""
    prefills = fleet["prefill"]
    if len(prefills) < 2 or need.scored:
        return route
    chosen = next(view for view in prefills if view.heartbeat.instance == route.prefill)
    latest_s = MOST_LATER * known.first_token_s(chosen)
    best, most = route, LEAST_SHARED_BLOCKS + known.at(chosen).blocks - 1
    for view in prefills:
        name = view.heartbeat.instance
        blocks = sent.shared_blocks(name, need.block_hashes)
        alike = view.heartbeat.worker.layout == chosen.heartbeat.worker.layout
        if alike and blocks > most and _first_token_s(view, need, blocks) <= latest_s:
            best, most = replace(route, prefill=name), blocks
    return best


def _first_token_s(view: Candidate, need: Need, known_blocks: int) -> float:
    """Return the time for what is queued, which has what others compute, and for the rest of the prompt."""
    worker = view.heartbeat.worker
    uncached = need.tokens - known_blocks * HASH_BLOCK_TOKENS
    return (worker.queued_tokens + uncached) / prefill_rate(worker)
