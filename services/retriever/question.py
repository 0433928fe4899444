"""A question that waits for its passages: its limits and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus import Delivery
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import InvalidRequest
from shared.messages import Retrieve, Retrieved

MAX_K = 16
MAX_QUERY_CHARS = 16_384

DEGRADED_TIME = "retrieval"
DEGRADED_NO_CORPUS = "no corpus"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """`soft`: from here on it is answered without passages, where it allows that; `hard`: it has failed."""

    delivery: Delivery
    retrieve: Retrieve
    soft: Deadline
    hard: Deadline

    @property
    def request_id(self) -> str:
        return self.delivery.envelope.request_id

    @property
    def next_limit(self) -> Deadline:
        return min(self.soft, self.hard) if self.retrieve.may_degrade else self.hard


def accept_question(
    delivery: Delivery, retrieve: Retrieve, hard: Deadline, soft_share: float, clock: Clock = SYSTEM_CLOCK
) -> Question:
    """Raises InvalidRequest, or DeadlineExpired when there is no time left."""
    check_question(retrieve)
    hard.check("retriever", clock)
    return Question(delivery, retrieve, Deadline.after(hard.remaining_s(clock) * soft_share, clock), hard)


def check_question(retrieve: Retrieve) -> None:
    if not 1 <= retrieve.k <= MAX_K:
        raise InvalidRequest(f"k is {retrieve.k}; ask for 1 to {MAX_K} passages")
    if not retrieve.query.strip():
        raise InvalidRequest("the question is empty; retrieval needs some words to look for")
    if len(retrieve.query) > MAX_QUERY_CHARS:
        raise InvalidRequest(
            f"the question has {len(retrieve.query)} characters; retrieval takes at most {MAX_QUERY_CHARS}"
        )


def degraded(why: str) -> Retrieved:
    return Retrieved(passages=(), degraded=why, embed_us=0, search_us=0)
