"""What a request may ask of the sampler. Pure data: no torch here, so that edges can import it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.errors import InvalidRequest

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_STOP_TOKEN_IDS = 128
MAX_PENALTY = 2.0
MAX_OUTPUT_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a sequence ends.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. The repetition penalty covers
    prompt and output (1 is off); presence and frequency penalties cover the output only. logprobs:
    -1 none, 0 the chosen token's, n the n most likely ones too. Stop ids end the sequence and are
    part of its output.
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

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise InvalidRequest that names the first wrong field; ids are checked against `vocab_size`."""
        self._validate_ranges()
        self._validate_bias(vocab_size)
        self._validate_stops(vocab_size)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def filters(self) -> bool:
        """Whether top-k, top-p or min-p may rule ids out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def _validate_ranges(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
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
