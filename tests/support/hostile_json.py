"""JSON bodies that a stranger might send: a valid one with some of its values or names made hostile."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

LONE_SURROGATE = "\ud800"
"""JSON can say it, Unicode text cannot hold it."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -1e308,
    1e30,
    2**31,
    2**63,
    2**64,
    -(2**64),
    10**400,
    "",
    " ",
    "007",
    "chat.messages[999]",
    "chat.messages[7].tool_calls[9].id",
    LONE_SURROGATE,
    f"{LONE_SURROGATE}: send",
    "\0",
    "\u2028\U0001f600",
    "'\"\\",
    "x" * 5000,
    [],
    [[]],
    [None],
    [{}],
    ["x"] * 300,
    [2**70],
    {},
    {"": {}},
    {"x": None},
    {"type": []},
    {"type": "function"},
    {"007": 1, "7": 2},
    {"0" * 30 + "1" * 30: 1},
    {LONE_SURROGATE: 1},
)
"""Each takes the place of any value. What JSON cannot say at all is tested apart."""
DEEP = "[" * 600 + "]" * 600


def hostile_bodies(body: dict[str, Any], rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` bodies, each with what was changed: one to three places of `body`."""
    for _ in range(count):
        made = copy.deepcopy(body)
        changes = [_change(made, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        yield "; ".join(changes), json.dumps(made).replace('"DEEP"', DEEP).encode()


def every_place(body: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield `body` with each of its values replaced by each of `VALUES`, one at a time."""
    for path in _paths(body):
        for value in (*VALUES, "DEEP"):
            made = copy.deepcopy(body)
            _put(made, path, value)
            yield f"{path} = {repr(value)[:60]}", json.dumps(made).replace('"DEEP"', DEEP).encode()


def _change(body: dict[str, Any], rng: random.Random) -> str:
    paths = list(_paths(body))
    if not paths:
        return ""
    path = rng.choice(paths)
    value = rng.choice((*VALUES, "DEEP"))
    _put(body, path, copy.deepcopy(value))
    return f"{path} = {repr(value)[:60]}"


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value[:3]))
    for name, inner in pairs:
        yield (*path, name)
        yield from _paths(inner, (*path, name))


def _put(body: Any, path: tuple[Any, ...], value: Any) -> None:
    for name in path[:-1]:
        body = body[name]
    body[path[-1]] = value
