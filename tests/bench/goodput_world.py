"""Two workers of one model on a virtual clock, without the fleet around them: what targets make of load.

Schedulers, cost models, the prefill queue, admission and the choice of the path are the product's own; the
steps' times, the network and what a heartbeat says are made up. That takes a hundredth of what the simulated
fleet does, which plays the same requests (`tests/simulation/slo_load.py`) to hold this world to it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.gateway.admission.admission import check_ttft
from services.gateway.fleet.known_prefixes import KnownPrefixes
from services.gateway.fleet.prompt_path import is_local_better, local_first_token_s
from services.gateway.fleet.routing import Need
from services.prefill.driver import PROMPTS_AT_ONCE
from services.prefill.due_tokens import due_tokens
from services.prefill.queue import DeadlineQueue, Entry
from shared.blocks.block_hash import BlockHasher
from shared.deadline import Deadline
from shared.engine.cost_model import CostModel
from shared.engine.loading.layer_groups import LayerGroups
from shared.engine.memory.allocation import Allocation
from shared.engine.memory.block_manager import BlockManager
from shared.engine.memory.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler, SchedulerOutput
from shared.engine.scheduling.step_limits import AWAITED_SHARE
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from shared.errors import PenstockError
from shared.messages import DecodeReport, Heartbeat, WorkerReport
from shared.sampling.parameters import SamplingParams
from shared.worker.rate import MEASURED_STEP_TOKENS, MeanTime, TokenRate
from tests.simulation.slo_asks import Ask, Heard
from tests.simulation.step_profile import StepProfile

CHUNK_TOKENS = 512
BLOCKS = 1 << 14
HOP_S = 0.001
"""The way of a message, and of a token to its client."""
TRANSFER_S = 0.004
WARM_PROMPTS = (16, 600, 40, 300, 8, 120, 24, 200)


@dataclass(frozen=True, slots=True)
class Policy:
    """Whether the `steps` of a decode worker, the `path` of a prompt and what is thought to be `ahead` of it
    follow deadlines, or are as for requests that have none."""

    name: str
    steps: bool = True
    path: bool = True
    ahead: bool = True
    max_step_ratio: float = 1.5
    itl_target_s: float = 0.04
    most_local_tokens: int = 512


@dataclass(slots=True)
class Call:
    heard: Heard
    sequence: LiveSequence
    first_due_s: float


@dataclass(frozen=True, slots=True)
class View:
    heartbeat: Heartbeat

    def overlap(self, _: Sequence[bytes]) -> int:
        return 0


class WorldClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(1e9 * self.now_s)

    def unix_us(self) -> int:
        return round(1e6 * self.now_s)

    def steady_us(self) -> int:
        return round(1e6 * self.now_s)

    def now_us(self) -> int:
        return round(1e6 * self.now_s)


class Worker:
    """A scheduler whose steps take what a profile says. `drawn` is told each token, when it is there."""

    def __init__(self, world: World, profile: StepProfile, policy: Policy, *, decodes: bool) -> None:
        pool = BlockPool(BLOCKS)
        allocation = Allocation(pool, LayerGroups.of([None]).windows, CHUNK_TOKENS)
        self.cost = CostModel(CHUNK_TOKENS)
        self.scheduler = Scheduler(
            BlockManager(pool, lambda _source, _target: None, None, allocation),
            self.cost,
            max_batch_tokens=CHUNK_TOKENS,
            max_sequences=64,
            max_step_ratio=policy.max_step_ratio if decodes else 0.0,
            itl_target_us=1e6 * policy.itl_target_s if decodes else 0.0,
            now_us=world.clock.now_us,
        )
        self.rate = TokenRate(MEASURED_STEP_TOKENS)
        self.plain_step = MeanTime()
        self.drawn: Callable[[str], None] = lambda _key: None
        self.between_steps: Callable[[], None] = lambda: None
        self._allocation, self._world, self._profile = allocation, world, profile
        self._stepping = False

    def add(self, sequence: LiveSequence, deadline_us: int, *, is_stream: bool = False) -> None:
        self._allocation.allocate_blocks(sequence, len(sequence.tokens) + 1, 0)
        if is_stream:
            sequence.num_computed, sequence.prefilling = len(sequence.tokens) - 1, False
        self.scheduler.add_sequence(sequence, 1, deadline_us)
        self.wake()

    def drop(self, key: str) -> None:
        self.scheduler.remove_sequence(key)

    def wake(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._world.call_in(0.0, self._begin)

    def _begin(self) -> None:
        self.between_steps()
        if not self.scheduler.has_work:
            self._stepping = False
            return
        output = self.scheduler.schedule()
        us = self._profile.us([(work.start, work.num_tokens) for work in output.work])
        self._world.call_in(us / 1e6, lambda: self._end(output, us))

    def _end(self, output: SchedulerOutput, us: float) -> None:
        self.cost.observe(output.features, us)
        prompt = sum(work.num_tokens for work in output.work if work.is_prefill)
        streams = sum(not work.is_prefill for work in output.work)
        if not streams:
            self.rate.observe(prompt, round(us))
        if not prompt:
            self.plain_step.observe(round(us))
        for work in output.work:
            sequence = work.sequence
            if self.scheduler.sequences.get(sequence.key) is not sequence:
                continue  # it has left meanwhile
            if work.num_draws:
                sequence.tokens.append(1)
                sequence.prefilling = False
            self.scheduler.advance(work, work.num_tokens)
            if work.num_draws:
                self.drawn(sequence.key)
        self._begin()


class World:
    """One prefill and one decode worker, and a gateway that knows how they are."""

    def __init__(self, profile: StepProfile, policy: Policy) -> None:
        self.clock = WorldClock()
        self.policy = policy
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.prefill = Worker(self, profile, policy, decodes=False)
        self.decode = Worker(self, profile, policy, decodes=True)
        self.queue = DeadlineQueue(
            max_entries=256,
            max_tokens=32768,
            counters=self.prefill.scheduler.counters,
            clock=self.clock,
        )
        self.calls: dict[str, Call] = {}
        self.moved = 0
        """The prompts that decode has computed."""
        self.prefill.drawn = self._drawn_at_prefill
        self.prefill.between_steps = self._let_in
        self.decode.drawn = self._drawn_at_decode
        self._hasher = BlockHasher()

    def call_in(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.clock.now_s + delay_s, next(self._order), callback))

    def run(self) -> None:
        while self._events:
            self.clock.now_s, _, callback = heapq.heappop(self._events)
            callback()

    def play(self, asks: Sequence[Ask]) -> list[Heard]:
        """Return what came of these requests, on workers that know what steps cost."""
        for worker in (self.prefill, self.decode):
            for number, length in enumerate(WARM_PROMPTS * 3):
                sequence = self._sequence(f"warm-{number}", Ask(0.0, length, 2, asks[0].target))
                self.calls[sequence.key] = Call(Heard(asks[0], 0.0), sequence, math.inf)
                worker.drawn = worker.drop
                worker.add(sequence, 1 << 40)
                self.run()
        self.prefill.drawn, self.decode.drawn = self._drawn_at_prefill, self._drawn_at_decode
        began_s, heard = self.clock.now_s + 1.0, []
        for number, ask in enumerate(asks):
            call = Heard(ask, began_s + ask.at_s)
            heard.append(call)
            at_s = began_s + ask.at_s - self.clock.now_s + HOP_S
            self.call_in(at_s, lambda call=call, number=number: self._arrive(f"call-{number}", call))  # type: ignore[misc]
        self.run()
        return heard

    # ---- the gateway --------------------------------------------------------------------------------

    def _arrive(self, key: str, heard: Heard) -> None:
        ask = heard.ask
        ttft_s = ask.target.ttft_s or 60.0
        due_s = heard.began_s + ttft_s
        sequence = self._sequence(key, ask)
        call = self.calls[key] = Call(heard, sequence, due_s)
        prefill, decode = View(self._prefill_beat()), View(self._decode_beat())
        left_s = due_s - self.clock.now_s
        local_s = math.inf
        if self.policy.path and ask.prompt_tokens <= self.policy.most_local_tokens:
            beat = decode.heartbeat
            local_s = local_first_token_s(beat, ask.prompt_tokens, beat.decode.prompt_tokens_per_s)
        try:
            check_ttft([prefill], left_s, ask.prompt_tokens, local_s=local_s, in_turn=self.policy.ahead)
        except PenstockError:
            heard.outcome = "shed"
            return
        need_s = left_s if self.policy.path else math.inf
        need = Need((), ask.prompt_tokens, ask.output_tokens, left_s=need_s)
        known = KnownPrefixes([prefill], need)
        most = self.policy.most_local_tokens
        local = is_local_better(decode, prefill, need, known, most_tokens=most)
        self.call_in(left_s, lambda: self._expire_first(call))
        if local:
            self.moved += 1
            sequence.due_us = 1e6 * due_s if self.policy.steps else math.inf
            self.call_in(HOP_S, lambda: self.decode.add(sequence, round(1e6 * (due_s + 240))))
        else:
            entry = Entry(key, ask.prompt_tokens, Deadline(due_s))
            try:
                self.queue.push(entry, self.prefill.rate.tokens_per_s)
            except PenstockError:
                heard.outcome = "shed"
                return
            self.prefill.wake()
            if self.policy.steps:  # decode knows who comes
                room = self._sequence(key, ask)
                room.status = SequenceStatus.RESERVED
                self.decode.scheduler.hold_sequence(room)

    def _prefill_beat(self) -> Heartbeat:
        queued = self.queue.queued_tokens + sum(
            each.num_uncomputed for each in self.prefill.scheduler.sequences.values() if each.prefilling
        )
        rate, held = self.prefill.rate, self.prefill.scheduler.sequences
        ahead = [(item.deadline.at_s - self.clock.now_s, item.num_tokens) for _, item in self.queue._ordered]
        ahead += [(each.deadline_us / 1e6 - self.clock.now_s, each.num_uncomputed) for each in held.values()]
        running = min(CHUNK_TOKENS, sum(each.num_uncomputed for each in held.values()))
        report = WorkerReport(
            queued_tokens=queued,
            due_tokens=due_tokens(ahead, running) if self.policy.ahead else (),
            tokens_per_s=rate.tokens_per_s,
            best_tokens_per_s=rate.best_tokens_per_s,
        )
        return Heartbeat("prefill", "prefill-0", 1, "ready", host="a", worker=report)

    def _decode_beat(self) -> Heartbeat:
        active = SequenceStatus.ACTIVE
        held = [each for each in self.decode.scheduler.sequences.values() if each.status is active]
        queued = sum(each.num_uncomputed for each in held if each.prefilling)
        plain_us = self.decode.plain_step.seconds * 1e6 if held else 0.0
        waits_s = min((min(each.inter_token_us / 1e6, 1e9) for each in held), default=1e9)
        silent = any(each.inter_token_us == math.inf for each in held)
        waits_s = min(waits_s, self.policy.itl_target_s) if silent else waits_s
        longest_us = max(self.policy.max_step_ratio * plain_us, AWAITED_SHARE * 1e6 * waits_s)
        decode = DecodeReport(
            round(plain_us),
            self.decode.rate.tokens_per_s,
            round(1e6 * TRANSFER_S),
            longest_step_us=round(longest_us) if held else 0,
        )
        report = WorkerReport(queued_tokens=queued, tokens_per_s=self.decode.rate.tokens_per_s)
        return Heartbeat(
            "decode", "decode-0", 1, "ready", host="b", live=len(held), decode=decode, worker=report
        )

    def _sequence(self, key: str, ask: Ask) -> LiveSequence:
        itl_s = ask.target.itl_s
        return LiveSequence(
            key,
            next(self._order),
            [1] * ask.prompt_tokens,
            ask.prompt_tokens,
            SamplingParams(),
            SequenceStatus.ACTIVE,
            HashChain([], None, self._hasher),
            end_len=ask.prompt_tokens + ask.output_tokens,
            inter_token_us=1e6 * itl_s if itl_s else math.inf,
            num_scored=ask.prompt_tokens,
        )

    # ---- the workers --------------------------------------------------------------------------------

    def _let_in(self) -> None:
        while len(self.queue):
            held = self.prefill.scheduler.sequences
            computing = sum(each.num_uncomputed for each in held.values())
            if CHUNK_TOKENS - computing <= 0 and len(held) >= PROMPTS_AT_ONCE:
                return
            entry = self.queue.take_entry().entry
            if entry is None:
                return
            self.prefill.add(self.calls[entry.key].sequence, round(1e6 * entry.deadline.at_s))

    def _drawn_at_prefill(self, key: str) -> None:
        call = self.calls[key]
        self.prefill.drop(key)
        self._tell(call)
        old = call.sequence
        sequence = call.sequence = self._sequence(key, call.heard.ask)
        sequence.tokens = list(old.tokens)
        self.call_in(TRANSFER_S, lambda: self._attach(call))

    def _attach(self, call: Call) -> None:
        sequence = call.sequence
        if call.heard.outcome or len(sequence.tokens) >= sequence.end_len:
            call.heard.outcome = "finished"
            return
        self.decode.add(sequence, round(1e6 * (call.first_due_s + 240)), is_stream=True)

    def _drawn_at_decode(self, key: str) -> None:
        call = self.calls[key]
        self._tell(call)
        if len(call.sequence.tokens) >= call.sequence.end_len:
            call.heard.outcome = "finished"
            self.decode.drop(key)

    def _tell(self, call: Call) -> None:
        heard, target = call.heard, call.heard.ask.target
        heard.times_s.append(self.clock.now_s + HOP_S)
        if target.itl_s and len(heard.times_s) > 1 and heard.gaps_s[-1] > target.itl_s + 0.025:
            self._end(call)

    def _expire_first(self, call: Call) -> None:
        if not call.heard.times_s:
            self._end(call)

    def _end(self, call: Call) -> None:
        call.heard.outcome = "expired"
        key = call.sequence.key
        self.queue.remove(key)
        self.prefill.drop(key)
        self.decode.drop(key)
