"""A prefill worker: it computes one prompt after another, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from services.cli.capacity.pipeline.cores import Cores, CoreUser
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.profile import PrefillProfile

CHUNK_TOKENS = 512
"""The tokens after which another prompt may go on: `max_batch_tokens` of an engine as it comes."""


class PromptWorker:
    """The oldest prompt and the shortest take turns, each for as many tokens as the other had, as in
    `services/prefill/queue.py`. Two that end share no chunk: the first would only wait for the second."""

    __slots__ = (
        *("_busy", "_computed", "_cores", "_lead_tokens", "_line", "_profile", "_waiting"),
        *("changed", "computation", "queued_tokens"),
    )

    def __init__(
        self,
        line: EventLine,
        cores: Cores,
        profile: PrefillProfile,
        computed: Callable[[PlayedRequest], None],
    ) -> None:
        """`computed` has each prompt that is done."""
        self._line = line
        self._cores = cores
        self._profile = profile
        self._computed = computed
        self.computation = CoreUser(goes_first=False, most_cores=profile.cores)
        self._waiting: list[PlayedRequest] = []
        self._busy = False
        self._lead_tokens = 0.0
        self.changed: Callable[[PromptWorker], None] = lambda _: None
        """Is told of each chunk that is computed."""
        self.queued_tokens = 0.0
        """The tokens that are still to compute, by which gateways choose a worker."""

    def add(self, request: PlayedRequest) -> None:
        request.since_s = self._line.now_s
        self._waiting.append(request)
        self.queued_tokens += request.left_tokens
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        request = self._next()
        tokens = min(request.left_tokens, CHUNK_TOKENS)
        alone_s = tokens / self._profile.tokens_per_s
        if not request.begun:
            request.begun = True
            request.line_wait_s = self._line.now_s - request.since_s
            alone_s += self._profile.overhead_ms / 1e3
        self._cores.compute(self.computation, alone_s, partial(self._end, request, tokens))

    def _next(self) -> PlayedRequest:
        oldest = self._waiting[0]
        shortest = min(self._waiting, key=_left_tokens)
        if shortest is oldest:
            return oldest
        chosen = oldest if self._lead_tokens > 0 else shortest
        tokens = min(chosen.left_tokens, CHUNK_TOKENS)
        self._lead_tokens += -tokens if chosen is oldest else tokens
        return chosen

    def _end(self, request: PlayedRequest, tokens: float) -> None:
        request.left_tokens -= tokens
        self.queued_tokens -= tokens
        self.changed(self)
        if request.left_tokens <= 0:
            self._waiting.remove(request)
        self._busy = False
        if self._waiting:
            self._begin()
        if request.left_tokens <= 0:
            self._computed(request)


def _left_tokens(request: PlayedRequest) -> float:
    return request.left_tokens
