"""Defaults of a request that does not say: built in, over it the model's own, over it the configuration.

Each parameter by itself. The built-in values are those of OpenAI's interface.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.sampling.parameters import PARAMETERS

DEFAULTED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""The parameters that may have a default of the model or of the configuration."""
DEFAULT_MAX_TOKENS = 512
"""Longer than most answers, and an end to those that have none; `default_max_tokens` of a gateway."""
OPENAI = "openai"
"""Said in the configuration: the built-in values, whatever the model's makers say."""
BUILT_IN = "built in"
TOP_K_OFF = -1
"""The number that others write for no top-k."""


@dataclass(frozen=True, slots=True)
class SamplingDefault:
    """The value of one parameter for requests that have none; `source` is who says so."""

    name: str
    value: float
    source: str

    @property
    def in_force(self) -> int | float:
        """Return the value as a request has it that says the same: the contract's numbers are float32."""
        return int(self.value) if _is_integer(self.name) else _as_float32(self.value)

    @property
    def shown(self) -> int | float:
        """The value as it was said."""
        return int(self.value) if _is_integer(self.name) else self.value


def sampling_default(name: str, value: object, source: str) -> SamplingDefault:
    """Raises InvalidRequest for a value that no request could have."""
    bounds = PARAMETERS[name].bounds
    assert bounds is not None
    if isinstance(value, int | float) and bounds.hold(value):
        default = SamplingDefault(name, float(value), source)
        if bounds.hold(default.in_force):
            return default
    raise InvalidRequest(f"{source}: {name} is {repr(value)[:40]}, and has to be {bounds}")


def parse_default_sampling(words: Sequence[str], source: str) -> tuple[SamplingDefault, ...]:
    """Parse what the configuration says, as NAME=VALUE each; OPENAI stands for all that no other word is
    about.

    Raises InvalidRequest with the word that is wrong.
    """
    stated: dict[str, SamplingDefault] = {}
    for word in words:
        if word == OPENAI:
            continue
        name, _, text = (part.strip() for part in word.partition("="))
        if name not in DEFAULTED or not text:
            raise InvalidRequest(
                f"{source} has {word[:60]!r}: say {OPENAI}, or NAME=VALUE with one of {', '.join(DEFAULTED)}"
            )
        if name in stated:
            raise InvalidRequest(f"{source} says {name} twice: say it once")
        stated[name] = sampling_default(name, _number(name, text), source)
    others = DEFAULTED if OPENAI in words else ()
    whole = [stated.get(name) or _built_in(name, source) for name in others]
    return tuple(whole or stated.values())


def all_defaults(*layers: Iterable[SamplingDefault]) -> tuple[SamplingDefault, ...]:
    """One for each of DEFAULTED, in that order: of several layers the last one that has it counts."""
    found = {name: _built_in(name, BUILT_IN) for name in DEFAULTED}
    for layer in layers:
        found |= {each.name: each for each in layer if each.name in found}
    return tuple(found.values())


def _built_in(name: str, source: str) -> SamplingDefault:
    value = PARAMETERS[name].default
    assert isinstance(value, int | float)
    return SamplingDefault(name, float(value), source)


def _number(name: str, text: str) -> object:
    """The text itself where it is no number: the bounds refuse it by what it is."""
    try:
        return int(text) if _is_integer(name) else float(text)
    except ValueError:
        return text


def _is_integer(name: str) -> bool:
    bounds = PARAMETERS[name].bounds
    return bounds is not None and bounds.integer


def _as_float32(value: float) -> float:
    """The nearest float32, infinite where there is none."""
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.inf
    return float(rounded)
