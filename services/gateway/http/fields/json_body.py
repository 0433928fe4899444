"""Read the JSON object that a body is: Unicode text, finite numbers, and no deeper than anybody needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.request.json_parts import JsonLimits
from shared.errors import InvalidRequest

MAX_BODY_DEPTH = 192
"""The deepest nesting of arrays and objects: what stands around the deepest schema, and its own levels."""
MAX_BODY_OBJECTS = 20_000
"""The arrays and objects of a body: megabytes of empty ones would hold up every stream for half a second."""
MAX_BODY_TEXTS = 100_000
"""The texts of a body, names of values among them."""
MAX_BODY_VALUES = 1_000_000
"""The values in all arrays and objects of a body, such as ids of tokens."""
BODY_LIMITS = JsonLimits(MAX_BODY_OBJECTS, MAX_BODY_TEXTS, MAX_BODY_VALUES)
MAX_NAMED_VALUES = 10_000
"""The values of a body among which the wrong one is looked for, so that its name can be said."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json_body(raw: bytes) -> JsonFields:
    """Raises InvalidRequest for what is no JSON object, and names the field that holds no Unicode text."""
    _check_count(raw)
    try:
        text = raw.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are a ValueError too
        raise InvalidRequest(f"the body is no JSON ({error}): send a JSON object in UTF-8") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object: send one")
    _check_depth(text, value)
    if _SURROGATE.search(text):
        _check_unicode(value)
    return JsonFields(value)


def _check_count(raw: bytes) -> None:
    """Raise InvalidRequest for a body of more parts than anybody needs, before time is spent on them."""
    if what := BODY_LIMITS.broken_by(raw):
        raise InvalidRequest(f"the body has more than {what}: send less in one call")


def _check_depth(text: str, value: dict[str, Any]) -> None:
    """Few brackets cannot nest deeply; where there are more, level by level is looked."""
    if text.count("[") + text.count("{") <= MAX_BODY_DEPTH:
        return
    level: list[Any] = [value]
    for _ in range(MAX_BODY_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return
    raise InvalidRequest(f"the body is nested deeper than {MAX_BODY_DEPTH} levels: send a flatter one")


def _check_unicode(value: dict[str, Any]) -> None:
    """Raise InvalidRequest for half of a surrogate pair, which no text holds and nothing could answer."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        for param, each in islice(_strings(value, ""), MAX_NAMED_VALUES):
            if not _is_unicode(each):
                raise WrongField(param, "holds half of a surrogate pair: send Unicode text") from error
        raise InvalidRequest("a text holds half of a surrogate pair: send Unicode text") from error


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each text with its path; a name is one too, of what holds it."""
    waiting: list[tuple[str, Any]] = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, list):
            waiting.extend((f"{path}[{index}]", value[index]) for index in reversed(range(len(value))))
        elif isinstance(value, dict):
            for name in value:
                yield path or "the body", name
            waiting.extend((f"{path}.{name}" if path else name, value[name]) for name in reversed(value))


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
