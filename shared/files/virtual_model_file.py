"""The file of virtual model names: each is a table, with its rules in the order in which they are tried.

    [auto]                            # what clients send as the model
    fallback = ["large", "small"]     # where the chosen model is shed, down or too slow, the next of these
    max_ttft_ms = 800                 # passed over where the first token is predicted later
    classifier = "hard.safetensors"   # of `penstock router train`, for hard_above and hard_below

    [[auto.rules]]
    name = "paying"                   # in answers, logs and metrics; without it its number
    tenants = ["acme"]                # every condition of a rule has to hold
    min_tokens = 2000
    to = "large"

    [[auto.rules]]
    to = { small = 95, small-next = 5 }   # by share; the last rule has no conditions
    cascade = { to = "large", min_logprob = -0.7 }   # answers anew where the mean of the tokens is below that

What each condition means is said in `shared/files/virtual_model.py`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded_text
from shared.files.virtual_model import (
    ALWAYS,
    FORMATS,
    LANGUAGES,
    PRIORITIES,
    Cascade,
    ModelRule,
    ModelShare,
    RuleConditions,
    TtftBound,
    VirtualModel,
)

MAX_FILE_BYTES = 1 << 20
"""The longest file of virtual model names."""
MAX_VIRTUAL_MODELS = 32
"""The most virtual names of a gateway."""
MAX_RULES = 64
"""The most rules of a virtual name."""
MAX_SHARES = 8
"""The most models that one rule divides requests among."""
MAX_FALLBACKS = 8
"""The most models that a request may fall back to."""
MAX_LISTED_VALUES = 256
"""The most values that a condition lists."""
MAX_MODEL_CHARS = 256
"""The longest name of a model in the file."""
MAX_BOUND = 1_000_000_000
"""The greatest number in a condition."""
LEAST_LOGPROB = -100.0
MAX_SHARE = 1_000_000.0
"""The greatest share of a model; only the ratio of shares counts."""

VIRTUAL_NAME = r"[a-z0-9][a-z0-9._-]{0,62}"
"""The names that a virtual model or a rule may have: they are labels of metrics."""
_NAME = re.compile(VIRTUAL_NAME)
_OWN = ("rules", "fallback", "max_ttft_ms", "classifier")
_CONDITIONS = tuple(field.name for field in fields(RuleConditions))
_NUMBERS = tuple(name for name in _CONDITIONS if name.startswith(("min_", "max_")))
_WORDS = {"priorities": PRIORITIES, "formats": FORMATS, "languages": LANGUAGES}
_HARD = ("hard_above", "hard_below")
_TTFT = ("ttft_above", "ttft_below")
_OF_RULE = ("name", "to", "fallback", "cascade", *_CONDITIONS)


def load_virtual_models(path: Path) -> tuple[VirtualModel, ...]:
    """Read the file. Raises InvalidRequest with what is wrong, where, and what to do."""
    text = read_bounded_text(path, MAX_FILE_BYTES, f"the file of virtual models {path}")
    return parse_virtual_models(text, path)


def parse_virtual_models(text: str, source: Path) -> tuple[VirtualModel, ...]:
    """Parse all virtual names of a file. Raises InvalidRequest naming `source`, the name and its rule."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the virtual models {source} are not TOML: {error}") from error
    if not 1 <= len(tables) <= MAX_VIRTUAL_MODELS:
        raise InvalidRequest(
            f"{source} has {len(tables)} virtual names: write 1 to {MAX_VIRTUAL_MODELS}, each as a table "
            "[NAME]"
        )
    models = tuple(_virtual_model(name, table, source) for name, table in tables.items())
    for model in models:
        both = sorted({*model.targets} & {*tables})
        if both:
            raise InvalidRequest(
                f"{source}: [{model.name}] sends requests to {both[0]}, which is a virtual name too: name a "
                "model that is served"
            )
    return models


def _virtual_model(name: str, table: Any, source: Path) -> VirtualModel:
    place = f"{source}: [{name}]"
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{source}: a virtual name is 1 to 63 of a-z, 0-9, '.', '_', '-', beginning with a letter or "
            f"digit, and {name[:80]!r} is not"
        )
    if not isinstance(table, dict):
        raise InvalidRequest(f"{source}: {name} is no table: write [{name}] and its rules below that")
    _check_names(table, _OWN, place)
    entries = table.get("rules")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest(f"{place} has no rules: write [[{name}.rules]] above each")
    if not 1 <= len(entries) <= MAX_RULES:
        raise InvalidRequest(f"{place} has {len(entries)} rules: write 1 to {MAX_RULES}")
    model = VirtualModel(
        name,
        tuple(_rule(entry, number, place) for number, entry in enumerate(entries, start=1)),
        _fallback(table, place) or (),
        _ttft_limit(table, place),
        _classifier(table, place, source),
    )
    _check_rules(model, place)
    return model


def _check_rules(model: VirtualModel, place: str) -> None:
    names = [rule.name for rule in model.rules]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise InvalidRequest(f"{place} has two rules called {twice}: give each a name of its own")
    if model.rules[-1].conditions != ALWAYS:
        raise InvalidRequest(
            f"{place} has conditions in its last rule: end with a rule that has `to` alone, for all other "
            "requests"
        )
    for rule in model.rules[:-1]:
        if rule.conditions == ALWAYS:
            raise InvalidRequest(
                f"{place} rule {rule.name} has no conditions, so no rule below it counts: move it to the end"
            )
        if rule.conditions.asks_classifier and not model.classifier:
            raise InvalidRequest(
                f"{place} rule {rule.name} asks how hard the question is: set classifier to a file of "
                "`penstock router train`"
            )


def _rule(entry: dict[str, Any], number: int, place: str) -> ModelRule:
    place = f"{place} rule {number}"
    _check_names(entry, _OF_RULE, place)
    name = entry.get("name", str(number))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{place} has a wrong name: it must be 1 to 63 of a-z, 0-9, '.', '_', '-', beginning with a "
            "letter or digit"
        )
    return ModelRule(
        name,
        _shares(entry, place),
        _conditions(entry, place),
        _fallback(entry, place),
        _cascade(entry, place),
    )


def _conditions(entry: dict[str, Any], place: str) -> RuleConditions:
    values: dict[str, Any] = {name: _number(entry, name, place) for name in _NUMBERS if name in entry}
    values |= {name: _words(entry, name, place, _WORDS[name]) for name in _WORDS if name in entry}
    values |= {name: _probability(entry, name, place) for name in _HARD if name in entry}
    values |= {name: _bounds(entry, name, place) for name in _TTFT if name in entry}
    if "tenants" in entry:
        values["tenants"] = _words(entry, "tenants", place, None)
    if "tools" in entry:
        if type(entry["tools"]) is not bool:
            raise InvalidRequest(f"{place} has a wrong tools: it must be true or false")
        values["tools"] = entry["tools"]
    return RuleConditions(**values)


def _shares(entry: dict[str, Any], place: str) -> tuple[ModelShare, ...]:
    to = entry.get("to")
    if isinstance(to, str):
        to = {to: 1.0}
    if not isinstance(to, dict) or not 1 <= len(to) <= MAX_SHARES:
        raise InvalidRequest(
            f"{place} has no right `to`: write a model, or 1 to {MAX_SHARES} of them with their shares, as "
            "in { small = 95, large = 5 }"
        )
    for model, share in to.items():
        _check_model(model, "to", place)
        if not _is_number(share) or not 0 <= share <= MAX_SHARE:
            raise InvalidRequest(
                f"{place} has a wrong share of {model}: it must be a number from 0 to 1000000"
            )
    if not any(to.values()):
        raise InvalidRequest(f"{place} has no share above 0: give one model some")
    return tuple(ModelShare(model, float(share)) for model, share in to.items())


def _fallback(entry: dict[str, Any], place: str) -> tuple[str, ...] | None:
    if "fallback" not in entry:
        return None
    models = entry["fallback"]
    if not isinstance(models, list) or len(models) > MAX_FALLBACKS:
        raise InvalidRequest(
            f"{place} has a wrong fallback: it must be a list of at most {MAX_FALLBACKS} models, [] for none"
        )
    for model in models:
        _check_model(model, "fallback", place)
    return tuple(dict.fromkeys(models))


def _cascade(entry: dict[str, Any], place: str) -> Cascade | None:
    if "cascade" not in entry:
        return None
    cascade = entry["cascade"]
    if not isinstance(cascade, dict) or set(cascade) != {"to", "min_logprob"}:
        raise InvalidRequest(
            f"{place} has a wrong cascade: it must be a model and a threshold, as in "
            '{ to = "large", min_logprob = -0.7 }'
        )
    _check_model(cascade["to"], "cascade", place)
    least = cascade["min_logprob"]
    if not _is_number(least) or not LEAST_LOGPROB <= least <= 0:
        raise InvalidRequest(
            f"{place} has a wrong min_logprob: it must be a number from {LEAST_LOGPROB:g} to 0"
        )
    return Cascade(cascade["to"], float(least))


def _ttft_limit(table: dict[str, Any], place: str) -> float | None:
    return float(_number(table, "max_ttft_ms", place)) if "max_ttft_ms" in table else None


def _classifier(table: dict[str, Any], place: str, source: Path) -> str:
    """The path of the file; a relative one is from the folder of `source`."""
    path = table.get("classifier", "")
    if not isinstance(path, str) or ("classifier" in table and not path):
        raise InvalidRequest(f"{place} has a wrong classifier: it must be the path of a file")
    return str(source.absolute().parent / Path(path).expanduser()) if path else ""


def _number(entry: dict[str, Any], name: str, place: str) -> int:
    value = entry[name]
    if type(value) is not int or not 0 <= value <= MAX_BOUND:
        raise InvalidRequest(f"{place} has a wrong {name}: it must be a whole number from 0 to {MAX_BOUND}")
    return value


def _probability(entry: dict[str, Any], name: str, place: str) -> float:
    value = entry[name]
    if not _is_number(value) or not 0 <= value <= 1:
        raise InvalidRequest(f"{place} has a wrong {name}: it must be a number from 0 to 1")
    return float(value)


def _bounds(entry: dict[str, Any], name: str, place: str) -> tuple[TtftBound, ...]:
    bounds = entry[name]
    if not isinstance(bounds, dict) or not 1 <= len(bounds) <= MAX_SHARES:
        raise InvalidRequest(
            f"{place} has a wrong {name}: it must be milliseconds by model, as in {{ large = 300 }}"
        )
    for model, limit_ms in bounds.items():
        _check_model(model, name, place)
        if not _is_number(limit_ms) or not 0 <= limit_ms <= MAX_BOUND:
            raise InvalidRequest(f"{place} has a wrong {name} of {model}: it must be milliseconds")
    return tuple(TtftBound(model, float(limit_ms)) for model, limit_ms in bounds.items())


def _words(entry: dict[str, Any], name: str, place: str, allowed: Collection[str] | None) -> tuple[str, ...]:
    """Return the texts of a list; `allowed` None: any."""
    values = entry[name]
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_LISTED_VALUES:
        raise InvalidRequest(
            f"{place} has a wrong {name}: it must be a list of 1 to {MAX_LISTED_VALUES} texts"
        )
    for value in values:
        if not isinstance(value, str) or (allowed is not None and value not in allowed):
            among = "a text" if allowed is None else f"one of {', '.join(allowed)}"
            raise InvalidRequest(f"{place} has a wrong value in {name}: each must be {among}")
    return tuple(values)


def _check_model(model: Any, name: str, place: str) -> None:
    if not isinstance(model, str) or not 1 <= len(model) <= MAX_MODEL_CHARS:
        raise InvalidRequest(
            f"{place} has a wrong model in {name}: it must be a name of 1 to {MAX_MODEL_CHARS} characters"
        )


def _check_names(entry: dict[str, Any], allowed: Iterable[str], place: str) -> None:
    unknown = sorted(set(entry) - {*allowed})
    if unknown:
        raise InvalidRequest(f"{place} has {unknown[0][:80]!r}: it may have {', '.join(allowed)}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
