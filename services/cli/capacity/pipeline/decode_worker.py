"""A decode worker: streams share its steps, as far as there are slots and KV blocks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

from services.cli.capacity.pipeline.cores import Cores, CoreUser
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.pipeline.step_log import StepLog
from services.cli.capacity.profile import DecodeProfile


class DecodeWorker:
    """Each stream has a token of every step. A request holds its slot and all of its blocks from the moment
    that it is placed here, before its prompt is computed."""

    __slots__ = (
        *("_began_s", "_cores", "_ended", "_free_blocks", "_joining", "_line", "_order", "_profile"),
        *("_step_s", "_steps", "_streams", "_token_cpu_s", "_version", "computation", "live", "log"),
    )

    def __init__(
        self,
        line: EventLine,
        cores: Cores,
        profile: DecodeProfile,
        step_s: Sequence[float],
        token_cpu_s: float,
        ended: Callable[[PlayedRequest], None],
    ) -> None:
        """`step_s`: of a step by the streams in it, from 0 on. A token costs `token_cpu_s` beside its step.
        `ended` has each request that has its last token."""
        self._line = line
        self._cores = cores
        self._profile = profile
        self._step_s = step_s
        self._token_cpu_s = token_cpu_s
        self._ended = ended
        self.computation = CoreUser(goes_first=True, most_cores=profile.cores)
        self.log = StepLog()
        self.live = 0
        self._free_blocks = profile.kv_blocks
        self._streams: list[tuple[int, int, PlayedRequest]] = []
        """A heap of streams by the count of steps after which each ends."""
        self._joining: list[PlayedRequest] = []
        self._began_s = 0.0
        self._steps = 0
        """The steps that are computed now, one after another; 0: none is."""
        self._version = 0
        self._order = 0

    def has_room(self, request: PlayedRequest) -> bool:
        return self.live < self._profile.slots and self._blocks(request) <= self._free_blocks

    def reserve(self, request: PlayedRequest) -> None:
        self.live += 1
        self._free_blocks -= self._blocks(request)

    def leave(self, request: PlayedRequest) -> None:
        """Give back what it held."""
        self.live -= 1
        self._free_blocks += self._blocks(request)

    def join(self, request: PlayedRequest) -> None:
        """Its KV is here: it is in the step that begins next."""
        self._joining.append(request)
        if not self._steps:
            self._begin()
        elif self._steps > 1:
            step_s = self._step_s[len(self._streams)]
            steps = int((self._line.now_s - self._began_s) / step_s) + 1
            if steps < self._steps:
                self._steps = steps
                self._compute(max(0.0, self._began_s + steps * step_s - self._line.now_s))

    def _begin(self) -> None:
        for request in self._joining:
            request.steps, request.joined = self.log, self.log.count
            self._order += 1
            heapq.heappush(
                self._streams, (self.log.count + request.tokens_behind_first, self._order, request)
            )
        self._joining.clear()
        self._began_s = self._line.now_s
        self._steps = 1 if self._cores.stepwise else self._streams[0][0] - self.log.count
        self._compute(self._steps * self._step_s[len(self._streams)])

    def _compute(self, alone_s: float) -> None:
        self._version += 1
        self._cores.compute(self.computation, alone_s, partial(self._end, self._version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        now_s, steps = self._line.now_s, self._steps
        tokens = steps * len(self._streams)
        self.log.add(self._began_s, (now_s - self._began_s) / steps, steps)
        ended = []
        while self._streams and self._streams[0][0] <= self.log.count:
            request = heapq.heappop(self._streams)[2]
            request.end_s = now_s
            ended.append(request)
        self._steps = 0
        if self._streams or self._joining:
            self._begin()
        if self._token_cpu_s:
            self._cores.spend(tokens * self._token_cpu_s)
        for request in ended:
            self._ended(request)

    def _blocks(self, request: PlayedRequest) -> int:
        """Return the blocks that it holds; one that is longer than the pool takes all of it."""
        tokens = int(request.prompt_tokens) + request.output_tokens
        return min(self._profile.kv_blocks, -(-tokens // self._profile.block_tokens))
