"""Grammars of clients, tried where a worker tries them: in a process with limits, which ends or refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack

from shared.errors import PenstockError
from shared.process.job_runner import FAILED, KILLED
from shared.process.limited_jobs import LimitedJobs
from shared.sampling.parameters import Grammar
from tests.fuzz.mutation import mutated_json, mutated_text
from tests.fuzz.target import Fault, RunOne, Target, check_refusal

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "^[a-z]{1,8}$", "maxLength": 9},
        "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "minItems": 1, "maxItems": 4},
        "d": {"anyOf": [{"type": "integer", "minimum": -3, "multipleOf": 2}, {"enum": ["x", None]}]},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"c": {"type": "number", "exclusiveMaximum": 1.5}},
}
LARK = 'start: "a" item+ | "b" start\nitem: WORD "," | /[0-9]{1,3}/\nWORD: /[a-z]+/\n%ignore / +/\n'
GBNF = 'root ::= "a" item+ | "b" root\nitem ::= [a-z]{1,4} ","\n'
REGEX = "(a|b[0-9]{2,5})*(?:c+|[^x-z]?)\\d\\w.\\."
WORDS = (
    "{1,1000}",
    "{999}",
    "(",
    ")",
    "*",
    "+",
    "?",
    "|",
    "[^a]",
    "\\p{L}",
    "(?=a)",
    "start",
    "root",
    "::=",
    ":",
    "%json {}",
)
MAX_WALL_S = 30.0
"""The runner's own limits end it long before."""


def make(rng: random.Random) -> bytes:
    """The kind, a line end, and the grammar."""
    kind = rng.choice(("json_schema", "ebnf", "regex"))
    if kind == "json_schema":
        text = mutated_json(SCHEMA, rng).decode("utf-8", "replace")
    else:
        text = mutated_text(REGEX if kind == "regex" else rng.choice((LARK, GBNF)), rng, WORDS)
    return f"{kind}\n".encode() + text.encode("utf-8", "replace")


@contextmanager
def opened() -> Iterator[RunOne]:
    jobs = LimitedJobs("shared.engine.sampling.grammar_trial")

    def run_one(data: bytes) -> None:
        kind, _, content = data.partition(b"\n")
        grammar = Grammar(kind.decode(errors="replace"), content.decode("utf-8", "replace"))
        try:
            grammar.validate()
        except PenstockError as error:
            check_refusal(error)
            return
        future, _ = jobs.submit(msgpack.packb((grammar.kind, grammar.text)))
        end = future.result(MAX_WALL_S)
        said = end.result.decode(errors="replace")
        if end.end == KILLED or (end.end == FAILED and not said.startswith("the grammar (")):
            raise Fault(f"the trial ended with {end.end}: {said}")

    try:
        yield run_one
    finally:
        jobs.close()


TARGET = Target("grammar", make, opened, tries=60)
