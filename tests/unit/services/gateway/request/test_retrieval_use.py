"""What a request may say of retrieval: at the edge of every limit it passes, one step more is named."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.retrieval_use import (
    BEST_FIRST,
    NO_RETRIEVAL,
    SHARED_PREFIX,
    read_retrieval_use,
)
from shared.errors import InvalidRequest
from shared.messages import MAX_CORPUS_CHARS, MAX_FILTER_CHARS, MAX_FILTER_VALUES, MAX_FILTERS


def one_filter(field: str = "lang", *values: str) -> pb.MetadataFilter:
    return pb.MetadataFilter(field=field, values=values or ("en",))


def asked(**fields: object) -> pb.Retrieval:
    return pb.Retrieval(enabled=True, **fields)  # type: ignore[arg-type]  # its fields


ALLOWED = {
    "longest corpus": asked(corpus="c" * MAX_CORPUS_CHARS),
    "most filters": asked(filters=[one_filter(str(place)) for place in range(MAX_FILTERS)]),
    "most values": asked(filters=[one_filter("lang", *map(str, range(MAX_FILTER_VALUES)))]),
    "longest field and value": asked(filters=[one_filter("f" * MAX_FILTER_CHARS, "v" * MAX_FILTER_CHARS)]),
    "empty value": asked(filters=[one_filter("lang", "")]),
    "fewest tokens": asked(max_tokens=1),
}

REFUSED = {
    "retrieval.corpus": asked(corpus="c" * (MAX_CORPUS_CHARS + 1)),
    "retrieval.filters has": asked(filters=[one_filter(str(place)) for place in range(MAX_FILTERS + 1)]),
    "retrieval.filters[0].values has 65": asked(
        filters=[one_filter("lang", *map(str, range(MAX_FILTER_VALUES + 1)))]
    ),
    "retrieval.filters[0].values has 0": asked(filters=[pb.MetadataFilter(field="lang")]),
    "retrieval.filters[0].field has 0": asked(filters=[one_filter("")]),
    "retrieval.filters[0].field has 257": asked(filters=[one_filter("f" * (MAX_FILTER_CHARS + 1))]),
    "retrieval.filters[0].values has one of 257": asked(filters=[one_filter("a", "v" * 257)]),
    "retrieval.filters[1].field is 'lang' once more": asked(filters=[one_filter(), one_filter()]),
    "retrieval.max_tokens": asked(max_tokens=0),
    "retrieval.order": asked(order=3),
    "retrieval.query": asked(query=" \n"),
}


@pytest.mark.parametrize("allowed", ALLOWED.values(), ids=ALLOWED)
def test_the_edge_of_a_limit_passes(allowed: pb.Retrieval) -> None:
    assert read_retrieval_use(allowed).passages == 3


@pytest.mark.parametrize(("named", "refused"), REFUSED.items())
def test_beyond_a_limit_the_field_is_named(named: str, refused: pb.Retrieval) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_retrieval_use(refused)
    assert named in error.value.message


def test_what_is_wrong_is_named_also_where_retrieval_is_off() -> None:
    with pytest.raises(InvalidRequest):
        read_retrieval_use(pb.Retrieval(k=99))


def test_off_is_no_retrieval_whatever_else_is_said() -> None:
    assert read_retrieval_use(pb.Retrieval(corpus="news", k=4)) == NO_RETRIEVAL


def test_an_order_that_is_not_asked_for_is_the_servers() -> None:
    orders = [pb.PASSAGE_ORDER_UNSPECIFIED, pb.PASSAGE_ORDER_SHARED_PREFIX, pb.PASSAGE_ORDER_BEST_FIRST]
    for usual in (SHARED_PREFIX, BEST_FIRST):
        told = [read_retrieval_use(asked(order=order), usual).order for order in orders]
        assert told == [usual, SHARED_PREFIX, BEST_FIRST]


def test_the_same_filters_are_the_same_however_they_came() -> None:
    there = asked(filters=[one_filter("b", "2", "1", "2"), one_filter("a")])
    back = asked(filters=[one_filter("a"), one_filter("b", "1", "2")])
    assert read_retrieval_use(there).filters == read_retrieval_use(back).filters
    assert read_retrieval_use(there).filters == (("a", ("en",)), ("b", ("1", "2")))
