"""Structured output: which ids keep the output within a grammar. No torch here.

The parsing is llguidance's. A grammar is compiled once per engine and copied for every sequence; the copy
walks along with the sequence's tokens. It holds nothing that the tokens cannot rebuild. Compiling may take
half a second and a mask a tenth of one, so whoever serves many does both in other threads than the steps; the
library lets go of Python's lock meanwhile, but not while it takes in tokens.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLTokenizer

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.loading.tokenizer_file import read_tokenizer_json
from shared.engine.sampling.grammar_cache import GrammarCache
from shared.engine.sampling.grammar_faults import MAX_FAULT_CHARS
from shared.engine.sampling.grammar_source import grammar_matcher, grammar_source, on_deep_stack
from shared.engine.sampling.id_bits import IdBits, from_bytes, has_id
from shared.engine.sampling.lock_time import ORDINARY_S, LockTime
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar

MAX_CACHED_GRAMMARS = 32
"""The most compiled grammars that an engine keeps."""
REPLAYED_AT_ONCE = 16
"""The library keeps Python's lock while it takes in tokens: for so many, up to 2 ms, nothing else moves.
After a piece that took longer the next ones have a token each."""
MAX_LOCKED_S = 0.1
"""The CPU time for which all tokens of a sequence may keep Python's lock, of those that keep it for longer
than is ordinary. Grammars by which an output has many readings took 0.2 s for each token."""


class Matchers:
    """Makes matchers of one grammar. Its copies share what their lexer learns from one mask to the next, and
    that is bounded: who finds it full takes one of its own, and later copies begin anew.

    A copy is moved under `lock` alone: the library would wait for another copy's mask with Python's lock in
    its hand, and the whole process with it.
    """

    def __init__(self, build: Callable[[], LLMatcher]) -> None:
        self._build = build
        self._first: LLMatcher | None = build()  # never moved: copied
        self.lock = threading.RLock()

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

    Any thread may compile, several at a time.
    """

    def __init__(
        self, model_dir: str, vocab_size: int, eos_ids: Sequence[int], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._model = model_dir
        self._clock = clock
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()
        self._compiled: GrammarCache[CompiledGrammar] = GrammarCache(MAX_CACHED_GRAMMARS)
        self._cache_lock = threading.Lock()

    def prepare(self) -> None:
        """Read the tokenizer now. Seconds long for a large vocabulary, and it holds Python's lock: nothing
        else moves meanwhile. Without a usable one there is nothing to do; each grammar will say why."""
        with contextlib.suppress(InvalidRequest):
            self._get_tokenizer()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """One that is compiled already is returned as it is.

        Raises InvalidRequest that says what is wrong with the grammar, or that there is no tokenizer.
        """
        if isinstance(grammar, CompiledGrammar):
            return grammar
        grammar.validate()
        compiled = self.cached(grammar)
        if compiled is None:
            tokenizer = self._get_tokenizer()
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
        source = on_deep_stack(lambda: grammar_source(grammar))  # once: a matcher may be built anew
        return CompiledGrammar(
            grammar.kind,
            grammar.text,
            matchers=Matchers(lambda: on_deep_stack(lambda: grammar_matcher(tokenizer, grammar, source))),
            vocab_size=self._vocab_size,
            eos_ids=tuple(tokenizer.eos_tokens),
        )

    def _get_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            self._tokenizer = self._tokenizer or self._load_tokenizer()
            return self._tokenizer

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
    """The state of one sequence's output in its grammar.

    `open_matcher` and `masks` may take long, and are for another thread than the steps; nothing else may be
    called meanwhile. Whoever calls `advance` holds the `lock`.
    """

    def __init__(self, grammar: CompiledGrammar, output_ids: Sequence[int] = ()) -> None:
        self.eos_ids = grammar.eos_ids
        self.kind = grammar.kind
        self._vocab_size = grammar.vocab_size
        self._matchers = grammar.matchers
        self.lock = grammar.matchers.lock
        self.is_blocked = False
        """It waits for another sequence of the same grammar."""
        self._matcher: LLMatcher | None = None
        self._is_own = False
        self._lock_time = LockTime()
        self._output_ids = list(output_ids)
        self._next_mask: IdBits | None = None
        self.masks_begun = 0
        """The masks that the last call of `masks` has come to."""
        self.failed_at: int | None = None
        """The place of the mask at which that call found the grammar too complex; it has no id."""

    def open_matcher(self) -> LLMatcher:
        """Come to where the output is. Raises InvalidRequest when that leaves the grammar or completes it,
        Overloaded without memory."""
        if self._matcher is None:
            with self._locked():
                matcher = self._matchers.copy()
            self._matcher = self._replay(matcher)
        return self._matcher

    def masks(self, drafts: Sequence[int]) -> list[IdBits | None]:
        """The ids that may come next: now, then after each of `drafts`.

        None behind a draft that cannot be kept, where it does not matter what is drawn. Raises InvalidRequest
        where the grammar has become too complex to go on, and what `open_matcher` raises.
        """
        self.masks_begun, self.failed_at = 0, None
        self.open_matcher()
        if self._next_mask is None:
            self._next_mask = self._mask(())
        mask: IdBits | None = self._next_mask
        if mask is None:
            raise self.too_complex()
        masks: list[IdBits | None] = [mask]
        for place, draft in enumerate(drafts):
            if draft in self.eos_ids or not has_id(mask, draft):
                break
            self._consume(draft)
            mask = self._mask(drafts[: place + 1])
            if mask is None:  # where it matters only if all these drafts are right
                self.failed_at = len(masks)
                masks.append(from_bytes(b"", self._vocab_size))
                break
            masks.append(mask)
        self._go_back(len(masks) - 1)
        return masks + [None] * (len(drafts) + 1 - len(masks))

    def advance(self, token_id: int) -> bool:
        """Take in a drawn id, which no end id is. True when nothing but the end may follow it."""
        matcher = self.open_matcher()
        self._output_ids.append(token_id)
        self._next_mask = None
        with self._lock_time.counted():
            matcher.consume_token(token_id)
        return bool(matcher.is_stopped() and not matcher.is_error())

    @property
    def has_held_up_others(self) -> bool:
        """Return whether its tokens have kept Python's lock for longer than those of one sequence may."""
        return self._lock_time.spent_s > MAX_LOCKED_S

    def holds_up_others(self) -> InvalidRequest:
        return self.too_complex(
            f"to take in what was drawn has kept all others waiting for over {1000 * MAX_LOCKED_S:.0f} ms"
        )

    def too_complex(self, why: str = "the output has come to where too much may follow") -> InvalidRequest:
        return InvalidRequest(f"the grammar ({self.kind}) is too complex: {why}; simplify it")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.lock.acquire(blocking=False):
            self.is_blocked = True
            self.lock.acquire()
            self.is_blocked = False
        try:
            yield
        finally:
            self.lock.release()

    def _replay(self, matcher: LLMatcher, at_once: int = REPLAYED_AT_ONCE) -> LLMatcher:
        """Let a new matcher take in the output.

        What its lexer may compute is counted from mask to mask, and what is too much for it, it does not take
        and calls no error. So it has masks between, and at first trouble an empty lexer takes one id at a
        time, as they were drawn: what is not taken then is wrong.
        """
        ids = self._output_ids
        for start, piece in self._pieces(ids, at_once):
            with self._locked():
                matcher.compute_bitmask()
                with self._lock_time.counted():
                    taken = matcher.try_consume_tokens(piece)
            if taken < len(piece) or matcher.is_error():
                if at_once > 1:
                    return self._replay(self._take_own(), at_once=1)
                if matcher.is_error():
                    return matcher  # which its first mask will say
                raise InvalidRequest(
                    f"id {piece[taken]}, output {start + taken}, does not follow the grammar"
                )
        if ids and matcher.is_stopped():
            raise InvalidRequest("the output completes the grammar; nothing is left to draw")
        return matcher

    def _mask(self, drafts: Sequence[int]) -> IdBits | None:
        """Return the mask of the matcher as it stands, behind output and `drafts`; None if too complex."""
        assert self._matcher is not None
        self.masks_begun += 1
        with self._locked():
            bits = self._matcher.compute_bitmask()
        if not self._is_own and _fails_by_lexer(self._matcher):
            self._matcher = self._own_matcher(drafts)
            with self._locked():
                bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            return None
        return from_bytes(bits, self._vocab_size)

    def _consume(self, draft: int) -> None:
        assert self._matcher is not None
        with self._locked(), self._lock_time.counted():
            self._matcher.consume_token(draft)

    def _go_back(self, num_drafts: int) -> None:
        """Forget the drafts. A matcher that has failed over them is of no use any more."""
        assert self._matcher is not None
        if self.failed_at is not None:
            self._matcher, self._is_own, self.lock = None, False, self._matchers.lock
            self.open_matcher()
        else:
            self._matcher.rollback(num_drafts)

    def _own_matcher(self, drafts: Sequence[int]) -> LLMatcher:
        """The shared lexer may be full: go on with an empty one. If that fails, the fault is here."""
        matcher = self._replay(self._take_own())
        for draft in drafts:
            matcher.compute_bitmask()
            with self._lock_time.counted():
                matcher.consume_token(draft)
        return matcher

    def _take_own(self) -> LLMatcher:
        self._is_own = True
        self.lock = threading.RLock()
        return self._matchers.own()

    def _pieces(self, ids: Sequence[int], at_once: int) -> Iterator[tuple[int, list[int]]]:
        """Cut ids into pieces of `at_once` at most: (place of the first, ids). Raises InvalidRequest where
        those before have held up others for too long."""
        start, length = 0, at_once
        while start < len(ids):
            piece = list(ids[start : start + length])
            yield start, piece
            if self.has_held_up_others:
                raise self.holds_up_others()
            start += len(piece)
            length = 1 if self._lock_time.last_s > 2 * ORDINARY_S else at_once


def _fails_by_lexer(matcher: LLMatcher) -> bool:
    """Return whether an empty lexer might do: the parser is every copy's own."""
    return matcher.is_error() and "lexer error" in matcher.get_error()
