"""A compiler of grammars that a test holds up: compiling goes on when the test says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from llguidance import LLMatcher, LLTokenizer

from shared.engine.sampling import grammar as grammar_module
from shared.engine.sampling.grammar_source import grammar_matcher
from shared.sampling.parameters import Grammar

PATTERNS_TOGETHER = Grammar(
    "json_schema", json.dumps({"type": "string", "allOf": [{"pattern": f".*a{n}.*"} for n in range(20)]})
)
"""841 bytes that take 37 s and 1.6 GiB to compile, all inside of the library."""


class HeldCompiler:
    def __init__(self, slow: Grammar) -> None:
        self._slow = slow
        self._build = grammar_matcher
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.compiled: list[Grammar] = []

    def matcher(self, tokenizer: LLTokenizer, grammar: Grammar, source: str) -> LLMatcher:
        self.compiled.append(grammar)
        if grammar == self._slow:
            self.begun.set()
            assert self.go_on.wait(60)
        return self._build(tokenizer, grammar, source)


@contextmanager
def held_compiler(slow: Grammar) -> Iterator[HeldCompiler]:
    """`slow` is compiled only from `go_on` on, which is set at the end."""
    held = HeldCompiler(slow)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar_module, "grammar_matcher", held.matcher)
        try:
            yield held
        finally:
            held.go_on.set()
