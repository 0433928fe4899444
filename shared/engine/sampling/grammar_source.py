"""A client's grammar as the library's: its source, and a matcher of it, within limits. Loads little.

Not all of compiling is held by the library's own limits, so that a grammar is tried elsewhere first
(`grammar_trial`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

from shared.engine.sampling.grammar_faults import plain_fault
from shared.errors import InvalidRequest, Overloaded
from shared.sampling.parameters import JSON_WHITESPACE, Grammar

MAX_STEP_LEXER_FUEL = 20_000
"""The work of the lexer for one mask: up to 6 ms. With five times as much, 400 terminals that all begin alike
took 0.3 s, and the cores with them; schemas and grammars that people use need less than half of this."""
MAX_STEP_ITEMS = 25_000
"""The most items of the parser for one mask. Schemas with 200 optional properties need over 16,000
where their names begin alike. It is about 1 ms, but how often the same item is found is not counted:
with many readings that took 0.9 s."""
MAX_ROW_ITEMS = 1000
"""The most items of the parser at one place of an output: those of 240 optional properties are 960. Each is
looked for among all that are there already, so that twice as many take up to eight times as long, for the
mask as for the token behind it."""
MAX_LEXER_STATES = 50_000
"""The most states of a lexer; each takes up to 2 KB."""
MAX_GBNF_CHARS = 1 << 14
"""The longest grammar in GBNF: its conversion to Lark's notation takes quadratic time."""
COMPILER_STACK_BYTES = 256 << 20
"""The compiler recurses once per link of a chain of rules. MAX_GRAMMAR_BYTES hold some 8000 links, which take
more than an ordinary thread's stack and would end the process; on this one they take a tenth."""

T = TypeVar("T")

_stack_size_lock = threading.Lock()
"""The size of new threads' stacks is the process's: two that set it at once would leave it set."""


def grammar_matcher(tokenizer: LLTokenizer, grammar: Grammar, source: str) -> LLMatcher:
    """Raises InvalidRequest for a grammar that is none, or of which not even the first mask can be made."""
    limits = LLParserLimits(
        step_lexer_fuel=MAX_STEP_LEXER_FUEL,
        step_max_items=MAX_STEP_ITEMS,
        max_items_in_row=MAX_ROW_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )
    try:
        matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
    except ValueError as error:
        raise _bad(grammar, str(error)) from error
    first = matcher.deep_copy()
    mask = b"" if matcher.is_error() else first.compute_bitmask()
    if first.is_error():
        raise _bad(grammar, first.get_error())
    if not _ids_but(mask, tokenizer.eos_tokens):
        raise _bad(grammar, "only the empty text fits it; say what the answer may be")
    return matcher


def grammar_source(grammar: Grammar) -> str:
    """The grammar as the library takes it. Raises InvalidRequest for one that cannot be converted."""
    try:
        if grammar.kind == "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        if grammar.kind == "ebnf" and is_lark_syntax(grammar.text):
            return LLMatcher.grammar_from_lark(grammar.text)
        if grammar.kind == "ebnf":
            if len(grammar.text) > MAX_GBNF_CHARS:
                raise _bad(grammar, f"GBNF may have {MAX_GBNF_CHARS} characters; send Lark's notation")
            return grammar_from("gbnf", grammar.text)
        schema = grammar.text or '{"type": "object"}'
        return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": JSON_WHITESPACE})
    except ValueError as error:
        raise _bad(grammar, str(error)) from error


def _ids_but(mask: bytes, ids: Sequence[int]) -> int:
    """Return the mask without these ids, as bits."""
    left = int.from_bytes(mask, "little")
    for each in ids:
        left &= ~(1 << each)
    return left


def _bad(grammar: Grammar, fault: str) -> InvalidRequest:
    has_lines = grammar.kind == "ebnf" and is_lark_syntax(grammar.text)
    return InvalidRequest(
        f"the grammar ({grammar.kind}) cannot be used: {plain_fault(fault, has_lines=has_lines)}"
    )


def on_deep_stack(work: Callable[[], T]) -> T:
    """`work()` on a thread of its own; raises what it raises, Overloaded when there is no room for a stack.

    Threads that others start meanwhile may get as much address space, of which they touch nothing.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  (the caller raises it)
            done.set_exception(error)

    with _stack_size_lock:
        before = threading.stack_size(COMPILER_STACK_BYTES)
        try:
            threading.Thread(target=run, name="grammar-compiler").start()
        except RuntimeError as error:
            raise Overloaded("there is no memory to compile a grammar; try again later") from error
        finally:
            threading.stack_size(before)
    return done.result()
