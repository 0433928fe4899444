"""Tell in seconds what a route costs, with its hops between regions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.gateway.fleet.best_route import BestRoute
from services.gateway.fleet.known_prefixes import DEFAULT_PREFILL_TOKENS_PER_S
from services.gateway.fleet.routing import (
    Candidate,
    Need,
    has_room,
)
from services.gateway.regions.ways import Ways
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.roles import TARGET_ROLES

FULL_S = 1000.0
"""A decode worker without room costs so much: more than any way to one that has room."""

CandidatesByRole = Mapping[str, Sequence[Candidate]]


@dataclass(frozen=True, slots=True)
class RouteCost:
    """`waits_s`: until a worker has time for the prompt; `first_token_s`: until the first token is here, that
    included; `second_token_s`: what the second one waits for beyond it, as for KV."""

    waits_s: float
    first_token_s: float
    second_token_s: float

    @property
    def seconds(self) -> float:
        return self.first_token_s + self.second_token_s


def route_cost(
    best: BestRoute, fleet: CandidatesByRole, need: Need, ways: Ways, rates: KindRates
) -> RouteCost:
    """Return the cost of a route on instances of `fleet` for the gateway of `ways`."""
    route, worker, rate = best.decision, best.prompt_worker, rates.of(best.prompt_worker)
    decode = view_of(fleet, "decode", route.decode)
    text = view_of(fleet, "detokenizer", route.detokenizer)
    computed_at, decoded_at, text_at = (view.heartbeat.region for view in (worker, decode, text))
    hops_s = ways.way_s(ways.own, computed_at) + ways.way_s(computed_at, text_at)
    hops_s += ways.way_s(text_at, ways.own)
    room_s = 0.0 if has_room(decode, need) else FULL_S
    queued_s = max(worker.heartbeat.worker.queued_tokens / rate, best.prefix.ready_s)
    waits_s = hops_s + room_s + queued_s
    sent_tokens = max(0, need.tokens - decode.overlap(need.block_hashes) * HASH_BLOCK_TOKENS)
    kv_s = ways.kv_s(computed_at, decoded_at, kv_bytes(worker, sent_tokens))
    return RouteCost(
        waits_s,
        waits_s + (need.tokens - best.prefix.tokens) / rate,
        kv_s + ways.way_s(decoded_at, text_at),
    )


class KindRates:
    """Rates of prompts by the kind of worker, in tokens per second, as far as they tell workers apart.

    Workers of one backend with as many threads are taken to be alike, whatever their roles: their rates
    differ by the prompts that they have had lately, and the first one of a new worker is slow. One kind that
    nobody has measured is taken to be as fast as the fastest: it is given a chance.
    """

    def __init__(self, fleet: CandidatesByRole) -> None:
        self._rates: dict[tuple[str, int], float] = {}
        for role in TARGET_ROLES:
            for view in fleet.get(role, ()):
                kind = _kind(view)
                self._rates[kind] = max(self._rates.get(kind, 0.0), _measured_rate(view))
        self._fastest = max(self._rates.values(), default=0.0) or DEFAULT_PREFILL_TOKENS_PER_S

    def of(self, worker: Candidate) -> float:
        return self._rates.get(_kind(worker)) or self._fastest


def _kind(view: Candidate) -> tuple[str, int]:
    worker = view.heartbeat.worker
    return worker.backend, worker.most_threads


def _measured_rate(view: Candidate) -> float:
    """Return the best that a prefill worker has measured, or the latest of a decode worker; 0 for none."""
    beat = view.heartbeat
    return beat.worker.best_tokens_per_s if beat.role == "prefill" else beat.decode.prompt_tokens_per_s


def kv_bytes(worker: Candidate, tokens: int) -> int:
    """Return the bytes of the KV of so many tokens; 0 where the worker does not say what a block takes."""
    report = worker.heartbeat.worker
    blocks = -(-tokens // HASH_BLOCK_TOKENS)
    return report.kv_groups.read_blocks(blocks, tokens) * report.kv_block_bytes


def is_kv_sooner(sender: Candidate, receiver: Candidate, tokens: int, ways: Ways, rates: KindRates) -> bool:
    """Whether `receiver` has the KV of so many tokens sooner from `sender` than if it computes them again.

    In one region always, as far as this goes: workers know that better. Between two regions not where
    nobody knows how much KV it is.
    """
    start, end = sender.heartbeat.region, receiver.heartbeat.region
    if start == end:
        return True
    sent_bytes = kv_bytes(sender, tokens)
    return sent_bytes > 0 and ways.kv_s(start, end, sent_bytes) < tokens / rates.of(receiver)


def view_of(fleet: CandidatesByRole, role: str, instance: str) -> Candidate:
    return next(view for view in fleet[role] if view.heartbeat.instance == instance)
