"""A gateway: requests pass it one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from services.cli.capacity.pipeline.cores import Cores
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.played_request import PlayedRequest


class FrontLine:
    """One gateway with its tokenizer: a request takes `request_s` of its core, then `then` has it."""

    __slots__ = ("_busy", "_cores", "_line", "_request_s", "_then", "_waiting")

    def __init__(
        self, line: EventLine, cores: Cores, request_s: float, then: Callable[[PlayedRequest], None]
    ) -> None:
        self._line = line
        self._cores = cores
        self._request_s = request_s
        self._then = then
        self._waiting: deque[PlayedRequest] = deque()
        self._busy = False

    def enter(self, request: PlayedRequest) -> None:
        request.since_s = self._line.now_s
        self._waiting.append(request)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        request = self._waiting.popleft()
        request.front_wait_s = self._line.now_s - request.since_s
        self._cores.spend(self._request_s, self._end, request)

    def _end(self, request: PlayedRequest) -> None:
        self._busy = False
        if self._waiting:
            self._begin()
        self._then(request)
