"""What a user of a closed bus may do, decided as nats-server does."""

from __future__ import annotations

import asyncio
import json

from shared.bus.permissions import ANSWER_WITHIN, BusUser
from tests.simulation.bus.interest import fits

MAX_ANSWERS = 1
"""`allow_responses` of `shared.bus.permissions`: so many, within ANSWER_WITHIN."""
EXPIRE_S = float(ANSWER_WITHIN.removesuffix("m")) * 60
PRUNE_BEYOND = 4096
"""Of more questions than these, those that have their answer, or are too old for one, are forgotten."""


class Permitted:
    """One connection's rights; `user` None may do everything."""

    def __init__(self, user: BusUser | None) -> None:
        self.user = user
        self._publish = [_tokens(one.encode()) for one in user.publish] if user else []
        self._subscribe = [_tokens(one.encode()) for one in user.subscribe] if user else []
        self._asked: dict[bytes, tuple[float, int]] = {}

    def may_publish(self, subject: bytes) -> bool:
        if self.user is None:
            return True
        tokens = _tokens(subject)
        return any(fits(one, tokens) for one in self._publish) or self._may_answer(subject)

    def may_subscribe(self, pattern: bytes) -> bool:
        """Return whether a pattern is allowed, taken as if it were a subject: so the server does it."""
        return self.user is None or any(fits(one, _tokens(pattern)) for one in self._subscribe)

    def delivered(self, reply: bytes) -> None:
        """Take note that an answer is waited for at `reply`."""
        if self.user is None or not self.user.answers or self.may_publish(reply):
            return
        now_s = asyncio.get_running_loop().time()
        if len(self._asked) > PRUNE_BEYOND:
            self._asked = {
                asked: (since_s, count)
                for asked, (since_s, count) in self._asked.items()
                if count < MAX_ANSWERS and now_s - since_s <= EXPIRE_S
            }
        self._asked[reply] = (now_s, 0)

    def _may_answer(self, subject: bytes) -> bool:
        """Count each look, as the server does, those included that only ask whether a reply is known."""
        if subject not in self._asked:
            return False
        since_s, count = self._asked[subject]
        if count >= MAX_ANSWERS or asyncio.get_running_loop().time() - since_s > EXPIRE_S:
            del self._asked[subject]
            return False
        self._asked[subject] = (since_s, count + 1)
        return True


def _tokens(subject: bytes) -> tuple[bytes, ...]:
    return tuple(subject.split(b"."))


def quoted(subject: bytes) -> str:
    """Return a subject as the server's refusals name it."""
    return json.dumps(subject.decode(errors="replace"), ensure_ascii=False)
