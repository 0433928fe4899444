"""A fleet of prefill and decode workers that come and go, as a discrete-event simulation of a trace.

What a worker does is the profile of `penstock capacity`: prompts one after another, streams sharing a step
whose time is by how many there are. A request waits for a slot at the decode worker with fewest streams, then
in the line of the prefill worker that is free first. A decode worker that goes hands its streams over. Events
are arrivals, ends and changes of who is there: days of a trace take seconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from services.cli.capacity.profile import DeploymentProfile

Arrivals = Sequence[tuple[float, int, int]]
"""(at_s, prompt tokens, answer tokens), by time."""


@dataclass(slots=True)
class PlayedRequest:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    first_s: float = 0.0
    end_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.at_s

    @property
    def tpot_s(self) -> float:
        """The mean time of a token behind the first, 0 where there is none."""
        return (self.end_s - self.first_s) / max(1, self.output_tokens - 1)


@dataclass(slots=True)
class PlayedPrefill:
    """`free_s` is when its line is done."""

    asked_s: float
    ready_s: float
    free_s: float = 0.0
    starts: deque[float] = field(default_factory=deque)
    """The times at which those who wait begin."""


@dataclass(slots=True)
class PlayedDecode:
    """Streams share steps: `tokens` is how many one that was there from the start has by `moved_s`."""

    asked_s: float
    ready_s: float
    tokens: float = 0.0
    moved_s: float = 0.0
    streams: list[tuple[float, int, PlayedRequest]] = field(default_factory=list)
    """A heap: the count of `tokens` at which each ends."""
    reserved: int = 0
    """Streams whose prompt is computed yet."""
    version: int = 0


class PlayedFleet:
    """Plays arrivals; whoever scales calls `scale` at its own times by `at`."""

    def __init__(
        self, profile: DeploymentProfile, arrivals: Arrivals, cold_s: float, cached_share: float = 0.0
    ) -> None:
        self.profile = profile
        self.cached_share = cached_share
        mean = sum(each[1] + each[2] for each in arrivals) / max(1, len(arrivals))
        self.slots = profile.decode.slots_for(mean)
        places = np.arange(1, 4 * self.slots + 1, dtype=np.float64)
        self._step_s: list[float] = [0.0, *np.asarray(profile.decode.step_ms.step_s(places)).tolist()]
        self.cold_s = cold_s
        self.now_s = 0.0
        self.requests = [PlayedRequest(*each) for each in arrivals]
        self.worker_s = {"prefill": 0.0, "decode": 0.0}
        """Time of instances that have gone, from when they were asked for to their end."""
        self.prefills: list[PlayedPrefill] = []
        self.decodes: list[PlayedDecode] = []
        self.waiting: deque[PlayedRequest] = deque()
        self._next = 0
        self._order = count()
        self._events: list[tuple[float, int, str, object, int]] = []

    # ---- what is seen -------------------------------------------------------------------------

    @property
    def arrived(self) -> int:
        """The requests that have come up to now."""
        return self._next

    def counts(self) -> dict[str, int]:
        """Return how many there are, those that start included."""
        return {"prefill": len(self.prefills), "decode": len(self.decodes)}

    def prefill_queue(self) -> int:
        """Prompts that wait at workers, as `penstock_queue_depth` has them."""
        for worker in self.prefills:
            while worker.starts and worker.starts[0] <= self.now_s:
                worker.starts.popleft()
        return sum(len(worker.starts) for worker in self.prefills)

    def kv_share(self) -> float:
        """The part of the KV blocks of ready decode workers that streams hold, their answers half done."""
        ready = [worker for worker in self.decodes if worker.ready_s <= self.now_s]
        held = 0
        for worker in ready:
            held += sum(
                -(-(each.prompt_tokens + each.output_tokens // 2) // self.profile.decode.block_tokens)
                for _, _, each in worker.streams
            )
        return held / (self.profile.decode.kv_blocks * len(ready)) if ready else 1.0

    def live(self) -> int:
        return sum(len(worker.streams) + worker.reserved for worker in self.decodes)

    def hours(self) -> dict[str, float]:
        """Instance-hours by role, of those that are there up to now."""
        asked_s = {
            "prefill": [worker.asked_s for worker in self.prefills],
            "decode": [worker.asked_s for worker in self.decodes],
        }
        return {
            role: (gone_s + sum(self.now_s - each for each in asked_s[role])) / 3600
            for role, gone_s in self.worker_s.items()
        }

    # ---- who scales ---------------------------------------------------------------------------

    def scale(self, role: str, wanted: int, *, warm: bool = False) -> None:
        """Have so many: who comes is ready after a cold start, who goes are those that came last."""
        workers: list[PlayedPrefill] | list[PlayedDecode] = (
            self.prefills if role == "prefill" else self.decodes
        )
        while len(workers) < wanted:
            ready_s = self.now_s + (0.0 if warm else self.cold_s)
            if role == "prefill":
                self.prefills.append(PlayedPrefill(self.now_s, ready_s))
            else:
                self.decodes.append(PlayedDecode(self.now_s, ready_s))
            self._push(ready_s, "ready", None)
        while len(workers) > wanted:
            if role == "prefill":
                gone = self.prefills.pop()
                self.worker_s[role] += max(self.now_s, gone.free_s) - gone.asked_s
            else:
                self._let_go(self.decodes.pop())

    def _let_go(self, gone: PlayedDecode) -> None:
        self.worker_s["decode"] += self.now_s - gone.asked_s
        self._move(gone)
        gone.version += 1
        others = [worker for worker in self.decodes if worker.ready_s <= self.now_s] or self.decodes
        for end, _, request in gone.streams:
            self._join(min(others, key=_load), request, max(1.0, end - gone.tokens))
        for worker in self.decodes:
            if gone.reserved:  # their prompts are computed for another one
                share = -(-gone.reserved // max(1, len(self.decodes)))
                worker.reserved += min(share, gone.reserved)
                gone.reserved -= min(share, gone.reserved)

    # ---- play ---------------------------------------------------------------------------------

    def play(self, until_s: float) -> None:
        """Go on to a time: everything before it has happened then."""
        while True:
            arrives_s = self.requests[self._next].at_s if self._next < len(self.requests) else float("inf")
            event_s = self._events[0][0] if self._events else float("inf")
            at_s = min(arrives_s, event_s)
            if at_s > until_s:
                self.now_s = until_s
                return
            self.now_s = at_s
            if arrives_s <= event_s:
                self.waiting.append(self.requests[self._next])
                self._next += 1
                self._place()
                continue
            _, _, kind, what, version = heapq.heappop(self._events)
            if kind == "first":
                assert isinstance(what, PlayedRequest)
                self._begin(what)
            elif kind == "end":
                assert isinstance(what, PlayedDecode)
                self._end(what, version)
            self._place()

    def _push(self, at_s: float, kind: str, what: object, version: int = 0) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, what, version))

    def _place(self) -> None:
        """Place those that wait, in their order, while there is a slot and somebody who computes prompts."""
        while self.waiting:
            decodes = [w for w in self.decodes if w.ready_s <= self.now_s and _load(w) < self.slots]
            prefills = [w for w in self.prefills if w.ready_s <= self.now_s]
            if not decodes or not prefills:
                return
            request = self.waiting.popleft()
            min(decodes, key=_load).reserved += 1
            worker = min(prefills, key=lambda each: each.free_s)
            begins_s = max(self.now_s, worker.free_s)
            if begins_s > self.now_s:
                worker.starts.append(begins_s)
            computed = max(1.0, request.prompt_tokens * (1.0 - self.cached_share))
            prefill = self.profile.prefill
            worker.free_s = begins_s + prefill.overhead_ms / 1e3 + computed / prefill.tokens_per_s
            self._push(worker.free_s, "first", request)

    def _begin(self, request: PlayedRequest) -> None:
        """Its first token is there: it joins the worker that has most reserved."""
        request.first_s = self.now_s + self.profile.gateway.overhead_ms / 1e3
        request.end_s = request.first_s
        ready = [worker for worker in self.decodes if worker.reserved] or self.decodes
        worker = max(ready, key=lambda each: each.reserved)
        worker.reserved = max(0, worker.reserved - 1)
        if request.output_tokens > 1:
            self._join(worker, request, request.output_tokens - 1)

    def _join(self, worker: PlayedDecode, request: PlayedRequest, tokens: float) -> None:
        self._move(worker)
        heapq.heappush(worker.streams, (worker.tokens + tokens, next(self._order), request))
        self._expect_end(worker)

    def _move(self, worker: PlayedDecode) -> None:
        """Give every stream the tokens of the time that has passed."""
        if worker.streams:
            worker.tokens += (self.now_s - worker.moved_s) / self._step(worker)
        worker.moved_s = self.now_s

    def _expect_end(self, worker: PlayedDecode) -> None:
        worker.version += 1
        if worker.streams:
            left = max(0.0, worker.streams[0][0] - worker.tokens)
            self._push(self.now_s + left * self._step(worker), "end", worker, worker.version)

    def _end(self, worker: PlayedDecode, version: int) -> None:
        if version != worker.version:
            return
        self._move(worker)
        _, _, request = heapq.heappop(worker.streams)
        way_ms = self.profile.gateway.overhead_ms + self.profile.decode.transfer_ms
        request.end_s = self.now_s + way_ms / 1e3
        self._expect_end(worker)

    def _step(self, worker: PlayedDecode) -> float:
        return self._step_s[min(len(worker.streams), len(self._step_s) - 1)]


def _load(worker: PlayedDecode) -> int:
    return len(worker.streams) + worker.reserved
