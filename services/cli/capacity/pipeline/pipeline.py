"""All instances of a deployment, and where each request goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from services.cli.capacity.pipeline.core_turns import CoreTurns
from services.cli.capacity.pipeline.cores import Cores, OwnCores
from services.cli.capacity.pipeline.decode_worker import DecodeWorker
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.front_line import FrontLine
from services.cli.capacity.pipeline.least_loaded import LeastLoaded
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.pipeline.prompt_worker import PromptWorker
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts

MOST_TOKEN_SHARE = 0.95
"""The part of a gateway's core that tokens take at most: one that is full of them is overloaded anyway."""
REQUEST_PARTS = 3
"""The equal parts of a request's cost beside instances: as it is placed, at its first token, at its end."""


class Pipeline:
    """Plays requests once. `hosts` None: each instance has cores of its own.

    Gateways take requests in turn. A request goes to the decode worker with the fewest that has room for it,
    and waits while none has; then to the prefill worker with the fewest tokens to compute; equals take turns
    (`services/gateway/fleet/routing.py`).
    """

    def __init__(
        self,
        profile: DeploymentProfile,
        counts: InstanceCounts,
        hosts: int | None = None,
        token_rate: float = 0.0,
    ) -> None:
        """`token_rate`: tokens of answers a second, which gateways pass on; for who has cores of its own."""
        self._profile = profile
        self._line = EventLine()
        self._hosts = [CoreTurns(self._line, profile.host.cores) for _ in range(hosts or 0)]
        self._waiting: deque[PlayedRequest] = deque()
        self._turn = 0
        shares_cores = hosts is not None
        token_s = profile.gateway.token_cpu_ms / 1e3
        share = 0.0 if shares_cores else min(MOST_TOKEN_SHARE, token_rate * token_s / counts.gateway)
        request_s = profile.gateway.cpu_ms / 1e3 / (1.0 - share)
        beside_s = token_s + profile.host.token_cpu_ms / 1e3 if shares_cores else 0.0
        steps = profile.decode.step_ms.step_s(np.arange(profile.decode.slots + 1, dtype=np.float64)).tolist()
        self._decodes = [
            DecodeWorker(self._line, self._cores(place), profile.decode, steps, beside_s, self._ended)
            for place in range(counts.decode)
        ]
        self._prefills = [
            PromptWorker(self._line, self._cores(counts.decode + place), profile.prefill, self._computed)
            for place in range(counts.prefill)
        ]
        self._fronts = [
            FrontLine(self._line, self._cores(place), request_s, self._passed)
            for place in range(counts.gateway)
        ]
        self._decode_line = LeastLoaded(self._decodes, lambda worker: worker.live)
        self._prefill_line = LeastLoaded(self._prefills, lambda worker: worker.queued_tokens)
        for prefill in self._prefills:
            prefill.changed = self._prefill_line.changed
        self._way_s = token_s
        self._route: dict[PlayedRequest, DecodeWorker] = {}

    def play(self, requests: Sequence[PlayedRequest]) -> None:
        """Play requests, in the order of their times, until all have ended."""
        for number, request in enumerate(requests):
            request.way_s = self._way_s
            self._line.at(request.at_s, self._fronts[number % len(self._fronts)].enter, request)
        self._line.play()

    @property
    def stretches(self) -> dict[str, float]:
        """Return how many times as long work took as alone, by role."""
        found = {}
        for role, workers in (("prefill", self._prefills), ("decode", self._decodes)):
            alone_s = sum(worker.computation.alone_s for worker in workers)
            took_s = sum(worker.computation.took_s for worker in workers)
            found[role] = took_s / alone_s if alone_s else 1.0
        return found

    def _cores(self, place: int) -> Cores:
        """Return the cores of the instance that is dealt to the machines as this one."""
        return self._hosts[place % len(self._hosts)] if self._hosts else OwnCores(self._line)

    # ---- the way of a request -----------------------------------------------------------------------

    def _passed(self, request: PlayedRequest) -> None:
        """It is behind its gateway."""
        at_s = self._line.now_s + self._profile.gateway.overhead_ms / 1e3
        self._line.at(at_s, self._queue, request)

    def _queue(self, request: PlayedRequest) -> None:
        request.since_s = self._line.now_s
        self._waiting.append(request)
        self._place()

    def _place(self) -> None:
        """Place those that wait for a decode worker, in their order, as far as there is room."""
        while self._waiting:
            request = self._waiting[0]
            decode = self._decode_line.least(partial(_has_room, request))
            if decode is None:
                return
            self._waiting.popleft()
            request.slot_wait_s = self._line.now_s - request.since_s
            self._turn += 1
            decode.reserve(request)
            self._decode_line.changed(decode)
            self._route[request] = decode
            prefill = self._prefill_line.least()
            assert prefill is not None
            self._spend_part()
            prefill.add(request)
            self._prefill_line.changed(prefill)

    def _computed(self, request: PlayedRequest) -> None:
        """Its prompt is computed, and its first token drawn."""
        request.first_s = self._line.now_s
        self._spend_part()
        decode = self._route[request]
        if request.tokens_behind_first:
            self._spend(request.computed_tokens * self._profile.host.kv_token_cpu_ms / 1e3)
            self._line.at(self._line.now_s + self._profile.decode.transfer_ms / 1e3, decode.join, request)
        else:
            request.end_s = self._line.now_s
            self._ended(request)

    def _ended(self, request: PlayedRequest) -> None:
        self._spend_part()
        decode = self._route.pop(request)
        decode.leave(request)
        self._decode_line.changed(decode)
        self._place()

    def _spend_part(self) -> None:
        self._spend(self._profile.host.request_cpu_ms / 1e3 / REQUEST_PARTS)

    def _spend(self, cpu_s: float) -> None:
        if self._hosts and cpu_s:
            self._hosts[self._turn % len(self._hosts)].spend(cpu_s)


def _has_room(request: PlayedRequest, worker: DecodeWorker) -> bool:
    return worker.has_room(request)
