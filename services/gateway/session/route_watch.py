"""Watching one route: until the last row has come, or why the request must be routed anew."""

from __future__ import annotations

import asyncio

from services.gateway.fleet.crash_record import PROVEN_TOKENS
from services.gateway.fleet.liveness_check import is_forgotten
from services.gateway.fleet.route_trials import RouteTrials
from services.gateway.request_scope import RequestScope
from services.gateway.rows.row_terms import RowTerms
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import PenstockError, Unavailable
from shared.messages import LivenessCheck, Message

TRANSFER_STALL_S = 10.0
"""Silence between the first token and the second: longer than the transfer's own timers take to say so."""


class RouteWatch:
    """The watch over one request, through all its routes; `last_token_s` is when its latest token came."""

    def __init__(self, scope: RequestScope) -> None:
        self.last_token_s = 0.0
        self._budget = scope.budget
        self._state = scope.state
        self._config = scope.context.config
        self._request_client = scope.request_client
        self._poison_requests = scope.context.poison_requests
        self._crash_record = scope.crash_record
        self._trouble: PenstockError | None = None
        self._trouble_epoch = 0
        self._noted_tokens = 0
        self._heard_s = 0.0
        self._silent_since_s = 0.0
        self._arrived = asyncio.Event()

    @property
    def deadline(self) -> Deadline:
        """The one in force: until the client has a token it is that of the first, then that of the next; once
        the last one is there, no token is awaited any more."""
        if not self._state.log.ids:
            return self._budget.first_token
        if self._state.finish:
            return self._budget.total
        return self._budget.next_token(self.last_token_s)

    def record_arrival(self, now_s: float) -> None:
        """A row of the route has come. One of many in the middle of an answer wakes nobody."""
        self._heard_s = now_s
        if self._noted_tokens < PROVEN_TOKENS or self._state.finish or self._crash_record.strikes:
            self._arrived.set()

    def row_terms(self) -> RowTerms | None:
        """Return what plain rows change, None while one of them would wake somebody."""
        if self._noted_tokens < PROVEN_TOKENS or self._crash_record.strikes:
            return None
        return RowTerms(
            ((self._crash_record, "strikes", 0),),
            arrivals=((self, "last_token_s"), (self, "_heard_s")),
        )

    def fail_route(self, trouble: PenstockError) -> None:
        """It cannot go on. The first trouble of an epoch counts."""
        if self._trouble_epoch < self._state.epoch and not self._state.finish:
            self._trouble, self._trouble_epoch = trouble, self._state.epoch
            self._arrived.set()

    async def until_over(self, trials: RouteTrials) -> PenstockError | None:
        """Wait for the end of the route; return None when the last row has come, else why it must be routed
        anew."""
        self._silent_since_s = SYSTEM_CLOCK.monotonic_s()
        while True:
            self._heard_s = SYSTEM_CLOCK.monotonic_s()
            self._noted_tokens = self._state.epoch_tokens
            trials.record_progress(self._state.epoch_tokens, finished=bool(self._state.finish))
            self._poison_requests.record_tokens(
                self._crash_record, self._state.epoch, self._state.epoch_tokens
            )
            if self._state.finish:
                return None
            if self._trouble is not None and self._trouble_epoch == self._state.epoch:
                return self._trouble
            self._arrived.clear()
            if not await self._is_silent():
                self._silent_since_s = SYSTEM_CLOCK.monotonic_s()
                continue
            if self._state.epoch_tokens > 1 or (self._state.epoch_tokens and self._transfer_left_s() <= 0):
                return Unavailable("no token came for too long", hop="decode")
            if await is_forgotten(self._ask_hold, self._arrived):
                return Unavailable("the last tokens were lost on the way", hop="bus")

    async def _is_silent(self) -> bool:
        """Wait until there is something to look at, or until nothing has been heard for too long. Arrivals
        move the end on without touching the timer."""
        while (left_s := self._heard_s + self._stall_s() - SYSTEM_CLOCK.monotonic_s()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                continue
            return False
        return True

    async def _ask_hold(self) -> Message:
        assert self._state.route is not None
        return await self._request_client.ask_instance(
            "decode",
            self._state.route.decode,
            LivenessCheck(),
            self.deadline.shrink(self._config.ask_timeout_s),
            epoch=self._state.epoch,
        )

    def _stall_s(self) -> float:
        """Return how long this route may be silent in the phase it is in.

        Queued and computing at prefill: as long as the deadline allows, even when the client has tokens of an
        earlier route; but somebody has to hold it. After its first token, KV is transferred, and both
        ends watch over that: decode is asked as well, as all that followed may have been lost.
        """
        if self._state.epoch_tokens == 0:
            return self._config.liveness_check_s
        stall_s = self._config.stall_timeout_s
        return stall_s if self._state.epoch_tokens > 1 else min(stall_s, self._transfer_left_s())

    def _transfer_left_s(self) -> float:
        """Return how long the second token may still take."""
        longest_s = max(self._config.stall_timeout_s, TRANSFER_STALL_S)
        return self._silent_since_s + longest_s - SYSTEM_CLOCK.monotonic_s()
