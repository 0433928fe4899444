"""Collect the evidence that a request took engines down. Pure, with a clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from shared.bus.fleet import InstanceView
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import WARM_EPOCH
from shared.roles import TARGET_ROLES

SUDDEN_S = 3.0
"""An engine that dies in silence may have died of what it was given this long before, not of older work."""
PROVEN_TOKENS = 4
"""A request with so many tokens of a new route is past what an engine failed over: that may have kept
only the tokens of its last step from being delivered."""
STAYS_REMEMBERED = 8
"""It takes a moment until a dead worker's next life tells that it died; a request may have moved on twice."""


@dataclass(slots=True)
class Stay:
    """A request at an engine, under one epoch. `tokens` came meanwhile."""

    view: InstanceView
    began_s: float
    computes_prompt: bool
    left_s: float = math.inf
    tokens: int = 0

    def may_have_killed(self) -> bool:
        """Whether the engine's life ended just when it had begun to compute this request.

        Who computes the prompt does so until the first token is out, decode goes on from then. Of a worker
        where other prompts waited nobody knows whose turn it was; and a life ended when it was last heard of,
        or when it stalled.
        """
        beat = self.view.heartbeat
        if beat.role == "prefill":
            computing = self.tokens == 0 and (not beat.queued or beat.queued + beat.live <= 1)
        else:
            prompt = self.computes_prompt and self.tokens == 0 and beat.queued <= 1
            computing = prompt or self.tokens == 1
        end_s = self.view.last_seen_s - beat.stalled_ms / 1e3
        sudden = -beat.next_ms / 1e3 <= end_s - self.began_s <= SUDDEN_S
        return computing and sudden and end_s <= self.left_s


class CrashRecord:
    """The evidence against one request.

    A strike is an engine that failed over it, or died when it had begun to compute it; progress of the
    request since then takes it back.
    """

    def __init__(self, request_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.request_id = request_id
        self.strikes = 0
        self.named = False
        """A worker's last words named it: a strike that is no coincidence in time."""
        self.routed_s = 0.0
        self._clock = clock
        self._stays: deque[Stay] = deque(maxlen=STAYS_REMEMBERED)
        self._struck_epoch = WARM_EPOCH - 1

    def begin_epoch(self, views: Iterable[InstanceView], prompt_role: str = "prefill") -> None:
        """It is routed to `views`; the one of `prompt_role` computes the prompt."""
        self._leave()
        self.routed_s = self._clock.monotonic_s()
        self._stays += [
            Stay(view, self.routed_s, role == prompt_role)
            for view in views
            if (role := view.heartbeat.role) in TARGET_ROLES
        ]

    def move(self, view: InstanceView) -> None:
        """It goes on at another instance of the role of `view`, which need not compute the prompt."""
        now_s = self._clock.monotonic_s()
        for stay in self._here():
            if stay.view.heartbeat.role == view.heartbeat.role:
                stay.left_s = now_s
        self._stays.append(Stay(view, now_s, computes_prompt=False))

    def begin_warm(self, view: InstanceView) -> None:
        """The one of `view` may compute the beginning of its prompt, until the first route."""
        self._stays.append(Stay(view, self._clock.monotonic_s(), computes_prompt=True))

    def record_tokens(self, epoch: int, tokens: int) -> None:
        """Note how many tokens came of this route."""
        for stay in self._here():
            stay.tokens = tokens
        if tokens >= PROVEN_TOKENS and epoch > self._struck_epoch:
            self.strikes, self.named = 0, False

    def record_fault(self, epoch: int) -> None:
        """A worker said that its engine failed over a batch with this request."""
        if epoch > self._struck_epoch:
            self._struck_epoch = epoch
            self.strikes += 1
            self.named = True

    def record_death(self, role: str, instance: str) -> bool:
        """The life of the instance that it may have been at is over; whether that is a strike."""
        here = [stay for stay in self._stays if _is_at(stay, role, instance)]
        for stay in here:
            self._stays.remove(stay)
        struck = any(stay.may_have_killed() for stay in here)
        self.strikes += struck
        return struck

    def _here(self) -> list[Stay]:
        return [stay for stay in self._stays if stay.left_s == math.inf]

    def _leave(self) -> None:
        for stay in self._here():
            stay.left_s = self._clock.monotonic_s()


def _is_at(stay: Stay, role: str, instance: str) -> bool:
    beat = stay.view.heartbeat
    return (beat.role, beat.instance) == (role, instance)
