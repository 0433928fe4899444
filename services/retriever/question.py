"""A question that waits for its passages: its limits and its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.retriever.filter_limits import check_filters
from services.retriever.served_corpus import ServedCorpus
from shared.bus import Delivery
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import DeadlineExpired, InvalidRequest
from shared.messages import MAX_CORPUS_CHARS, MAX_QUERY_CHARS, Retrieve, Retrieved

MAX_K = 50
"""Passages; a request, which has to read them, asks for fewer than who wants nothing else."""

DEGRADED_TIME = "retrieval"
DEGRADED_DENSE = "dense search"
DEGRADED_RERANK = "rerank"
DEGRADED_NO_CORPUS = "no corpus"


@dataclass(slots=True, eq=False)
class SearchAsk:
    """The part of a question that the worker thread gets. `corpus` has an index. `found` is the best answer
    so far: the thread replaces it, whoever is in a hurry reads it. `dropped`: nobody waits for a better one
    any more."""

    retrieve: Retrieve
    end: Deadline
    corpus: ServedCorpus
    found: Retrieved | None = None
    dropped: bool = False


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
        """Return the answer that the question gets at its limit."""
        if not self.retrieve.may_degrade:
            return DeadlineExpired("there was no time to retrieve passages; allow more, or let it degrade")
        return self.ask.found or degraded(DEGRADED_TIME)


def accept_question(
    delivery: Delivery,
    retrieve: Retrieve,
    corpus: ServedCorpus,
    hard: Deadline,
    soft_share: float,
    clock: Clock = SYSTEM_CLOCK,
) -> Question:
    """A question that has been checked. Raises DeadlineExpired when there is no time left."""
    hard.check("retriever", clock)
    soft = Deadline.after(hard.remaining_s(clock) * soft_share, clock)
    end = min(soft, hard) if retrieve.may_degrade else hard
    return Question(delivery, retrieve, soft, hard, SearchAsk(retrieve, end, corpus))


def check_question(retrieve: Retrieve) -> None:
    """Raises InvalidRequest."""
    if not 1 <= retrieve.k <= MAX_K:
        raise InvalidRequest(f"k is {retrieve.k}; ask for 1 to {MAX_K} passages")
    if not retrieve.query.strip():
        raise InvalidRequest("the question is empty; retrieval needs some words to look for")
    if len(retrieve.query) > MAX_QUERY_CHARS:
        raise InvalidRequest(
            f"the question has {len(retrieve.query)} characters; retrieval takes at most {MAX_QUERY_CHARS}"
        )
    if len(retrieve.corpus) > MAX_CORPUS_CHARS:
        raise InvalidRequest(
            f"a corpus' name has at most {MAX_CORPUS_CHARS} characters, not {len(retrieve.corpus)}"
        )
    if not 0.0 <= retrieve.score_threshold <= 1.0:
        raise InvalidRequest(f"score_threshold is {retrieve.score_threshold}; scores are from 0 to 1")
    check_filters(retrieve.filters)


def wanted_passages(found: Retrieved, retrieve: Retrieve) -> Retrieved:
    """Leave out passages beyond the wanted number, and those that are not likely enough to answer."""
    wanted = found.passages[: retrieve.k]
    return replace(found, passages=tuple(each for each in wanted if each.score >= retrieve.score_threshold))


def degraded(why: str) -> Retrieved:
    return Retrieved(passages=(), degraded=why, embed_us=0, search_us=0)
