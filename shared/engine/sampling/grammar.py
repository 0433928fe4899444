"""Structured output: which ids keep the output within a grammar. No torch here.

The parsing is llguidance's. A grammar is compiled once per engine and copied for every sequence; the copy
walks along with the sequence's tokens. It holds nothing that the tokens cannot rebuild. Compiling may take
half a second, so whoever serves many does it in another thread than the steps; the library lets go of
Python's lock meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLTokenizer

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.loading.tokenizer_file import read_tokenizer_json
from shared.engine.sampling.grammar_cache import GrammarCache
from shared.engine.sampling.grammar_source import (
    MAX_FAULT_CHARS,
    grammar_matcher,
    grammar_source,
    on_deep_stack,
)
from shared.engine.sampling.id_bits import IdBits, from_bytes, has_id
from shared.errors import InvalidRequest, Overloaded
from shared.sampling.parameters import Grammar

MAX_CACHED_GRAMMARS = 32
"""The most compiled grammars that an engine keeps."""


class Matchers:
    """Makes matchers of one grammar. Its copies share what their lexer learns from one mask to the next, and
    that is bounded: who finds it full takes one of its own, and later copies begin anew."""

    def __init__(self, build: Callable[[], LLMatcher]) -> None:
        self._build = build
        self._first: LLMatcher | None = build()  # never moved: copied

    def copy(self) -> LLMatcher:
        if self._first is None:
            self._first = self._build()
        return self._first.deep_copy()

    def own(self) -> LLMatcher:
        self._first = None
        return self._build()


@dataclass(frozen=True)
class CompiledGrammar(Grammar):
    """A grammar that this engine's model can be held to; `eos_ids` may follow a complete output."""

    matchers: Matchers = field(kw_only=True, compare=False, repr=False)
    vocab_size: int = field(kw_only=True)
    eos_ids: tuple[int, ...] = field(kw_only=True)


class Grammars:
    """Compiles grammars for the model at `model_dir`, whose tokenizer.json is read at the first one unless
    `prepare` has been called. Of one model and one tokenizer, so the cache goes by content alone.

    Any thread may compile, one at a time.
    """

    def __init__(
        self, model_dir: str, vocab_size: int, eos_ids: Sequence[int], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._model = model_dir
        self._clock = clock
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: GrammarCache[CompiledGrammar] = GrammarCache(MAX_CACHED_GRAMMARS)
        self._cache_lock = threading.Lock()

    def prepare(self) -> None:
        """Read the tokenizer now. Seconds long for a large vocabulary, and it holds Python's lock: nothing
        else moves meanwhile. Without a usable one there is nothing to do; each grammar will say why."""
        with contextlib.suppress(InvalidRequest):
            self._tokenizer = self._tokenizer or self._load_tokenizer()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """One that is compiled already is returned as it is.

        Raises InvalidRequest that says what is wrong with the grammar, or that there is no tokenizer.
        """
        if isinstance(grammar, CompiledGrammar):
            return grammar
        grammar.validate()
        compiled = self.cached(grammar)
        if compiled is None:
            tokenizer = self._tokenizer = self._tokenizer or self._load_tokenizer()
            began_s = self._clock.monotonic_s()
            compiled = self._compile(grammar, tokenizer)
            cost_s = self._clock.monotonic_s() - began_s
            with self._cache_lock:
                self._compiled.put(grammar, compiled, cost_s)
        return compiled

    def cached(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return what is compiled and kept, None when it has to be compiled."""
        with self._cache_lock:
            return self._compiled.get(grammar)

    def _compile(self, grammar: Grammar, tokenizer: LLTokenizer) -> CompiledGrammar:
        source = on_deep_stack(lambda: grammar_source(grammar))  # once: a matcher may be built in mid-step
        return CompiledGrammar(
            grammar.kind,
            grammar.text,
            matchers=Matchers(lambda: on_deep_stack(lambda: grammar_matcher(tokenizer, grammar, source))),
            vocab_size=self._vocab_size,
            eos_ids=tuple(tokenizer.eos_tokens),
        )

    def _load_tokenizer(self) -> LLTokenizer:
        """Ids that the model has beyond the tokenizer's are in no mask."""
        spec = read_tokenizer_json(self._model)
        if spec is None:
            raise InvalidRequest("this model has no tokenizer.json, so it takes no grammar; leave it out")
        try:
            return LLTokenizer(spec, n_vocab=self._vocab_size, eos_token=self._eos_ids or None)
        except ValueError as error:
            raise InvalidRequest(
                f"this model's tokenizer cannot be used with a grammar: {str(error)[:MAX_FAULT_CHARS]}"
            ) from error


class GrammarState:
    """The state of one sequence's output in its grammar."""

    def __init__(self, grammar: CompiledGrammar, output_ids: Sequence[int] = ()) -> None:
        """Raises InvalidRequest when `output_ids` leave the grammar or complete it."""
        self.eos_ids = grammar.eos_ids
        self._vocab_size = grammar.vocab_size
        self._matchers = grammar.matchers
        self._matcher = grammar.matchers.copy()
        self._is_own = False
        self._output_ids = list(output_ids)
        taken = self._matcher.try_consume_tokens(self._output_ids)
        if self._matcher.is_error():
            self._take_own(())
        elif taken < len(output_ids):
            raise InvalidRequest(f"id {output_ids[taken]}, output {taken}, does not follow the grammar")
        if output_ids and self._matcher.is_stopped():
            raise InvalidRequest("the output completes the grammar; nothing is left to draw")

    def masks(self, drafts: Sequence[int]) -> list[IdBits | None]:
        """The ids that may come next: now, then after each of `drafts`.

        None behind a draft that cannot be kept, where it does not matter what is drawn. A mask without any
        id says that the grammar has become too complex to go on.
        """
        mask = self._mask(())
        masks: list[IdBits | None] = [mask]
        for place, draft in enumerate(drafts):
            if draft in self.eos_ids or not has_id(mask, draft):
                break
            self._matcher.consume_token(draft)
            mask = self._mask(drafts[: place + 1])
            masks.append(mask)
        self._matcher.rollback(len(masks) - 1)
        return masks + [None] * (len(drafts) + 1 - len(masks))

    def advance(self, token_id: int) -> bool:
        """Take in a drawn id, which no end id is. True when nothing but the end may follow it."""
        self._output_ids.append(token_id)
        self._matcher.consume_token(token_id)
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def _mask(self, drafts: Sequence[int]) -> IdBits:
        """Return the mask of the matcher as it stands, behind output and `drafts`."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error() and not self._is_own:
            self._take_own(drafts)
            bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            return from_bytes(b"", self._vocab_size)
        return from_bytes(bits, self._vocab_size)

    def _take_own(self, drafts: Sequence[int]) -> None:
        """The shared lexer may be full: go on with an empty one. If that fails, the fault is here."""
        self._is_own = True
        try:
            self._matcher = self._matchers.own()
        except Overloaded:
            return  # the broken one says so in its next mask
        self._matcher.consume_tokens([*self._output_ids, *drafts])
