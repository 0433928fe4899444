"""A question that waits for its passages: its limits and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus import Delivery
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import DeadlineExpired, InvalidRequest
from shared.messages import Retrieve, Retrieved

MAX_K = 50
"""Passages; a request, which has to read them, asks for fewer than who wants nothing else."""
MAX_QUERY_CHARS = 16_384

DEGRADED_TIME = "retrieval"
DEGRADED_DENSE = "dense search"
DEGRADED_RERANK = "rerank"
DEGRADED_NO_CORPUS = "no corpus"


@dataclass(slots=True, eq=False)
class SearchAsk:
    """What the worker thread gets of a question. `found` is the best answer so far: the thread writes it
    whole, whoever is in a hurry reads it."""

    retrieve: Retrieve
    end: Deadline
    found: Retrieved | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """`soft`: from here on it is answered with what has been found until then, where it allows that;
    `hard`: it has failed."""

    delivery: Delivery
    retrieve: Retrieve
    soft: Deadline
    hard: Deadline
    ask: SearchAsk

    @property
    def request_id(self) -> str:
        return self.delivery.envelope.request_id

    @property
    def end(self) -> Deadline:
        """Its next limit."""
        return self.ask.end

    @property
    def question_bytes(self) -> int:
        return len(self.retrieve.query.encode(errors="surrogatepass"))

    def late_answer(self) -> Retrieved | DeadlineExpired:
        """What it gets at its limit."""
        if not self.retrieve.may_degrade:
            return DeadlineExpired("there was no time to retrieve passages; allow more, or let it degrade")
        return self.ask.found or degraded(DEGRADED_TIME)


def accept_question(
    delivery: Delivery, retrieve: Retrieve, hard: Deadline, soft_share: float, clock: Clock = SYSTEM_CLOCK
) -> Question:
    """Raises InvalidRequest, or DeadlineExpired when there is no time left."""
    check_question(retrieve)
    hard.check("retriever", clock)
    soft = Deadline.after(hard.remaining_s(clock) * soft_share, clock)
    end = min(soft, hard) if retrieve.may_degrade else hard
    return Question(delivery, retrieve, soft, hard, SearchAsk(retrieve, end))


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
