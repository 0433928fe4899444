"""Rank tools by the words that a question has in common with them (BM25, with weights by where a word stands:
Robertson and Zaragoza 2009)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from shared.messages import Tool
from shared.retrieval.citing.evidence import PLAIN
from shared.retrieval.index.words import runs_of, terms_of_run

NAME_WEIGHT = 3.0
DESCRIPTION_WEIGHT = 1.0
PARAMETER_WEIGHT = 0.5
SATURATION = 1.2
LENGTH_SHARE = 0.5
"""The part of its own length, beside that of others, that counts against a tool."""
TOOLS_REMEMBERED = 512
"""Tools whose words are kept: a client sends the same ones with each message."""
MAX_TOOL_CHARS = 8192
"""The first characters, so many, of what a tool says of itself, and of its parameters, are read."""
MAX_ASKED_CHARS = 4096
"""The end of a longer message is read: what is wanted is mostly said last."""

_JOINTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\-./]+")
"""The joints of a name, where its words meet: get_weather, getWeather, HTTPServer."""
_TOLD = ("title", "description", "enum", "const", "examples")
"""The keywords of a JSON Schema whose texts say something of what is meant."""


class ToolRanking:
    """The words of some tools."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = [_weighted_terms(tool) for tool in tools]
        self._lengths = [sum(terms.values()) for terms in self._tools]
        self._mean = max(1.0, sum(self._lengths) / max(1, len(tools)))
        self._holders = Counter(term for terms in self._tools for term in terms)

    def scores(self, asked: str) -> list[float]:
        """Return for each tool how well its words fit, 0 for one that has none of them."""
        wanted = set(_terms(asked[-MAX_ASKED_CHARS:]))
        weights = {term: self._rarity(term) for term in wanted if term in self._holders}
        return [
            sum(
                weight * _saturated(terms[term], length / self._mean)
                for term, weight in weights.items()
                if term in terms
            )
            for terms, length in zip(self._tools, self._lengths, strict=True)
        ]

    def _rarity(self, term: str) -> float:
        holders = self._holders[term]
        return math.log1p((len(self._tools) - holders + 0.5) / (holders + 0.5))


def _saturated(count: float, length: float) -> float:
    return count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length))


@lru_cache(TOOLS_REMEMBERED)
def _weighted_terms(tool: Tool) -> Mapping[str, float]:
    parts = (
        (NAME_WEIGHT, tool.name),
        (DESCRIPTION_WEIGHT, tool.description),
        (PARAMETER_WEIGHT, " ".join(_told_of_parameters(tool.parameters))),
    )
    weighted: dict[str, float] = {}
    for weight, text in parts:
        for term, count in Counter(_terms(text[:MAX_TOOL_CHARS])).items():
            weighted[term] = weighted.get(term, 0.0) + weight * count
    return weighted


def _told_of_parameters(schema: str) -> Iterator[str]:
    """Yield names of parameters and what is said of them; nothing of a schema that is none."""
    try:
        left: list[Any] = [json.loads(schema)] if schema else []
    except (ValueError, RecursionError):
        return
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            for key, value in part.items():
                if key == "properties" and isinstance(value, dict):
                    yield from value
                elif key in _TOLD:
                    yield from _texts(value)
                left.append(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))


def _terms(text: str) -> Iterator[str]:
    """Yield words and their parts, without those that say nothing."""
    for run in runs_of(_JOINTS.sub(" ", text)):
        if run not in PLAIN:
            yield from terms_of_run(run)
