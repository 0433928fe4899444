"""Read what a request wants from retrieval: how many passages, of what, and how they stand in the prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.messages import MAX_CORPUS_CHARS, MAX_FILTER_CHARS, MAX_FILTER_VALUES, MAX_FILTERS, Filters

DEFAULT_PASSAGES = 3
MAX_PASSAGES = 16
"""The most passages that a question may be answered from."""

SHARED_PREFIX, BEST_FIRST = "shared_prefix", "best_first"
ORDERS = {
    pb.PASSAGE_ORDER_SHARED_PREFIX: SHARED_PREFIX,
    pb.PASSAGE_ORDER_BEST_FIRST: BEST_FIRST,
}

WARM_OFF, WARM_HEAD, WARM_LIKELY = "off", "head", "likely"
WARM_MODES = (WARM_OFF, WARM_HEAD, WARM_LIKELY)
"""The part of a prompt that is computed while its passages are found: nothing; what stands before them; or,
once there is a first order of them, all of it."""


@dataclass(frozen=True, slots=True)
class RetrievalUse:
    """`passages` is how many are wanted; 0: no retrieval. `max_tokens` bounds what of them stands in the
    prompt, in `order`; 0: as many as there is room for. `query`: "" is the question.
    Passages with a lower score than `score_threshold` are not wanted, nor is an answer without any."""

    passages: int = 0
    may_degrade: bool = True
    corpus: str = ""
    filters: Filters = ()
    order: str = SHARED_PREFIX
    max_tokens: int = 0
    query: str = ""
    score_threshold: float = 0.0


NO_RETRIEVAL = RetrievalUse()


def read_retrieval_use(
    asked: pb.Retrieval, usual_order: str = SHARED_PREFIX, usual_passages: int = DEFAULT_PASSAGES
) -> RetrievalUse:
    """Raises InvalidRequest naming the field and what is allowed. `usual_order` and `usual_passages` are for
    who asks for none."""
    if asked.HasField("k") and not 1 <= asked.k <= MAX_PASSAGES:
        raise InvalidRequest(f"retrieval.k is {asked.k}: send an integer from 1 to {MAX_PASSAGES}")
    if asked.HasField("max_tokens") and asked.max_tokens < 1:
        raise InvalidRequest(
            f"retrieval.max_tokens is {asked.max_tokens}: send at least 1, or leave it out for as many as fit"
        )
    if asked.order not in (pb.PASSAGE_ORDER_UNSPECIFIED, *ORDERS):
        raise InvalidRequest(
            f"retrieval.order is {int(asked.order)}: send PASSAGE_ORDER_SHARED_PREFIX or _BEST_FIRST"
        )
    if asked.query and not asked.query.strip():
        raise InvalidRequest("retrieval.query is blank: send some words, or leave it out for the question")
    threshold = read_score_threshold(asked.score_threshold, "retrieval.score_threshold")
    corpus = read_corpus_name(asked.corpus, "retrieval.corpus")
    filters = read_filters(asked.filters, "retrieval.filters")
    if not asked.enabled:
        return NO_RETRIEVAL
    return RetrievalUse(
        passages=asked.k if asked.HasField("k") else usual_passages,
        may_degrade=not asked.HasField("may_degrade") or asked.may_degrade,
        corpus=corpus,
        filters=filters,
        order=ORDERS.get(asked.order, usual_order),
        max_tokens=asked.max_tokens,
        query=asked.query,
        score_threshold=threshold,
    )


def read_corpus_name(name: str, field: str) -> str:
    if len(name) > MAX_CORPUS_CHARS:
        raise InvalidRequest(f"{field} has {len(name)} characters: send at most {MAX_CORPUS_CHARS}")
    return name


def read_score_threshold(threshold: float, field: str) -> float:
    """Return it: 0 wants passages with any score. NaN is refused too."""
    if not 0.0 <= threshold <= 1.0:
        raise InvalidRequest(f"{field} is {threshold:g}: send a number from 0 to 1")
    return threshold


def read_filters(asked: Iterable[pb.MetadataFilter], field: str) -> Filters:
    """Return the filters in a fixed order: equal ones compare equal, however they came."""
    filters: dict[str, tuple[str, ...]] = {}
    for place, each in enumerate(asked):
        where = f"{field}[{place}]"
        if place == MAX_FILTERS:
            raise InvalidRequest(f"{field} has more than {MAX_FILTERS}: send at most so many")
        if not 1 <= len(each.field) <= MAX_FILTER_CHARS:
            raise InvalidRequest(
                f"{where}.field has {len(each.field)} characters: send 1 to {MAX_FILTER_CHARS}"
            )
        if each.field in filters:
            raise InvalidRequest(f"{where}.field is {each.field!r} once more: send all of its values in one")
        if not 1 <= len(each.values) <= MAX_FILTER_VALUES:
            raise InvalidRequest(f"{where}.values has {len(each.values)}: send 1 to {MAX_FILTER_VALUES}")
        if (longest := max(map(len, each.values))) > MAX_FILTER_CHARS:
            raise InvalidRequest(
                f"{where}.values has one of {longest} characters: send at most {MAX_FILTER_CHARS}"
            )
        filters[each.field] = tuple(sorted(set(each.values)))
    return tuple(sorted(filters.items()))
