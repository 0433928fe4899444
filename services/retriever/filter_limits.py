"""Refuse filters of a search that no gateway sends."""

from __future__ import annotations

from collections.abc import Iterable

from shared.errors import InvalidRequest
from shared.messages import MAX_FILTER_CHARS, MAX_FILTER_VALUES, MAX_FILTERS, Filters


def check_filters(filters: Filters) -> None:
    """Raises InvalidRequest for what no gateway sends."""
    if len(filters) > MAX_FILTERS:
        raise InvalidRequest(f"{len(filters)} filters were sent; a retriever takes at most {MAX_FILTERS}")
    for field, values in filters:
        if not 1 <= len(values) <= MAX_FILTER_VALUES or _longest((field, *values)) > MAX_FILTER_CHARS:
            raise InvalidRequest(
                f"a filter has {len(values)} values, the longest text of {_longest((field, *values))} "
                f"characters; a retriever takes 1 to {MAX_FILTER_VALUES} of at most {MAX_FILTER_CHARS}"
            )


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts))
