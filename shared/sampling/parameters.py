"""Every sampling parameter, said once: its default, its meaning and its bounds.

The gateway reads requests by this definition, messages carry it, the engine draws by it, and `penstock ask`
has its options from it. Pure data: no torch here, so that edges can import it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TypeVar

from shared.errors import InvalidRequest
from shared.sampling.thinking import ThinkingRule

T = TypeVar("T")

MIN_TEMPERATURE = 2.0**-17
"""Below it only 0, which is greedy."""
MAX_TOP_K = 2**31 - 1
"""The largest top_k."""
MAX_PENALTY = 2.0
"""The largest presence or frequency penalty, either way."""
MAX_LOGIT_BIAS = 100.0
"""The largest bias of a token, either way."""
MAX_LOGIT_BIAS_ENTRIES = 1024
"""The most tokens with a bias."""
MIN_SEED = -(2**63)
MAX_SEED = 2**64 - 1
"""The largest seed."""
MAX_OUTPUT_TOKENS = 2**31 - 1
"""The most tokens of an answer; the model's context ends it earlier."""
MAX_STOP_TOKEN_IDS = 128
"""The most tokens that end an answer."""
NO_LOGPROBS = -1
MAX_TOP_LOGPROBS = 20
"""The most alternatives of a token."""
MAX_ALLOWED_IDS = 1 << 14
"""The most tokens that an answer may be held to."""
MAX_BAD_WORDS = 256
"""The most forbidden sequences of tokens."""
MAX_BAD_WORD_TOKENS = 64
"""The longest of them."""
MAX_TOKEN_ID = 2**32 - 1
"""The largest token id that a request may name."""
MAX_GRAMMAR_BYTES = 1 << 16
"""The longest grammar, schema or pattern."""
JSON_WHITESPACE = r"[ \n\t]{0,24}"
"""The most spaces between JSON's tokens: a model may write them without end, and some do; enough for an
indented line."""
GRAMMAR_KINDS = ("json_schema", "regex", "ebnf", "json_object")
MAX_FINITE = sys.float_info.max
NAMED_AS_HERE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a number: from `low` (if `above_low`, above it) to `high`, or `also`, a value outside."""

    low: float
    high: float = MAX_FINITE
    integer: bool = False
    above_low: bool = False
    also: float | None = None

    def hold(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            return False
        if value == self.also:
            return True
        return self.low <= value <= self.high and not (self.above_low and value == self.low)

    def __str__(self) -> str:
        if self.integer:
            return f"an integer from {self.low} to {self.high}"
        also = "" if self.also is None else f"{self.also:g} or "
        least = f"above {self.low:g}" if self.above_low else f"of at least {self.low:g}"
        most = "" if self.high == MAX_FINITE else f" and at most {self.high:g}"
        return f"{also}a finite number {least}{most}"


BIAS_BOUNDS = Bounds(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """The meaning of a field of `SamplingParams`, and what it allows.

    `bounds` are those of its numbers (None: it is a flag, or made of token ids, which the vocabulary bounds).
    `most` is how many entries it may have, if it is a list.
    """

    default: object
    help: str
    bounds: Bounds | None
    most: int | None

    def check_entries(self, name: str, count: int) -> None:
        """Raise InvalidRequest where a list of that name has more entries than it may: it need not be read
        for that."""
        if self.most is not None and count > self.most:
            raise InvalidRequest(f"{name} has {count} entries: send at most {self.most}")


def parameter(
    default: T,
    help: str,  # noqa: A002 - the word every option library uses
    bounds: Bounds | None = None,
    *,
    most: int | None = None,
) -> T:
    """A dataclass field with its definition."""
    definition = Parameter(default, help, bounds, most)
    return dataclasses.field(default=default, metadata={"parameter": definition})


@dataclass(frozen=True)  # no slots: an engine's compiled grammar is one of these with more to it
class Grammar:
    """A grammar that the whole output has to match.

    kind "json_schema": `text` is the schema. "regex": a regular expression without look-around. "ebnf": a
    grammar in Lark's notation or in GBNF. "json_object": any JSON object; `text` is empty.
    """

    kind: str
    text: str = ""

    def validate(self, name: str = "grammar") -> None:
        """Raise InvalidRequest for an unknown kind or a wrong size; the text itself is for the engine."""
        if self.kind not in GRAMMAR_KINDS:
            raise InvalidRequest(
                f"{name} has kind {str(self.kind)[:40]!r}: send one of {', '.join(GRAMMAR_KINDS)}"
            )
        if not isinstance(self.text, str):
            raise InvalidRequest(f"{name} has a text of type {type(self.text).__name__}: send a string")
        size = len(self.text.encode(errors="replace"))
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"{name} has {size} bytes: send at most {MAX_GRAMMAR_BYTES}")
        if self.kind == "json_object" and self.text:
            raise InvalidRequest(f"{name} has {size} bytes: kind json_object takes no text")
        if self.kind != "json_object" and not self.text:
            raise InvalidRequest(f"{name} is empty: kind {self.kind} takes a text")


FILTERS = ("top_k", "top_p", "min_p")
"""Parameters that leave the likeliest ids of a row, in the order in which they apply. Both samplers of the
engine, that in torch operations and that in C++, have each of them."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters by which tokens are drawn and a sequence ends.

    Nothing but `allowed_ids` is drawn, when there are any: put the end of sequence among them if it may
    end. The output never contains one of `bad_words` (sequences of ids). With a `grammar` the output
    matches it, if it is not cut by max_tokens or a stop id, and ends where nothing may follow: min_tokens
    and ignore_eos hold only while the grammar leaves another choice. Where all of it together leaves
    nothing to draw, the sequence ends with finish reason "error".

    logprobs and prompt_logprobs are NO_LOGPROBS where none are wanted.
    """

    temperature: float = parameter(
        1.0, "0 is greedy, 1 draws as the model says", Bounds(MIN_TEMPERATURE, also=0.0)
    )
    top_k: int = parameter(0, "keep the k likeliest tokens; 0 is off", Bounds(0, MAX_TOP_K, integer=True))
    top_p: float = parameter(
        1.0,
        "keep the likeliest tokens that reach this probability; 1 is off",
        Bounds(0.0, 1.0, above_low=True),
    )
    min_p: float = parameter(
        0.0, "drop tokens less likely than this share of the likeliest; 0 is off", Bounds(0.0, 1.0)
    )
    repetition_penalty: float = parameter(
        1.0, "above 1 makes tokens of prompt and output less likely; 1 is off", Bounds(0.0, above_low=True)
    )
    presence_penalty: float = parameter(
        0.0, "above 0 makes tokens of the output less likely; 0 is off", Bounds(-MAX_PENALTY, MAX_PENALTY)
    )
    frequency_penalty: float = parameter(
        0.0, "the same, for each time that they occur; 0 is off", Bounds(-MAX_PENALTY, MAX_PENALTY)
    )
    logit_bias: tuple[tuple[int, float], ...] = parameter(
        (),
        "pairs of a token id and what is added to its logit",
        BIAS_BOUNDS,
        most=MAX_LOGIT_BIAS_ENTRIES,
    )
    seed: int = parameter(0, "same seed, same text", Bounds(MIN_SEED, MAX_SEED, integer=True))
    max_tokens: int = parameter(128, "end after this many tokens", Bounds(1, MAX_OUTPUT_TOKENS, integer=True))
    min_tokens: int = parameter(
        0,
        "no end of sequence and no stop id before this many tokens",
        Bounds(0, MAX_OUTPUT_TOKENS, integer=True),
    )
    stop_token_ids: tuple[int, ...] = parameter(
        (), "ids that end the sequence and are part of its output", most=MAX_STOP_TOKEN_IDS
    )
    ignore_eos: bool = parameter(False, "go on after the model's end of sequence")
    logprobs: int = parameter(
        NO_LOGPROBS,
        "log-probabilities of the chosen tokens (0), or of the N likeliest too",
        Bounds(NO_LOGPROBS, MAX_TOP_LOGPROBS, integer=True),
    )
    allowed_ids: tuple[int, ...] = parameter((), "the only ids that are drawn, if any", most=MAX_ALLOWED_IDS)
    bad_words: tuple[tuple[int, ...], ...] = parameter(
        (), "sequences of ids that the output never contains", most=MAX_BAD_WORDS
    )
    grammar: Grammar | None = parameter(None, "what the whole output matches")  # noqa: RUF009 - a field too
    prompt_logprobs: int = parameter(
        NO_LOGPROBS,
        "as logprobs, of the prompt, all of which is then computed",
        Bounds(NO_LOGPROBS, MAX_TOP_LOGPROBS, integer=True),
    )
    thinking: ThinkingRule | None = parameter(  # noqa: RUF009 - a field too
        None, "how long the model may think, and that a grammar holds behind that alone"
    )

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def filters(self) -> bool:
        """True when one of FILTERS may rule ids out; written out, since every draw asks."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def validate(self, vocab_size: int | None = None, *, names: Mapping[str, str] = NAMED_AS_HERE) -> None:
        """Raise InvalidRequest that names the first wrong field; ids are checked against `vocab_size`.

        `names`: what a field is called in the sentence, where that is not its name here.
        """
        name_of = {**OWN_NAMES, **names} if names else OWN_NAMES
        for (name, definition), value in zip(PARAMETERS.items(), _values(self), strict=True):
            default = definition.default
            if value is not default and (value != default or type(value) is not type(default)):
                _check_value(name_of[name], value, definition)  # most stand as they were
        if self.logit_bias or self.stop_token_ids or self.allowed_ids or self.bad_words:
            ids = Bounds(0, MAX_TOKEN_ID if vocab_size is None else vocab_size - 1, integer=True)
            _check_bias(name_of["logit_bias"], self.logit_bias, ids)
            _check_ids(name_of["stop_token_ids"], self.stop_token_ids, ids)
            _check_ids(name_of["allowed_ids"], self.allowed_ids, ids)
            _check_words(name_of["bad_words"], self.bad_words, ids)
        if self.grammar is not None:
            self.grammar.validate(name_of["grammar"])
        if self.thinking is not None:
            self.thinking.validate(name_of["thinking"], vocab_size)
        self._check_together(name_of, vocab_size)

    def _check_together(self, name_of: Mapping[str, str], vocab_size: int | None) -> None:
        """Check fields together: what each allows, another may not."""
        min_tokens, max_tokens = name_of["min_tokens"], name_of["max_tokens"]
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"{min_tokens} {self.min_tokens} is above {max_tokens} {self.max_tokens}: "
                f"lower {min_tokens} or raise {max_tokens}"
            )
        stops, allowed = name_of["stop_token_ids"], name_of["allowed_ids"]
        if self.min_tokens and vocab_size is not None and len(set(self.stop_token_ids)) >= vocab_size:
            raise InvalidRequest(f"{min_tokens} cannot hold: {stops} is the whole vocabulary")
        if not self.allowed_ids:
            return
        left = set(self.allowed_ids) - {word[0] for word in self.bad_words if len(word) == 1}
        if not left:
            words = name_of["bad_words"]
            raise InvalidRequest(f"{words} rules out every one of {allowed}: nothing is left to draw")
        if self.min_tokens and left <= set(self.stop_token_ids):
            raise InvalidRequest(f"{min_tokens} cannot hold: all that is left of {allowed} is in {stops}")


PARAMETERS: dict[str, Parameter] = {
    field.name: field.metadata["parameter"] for field in dataclasses.fields(SamplingParams)
}
OWN_NAMES = {name: name for name in PARAMETERS}
_values = attrgetter(*PARAMETERS)
SCALARS = {name: each for name, each in PARAMETERS.items() if isinstance(each.default, bool | int | float)}
"""Numbers and flags: what the gateway and the command line read without knowing more of them."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token: its raw log-probability, and the `top` most likely (id, log-probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def _check_value(name: str, value: object, definition: Parameter) -> None:
    if definition.most is not None:
        if isinstance(value, Sized):
            definition.check_entries(name, len(value))
    elif definition.bounds is not None:
        if not definition.bounds.hold(value):
            raise InvalidRequest(f"{name} is {_shown(value)}: send {definition.bounds}")
    elif isinstance(definition.default, bool) and not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {_shown(value)}: send true or false")


def _check_bias(name: str, bias: Sequence[tuple[int, float]], ids: Bounds) -> None:
    _check_ids(name, [token_id for token_id, _ in bias], ids)
    for token_id, value in bias:
        if not BIAS_BOUNDS.hold(value):
            raise InvalidRequest(f"{name} of token {token_id} is {_shown(value)}: send {BIAS_BOUNDS}")
    if len(dict(bias)) != len(bias):
        raise InvalidRequest(f"{name} names an id twice: send each id once")


def _check_words(name: str, words: Sequence[Sequence[int]], ids: Bounds) -> None:
    for index, word in enumerate(words):
        check_word_length(f"{name}[{index}]", len(word))
        _check_ids(f"{name}[{index}]", word, ids)


def check_word_length(name: str, count: int) -> None:
    """Raise InvalidRequest for a bad word of no ids or too many."""
    if not 1 <= count <= MAX_BAD_WORD_TOKENS:
        raise InvalidRequest(f"{name} has {count} ids: send 1 to {MAX_BAD_WORD_TOKENS}")


def _check_ids(name: str, token_ids: Sequence[int], ids: Bounds) -> None:
    if set(map(type, token_ids)) == {int} and ids.low <= min(token_ids) and max(token_ids) <= ids.high:
        return  # thousands, on an event loop: one by one only to name the wrong one
    for token_id in token_ids:
        if not ids.hold(token_id):
            raise InvalidRequest(f"{name} holds {_shown(token_id)}: a token id is {ids}")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)[:40]
