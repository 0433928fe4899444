"""Sampling options of a request: defaults filled in, every limit checked, nothing clamped."""

from __future__ import annotations

import math

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.messages import Grammar, Sampling

MIN_TEMPERATURE = 2.0**-17
"""Below it only 0, which is greedy."""
MAX_TEMPERATURE = 100.0
MAX_TOP_K = 1 << 20
MAX_REPETITION_PENALTY = 100.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_TOKENS = 1 << 20
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_ALLOWED_IDS = 1 << 14
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_GRAMMAR_BYTES = 1 << 16
NO_LOGPROBS = -1
DEFAULT_MAX_TOKENS = 128


def validate_sampling(options: pb.Sampling, *, drawn_seed: int) -> Sampling:
    """The options on the bus; raises InvalidRequest that names the field and what is allowed.

    `drawn_seed` is used when the request sets no seed, so that the answer can be had again.
    """
    max_tokens = _integer(options, "max_tokens", DEFAULT_MAX_TOKENS, 1, MAX_TOKENS)
    min_tokens = _integer(options, "min_tokens", 0, 0, MAX_TOKENS)
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"sampling.min_tokens {min_tokens} is above sampling.max_tokens {max_tokens}: "
            "lower min_tokens or raise max_tokens"
        )
    return Sampling(
        temperature=_temperature(options),
        top_k=_integer(options, "top_k", 0, 0, MAX_TOP_K),
        top_p=_number(options, "top_p", 1.0, 0.0, 1.0, above_low=True),
        min_p=_number(options, "min_p", 0.0, 0.0, 1.0),
        repetition_penalty=_number(
            options, "repetition_penalty", 1.0, 0.0, MAX_REPETITION_PENALTY, above_low=True
        ),
        presence_penalty=_number(options, "presence_penalty", 0.0, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=_number(options, "frequency_penalty", 0.0, -MAX_PENALTY, MAX_PENALTY),
        logit_bias=_logit_bias(options),
        seed=options.seed if options.HasField("seed") else drawn_seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=_stop_token_ids(options),
        ignore_eos=options.ignore_eos,
        logprobs=_integer(options, "logprobs", NO_LOGPROBS, 0, MAX_LOGPROBS),
        allowed_ids=_allowed_ids(options),
        bad_words=_bad_words(options),
        grammar=_grammar(options),
    )


def _temperature(options: pb.Sampling) -> float:
    temperature = _number(options, "temperature", 1.0, 0.0, MAX_TEMPERATURE)
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise InvalidRequest(
            f"sampling.temperature is {temperature:g}: send 0 for greedy, or at least {MIN_TEMPERATURE:g}"
        )
    return temperature


def _number(
    options: pb.Sampling, name: str, default: float, low: float, high: float, *, above_low: bool = False
) -> float:
    if not options.HasField(name):
        return default
    value = float(getattr(options, name))
    if not math.isfinite(value) or not low <= value <= high or (above_low and value == low):
        least = "above" if above_low else "at least"
        raise InvalidRequest(
            f"sampling.{name} is {value:g}: send a finite number {least} {low:g} and at most {high:g}"
        )
    return value


def _integer(options: pb.Sampling, name: str, default: int, low: int, high: int) -> int:
    if not options.HasField(name):
        return default
    value = int(getattr(options, name))
    if not low <= value <= high:
        raise InvalidRequest(f"sampling.{name} is {value}: send an integer from {low} to {high}")
    return value


def _logit_bias(options: pb.Sampling) -> tuple[tuple[int, float], ...]:
    entries = tuple(sorted(options.logit_bias.items()))
    if len(entries) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidRequest(
            f"sampling.logit_bias has {len(entries)} entries: send at most {MAX_LOGIT_BIAS_ENTRIES}"
        )
    for token_id, bias in entries:
        if not math.isfinite(bias) or abs(bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"sampling.logit_bias of token {token_id} is {bias:g}: "
                f"send a finite number from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}"
            )
    return entries


def _stop_token_ids(options: pb.Sampling) -> tuple[int, ...]:
    if len(options.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"sampling.stop_token_ids has {len(options.stop_token_ids)} ids: "
            f"send at most {MAX_STOP_TOKEN_IDS}"
        )
    return tuple(dict.fromkeys(options.stop_token_ids))


def _allowed_ids(options: pb.Sampling) -> tuple[int, ...]:
    if len(options.allowed_token_ids) > MAX_ALLOWED_IDS:
        raise InvalidRequest(
            f"sampling.allowed_token_ids has {len(options.allowed_token_ids)} ids: "
            f"send at most {MAX_ALLOWED_IDS}"
        )
    return tuple(dict.fromkeys(options.allowed_token_ids))


def _bad_words(options: pb.Sampling) -> tuple[tuple[int, ...], ...]:
    if len(options.bad_word_ids) > MAX_BAD_WORDS:
        raise InvalidRequest(
            f"sampling.bad_word_ids has {len(options.bad_word_ids)} sequences: send at most {MAX_BAD_WORDS}"
        )
    for index, word in enumerate(options.bad_word_ids):
        if not 1 <= len(word.ids) <= MAX_BAD_WORD_TOKENS:
            raise InvalidRequest(
                f"sampling.bad_word_ids[{index}] has {len(word.ids)} ids: send 1 to {MAX_BAD_WORD_TOKENS}"
            )
    return tuple(dict.fromkeys(tuple(word.ids) for word in options.bad_word_ids))


def _grammar(options: pb.Sampling) -> Grammar | None:
    """Limits alone: whether the grammar is one is for the workers, which have the tokenizer, to say."""
    name = options.WhichOneof("constraint")
    if name is None:
        return None
    if name == "json_object":
        return Grammar("json_object", "") if options.json_object else None
    text: str = getattr(options, name)
    size = len(text.encode())
    if not 1 <= size <= MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"sampling.{name} has {size} bytes: send 1 to {MAX_GRAMMAR_BYTES}")
    return Grammar("ebnf" if name == "grammar" else name, text)
