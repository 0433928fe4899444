"""The options that say which passages are wanted, of all commands that search."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from protos.penstock.v1 import inference_pb2 as pb

PASSAGE_ORDERS = {
    "shared_prefix": pb.PASSAGE_ORDER_SHARED_PREFIX,
    "best_first": pb.PASSAGE_ORDER_BEST_FIRST,
}


def add_search_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--corpus", default="", metavar="NAME", help="what is searched, where there are several"
    )
    group.add_argument(
        "--filter",
        action="append",
        type=_field_and_value,
        default=[],
        metavar="FIELD=VALUE",
        help="passages with this metadata alone; of several values of a field one will do",
    )

    group.add_argument(
        "--score-threshold",
        type=_score,
        metavar="SCORE",
        help="passages with this score alone, or a higher one, from 0 to 1",
    )


def metadata_filters(given: Sequence[tuple[str, str]]) -> list[pb.MetadataFilter]:
    """One for each field, with all of its values."""
    values: dict[str, list[str]] = {}
    for field, value in given:
        values.setdefault(field, []).append(value)
    return [pb.MetadataFilter(field=field, values=of) for field, of in values.items()]


def _score(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return score


def _field_and_value(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not field or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    return field, value
