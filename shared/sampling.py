"""What a request may ask of the sampler. Pure data: no torch here, so that edges can import it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest

MIN_TEMPERATURE = 2.0**-17
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_STOP_TOKEN_IDS = 128
MAX_PENALTY = 2.0
MAX_OUTPUT_TOKENS = 2**31 - 1
MAX_ALLOWED_IDS = 1 << 14
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_GRAMMAR_BYTES = 1 << 16
GRAMMAR_KINDS = ("json_schema", "regex", "ebnf", "json_object")


@dataclass(frozen=True)  # no slots: an engine's compiled grammar is one of these with more to it
class Grammar:
    """What the whole output has to match.

    kind "json_schema": `text` is the schema. "regex": a regular expression without look-around. "ebnf": a
    grammar in Lark's notation or in GBNF. "json_object": any JSON object; `text` is empty.
    """

    kind: str
    text: str = ""

    def validate(self) -> None:
        """Raise InvalidRequest for an unknown kind or a wrong size; the text itself is for the engine."""
        if self.kind not in GRAMMAR_KINDS:
            raise InvalidRequest(
                f"grammar has kind {str(self.kind)[:40]!r}; send one of {', '.join(GRAMMAR_KINDS)}"
            )
        if not isinstance(self.text, str):
            raise InvalidRequest(f"the grammar's text must be a string, not {type(self.text).__name__}")
        size = len(self.text.encode(errors="replace"))
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"the grammar has {size} bytes; send at most {MAX_GRAMMAR_BYTES}")
        if (self.kind == "json_object") != (not self.text):
            wanted = "no text" if self.kind == "json_object" else "a text"
            raise InvalidRequest(f"a grammar of kind {self.kind} takes {wanted}; see its documentation")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a sequence ends.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. The repetition penalty covers
    prompt and output (1 is off); presence and frequency penalties cover the output only. logprobs:
    -1 none, 0 the chosen token's, n the n most likely ones too; prompt_logprobs the same for the prompt,
    answered by `LLM.generate` alone. Stop ids end the sequence and are part of its output.

    Nothing but `allowed_ids` is drawn, when there are any: put the end of sequence among them if it may
    end. The output never contains one of `bad_words` (sequences of ids). With a `grammar` the output
    matches it, if it is not cut by max_tokens or a stop id, and ends where nothing may follow: min_tokens
    and ignore_eos hold only while the grammar leaves another choice. Where all of it together leaves
    nothing to draw, the sequence ends with finish reason "error".
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    max_tokens: int = 128
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = -1
    allowed_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    prompt_logprobs: int = -1

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise InvalidRequest that names the first wrong field; ids are checked against `vocab_size`."""
        self._validate_ranges()
        self._validate_bias(vocab_size)
        self._validate_stops(vocab_size)
        self._validate_words(vocab_size)
        if self.grammar is not None:
            self.grammar.validate()

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def filters(self) -> bool:
        """Whether top-k, top-p or min-p may rule ids out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def _validate_ranges(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequest(
                f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, not {self.temperature:g}"
            )
        _integer("top_k", self.top_k, 0, MAX_OUTPUT_TOKENS)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p must be above 0 and at most 1; use temperature 0 for greedy")
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf)
        if self.repetition_penalty == 0.0:
            raise InvalidRequest("repetition_penalty must be above 0; 1 turns it off")
        _number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _integer("seed", self.seed, -(2**63), 2**64 - 1)
        _integer("max_tokens", self.max_tokens, 1, MAX_OUTPUT_TOKENS)
        _integer("min_tokens", self.min_tokens, 0, MAX_OUTPUT_TOKENS)
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}; lower min_tokens"
            )
        _integer("logprobs", self.logprobs, -1, MAX_TOP_LOGPROBS)
        _integer("prompt_logprobs", self.prompt_logprobs, -1, MAX_TOP_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(f"ignore_eos must be true or false, not {self.ignore_eos!r}")

    def _validate_bias(self, vocab_size: int | None) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequest(f"logit_bias may name at most {MAX_LOGIT_BIAS_ENTRIES} ids; send fewer")
        for token_id, bias in self.logit_bias:
            _token_id("logit_bias", token_id, vocab_size)
            _number("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if len({token_id for token_id, _ in self.logit_bias}) != len(self.logit_bias):
            raise InvalidRequest("logit_bias names an id twice; send each id once")

    def _validate_stops(self, vocab_size: int | None) -> None:
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(f"stop_token_ids may hold at most {MAX_STOP_TOKEN_IDS} ids; send fewer")
        for token_id in self.stop_token_ids:
            _token_id("stop_token_ids", token_id, vocab_size)
        if self.min_tokens and vocab_size is not None and len(set(self.stop_token_ids)) >= vocab_size:
            raise InvalidRequest("min_tokens cannot hold when stop_token_ids is the whole vocabulary")

    def _validate_words(self, vocab_size: int | None) -> None:
        _sized("allowed_ids", self.allowed_ids, MAX_ALLOWED_IDS)
        for token_id in self.allowed_ids:
            _token_id("allowed_ids", token_id, vocab_size)
        _sized("bad_words", self.bad_words, MAX_BAD_WORDS)
        for word in self.bad_words:
            _sized("a sequence of bad_words", word, MAX_BAD_WORD_TOKENS)
            if not word:
                raise InvalidRequest("bad_words holds an empty sequence; leave it out")
            for token_id in word:
                _token_id("bad_words", token_id, vocab_size)
        if not self.allowed_ids:
            return
        left = set(self.allowed_ids) - {word[0] for word in self.bad_words if len(word) == 1}
        if not left:
            raise InvalidRequest("bad_words rule out every one of allowed_ids; nothing is left to draw")
        if self.min_tokens and left <= set(self.stop_token_ids):
            raise InvalidRequest("min_tokens cannot hold: all allowed_ids that are left are stop_token_ids")


def _number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or not low <= value <= high:
        bound = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise InvalidRequest(f"{name} must be a finite number {bound}, not {value!r}")


def _integer(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, not {value}")


def _token_id(name: str, value: int, vocab_size: int | None) -> None:
    _integer(name, value, 0, 2**32 - 1 if vocab_size is None else vocab_size - 1)


def _sized(name: str, values: Sequence[object], most: int) -> None:
    if len(values) > most:
        raise InvalidRequest(f"{name} may hold at most {most} entries, not {len(values)}; send fewer")
