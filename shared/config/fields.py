"""Define configurations: a frozen dataclass whose fields are made by `field_of`, each with its rule.

`shared/config/settings.py` fills it from defaults, file, environment, command line. Every value is checked;
whatever is wrong is said with its place and what is allowed. Nothing is clamped or ignored.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from shared.errors import PenstockError
from shared.health.watchdog import WATCHDOG_S

MODEL_SETTINGS = (
    "served_name",
    "max_model_len",
    "dtype",
    "kv_dtype",
    "quantization",
    "quant_group",
    "deterministic",
    "adapter_file",
    "max_adapters",
    "max_adapter_rank",
    "default_sampling",
)
"""The settings in which all who serve a model must agree, or no prefill worker finds a decode worker that
takes its KV, and an answer depends on who computed it. They are said once, in the table [model]."""

LIST_MARK = ","
"""The mark between the texts of a list, where it is said as one text."""
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


_NATS_URL = r"(nats|tls)://[^\s/,][^\s,]*"
_PLACE = r"[A-Za-z0-9._-]{0,63}"

MAX_PROBLEMS_CHARS = 1 << 16
"""All that is wrong with a configuration is told at once; of more than this the middle is left out."""


class ConfigError(PenstockError):
    """A configuration value that cannot be used; the process stops with exit code 2."""

    code = "config"
    max_chars = MAX_PROBLEMS_CHARS


class PathRule(Enum):
    """Whether a text is a path."""

    NO = "no"
    ALWAYS = "always"
    IF_THERE = "if a folder or file is there"
    """Else it is the id of a model."""
    BEHIND_NAME = "behind NAME="
    """The path stands behind a name, as corpora are said (`shared/config/named_corpus.py`)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a field besides its type. `pattern` must match the whole of a string. The value of a
    `secret` one is shown nowhere. A relative `path` in the configuration file counts from its folder."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    secret: bool = False
    path: PathRule = PathRule.NO


def field_of(
    default: Any,
    *,
    help: str,  # noqa: A002 - the word every option library uses
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | None = None,
    pattern: str = "",
    secret: bool = False,
    path: PathRule = PathRule.NO,
) -> Any:
    """A dataclass field with the rule that its values are checked by."""
    rule = Rule(help, minimum, maximum, tuple(choices or ()), pattern, secret, path)
    return dataclasses.field(default=default, repr=not secret, metadata={"rule": rule})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """The fields every service has."""

    of_draft: ClassVar[bool] = False
    """The service computes a draft: its model, and how that is computed, are its own and not those of
    [common] and [model]."""

    nats_url: str = field_of(
        "nats://127.0.0.1:4222",
        help="URL of the NATS server, or of each server of a cluster, with commas between them",
        pattern=rf"{_NATS_URL}(,{_NATS_URL}){{0,15}}",
    )
    nats_credentials: str = field_of(
        "",
        help="file with the user and password for that server; empty = what the URL says, if anything",
        path=PathRule.ALWAYS,
    )
    instance: str = field_of(
        "", help="instance id, unique per role; empty = <role>-<6 hex digits>", pattern=r"[a-z0-9-]{0,63}"
    )
    region: str = field_of(
        "",
        help="where the instance is: requests stay in the region of their gateway while it serves them; "
        "empty = all in one place",
        pattern=_PLACE,
    )
    zone: str = field_of(
        "", help="part of its region; among equals those of one zone work together", pattern=_PLACE
    )
    fleet_key: str = field_of(
        "",
        help="key of the names of KV blocks, 64 hex digits, one for the whole fleet; "
        "empty = a public one, for development",
        pattern=r"([0-9a-f]{64})?",
        secret=True,
    )
    model: str = field_of(
        "",
        help="model directory, GGUF file or hub id; empty = SmolLM2 if installed, else the small demo model",
        path=PathRule.IF_THERE,
    )
    served_name: str = field_of(
        "",
        help="name that clients ask for; empty = the folder's name or the hub id",
        pattern=r"[\w.:@/-]{0,128}",
    )
    metrics_host: str = field_of("127.0.0.1", help="address of /metrics, /ready and /live")
    metrics_port: int = field_of(
        0, help="port of /metrics, /ready and /live; 0 = a free one", minimum=0, maximum=65535
    )
    log_level: str = field_of(
        "info", help="least severe level that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = field_of(
        "json", help="of every line that is logged; text is for people", choices=("json", "text")
    )
    drain_timeout_s: float = field_of(
        10.0, help="how long requests may take to finish after SIGTERM", minimum=0.0, maximum=3600.0
    )
    watchdog_s: float = field_of(
        WATCHDOG_S,
        help="how long work may stand still until the process is not alive; it ends after three times that",
        minimum=0.5,
        maximum=3600.0,
    )


COMMON_SETTINGS = tuple(
    field.name for field in dataclasses.fields(ServiceConfig) if field.name not in MODEL_SETTINGS
)
"""The settings that may be said for all services at once: in [common], or as PENSTOCK_<SETTING>."""


@dataclass(frozen=True, slots=True)
class ConfigField:
    name: str
    hint: Any
    rule: Rule


def fields_of(config_type: type[Any]) -> dict[str, ConfigField]:
    hints = typing.get_type_hints(config_type)
    return {
        field.name: ConfigField(field.name, hints[field.name], field.metadata.get("rule", Rule("")))
        for field in dataclasses.fields(config_type)
    }


# ---- values -----------------------------------------------------------------------------------


def parsed_value(field: ConfigField, text: str, source: str) -> Any:
    """The environment has only text; anything that is not text of the field's type stays an error."""
    if field.hint is str:
        return text
    if field.hint is bool:
        word = text.strip().lower()
        if word not in _TRUE + _FALSE:
            raise ConfigError(f"{source} is {text!r}; it must be true or false")
        return word in _TRUE
    if field.hint in (int, float):
        try:
            return field.hint(text)
        except ValueError as error:
            raise ConfigError(f"{source} is {text!r}; it must be {_described(field)}") from error
    return tuple(part.strip() for part in text.split(LIST_MARK) if part.strip())


def text_of_value(value: Any) -> str:
    """The text that `parsed_value` reads as this value."""
    return LIST_MARK.join(value) if isinstance(value, tuple) else str(value)


def checked_value(field: ConfigField, value: Any, source: str) -> Any:
    if field.hint is float and type(value) is int:
        value = float(value)
    if field.hint == tuple[str, ...]:
        if isinstance(value, str):  # a list of one may be said without brackets, an empty one as ""
            value = (value,) if value else ()
        value = tuple(value) if isinstance(value, list) else value
        well_typed = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    else:
        well_typed = type(value) is field.hint
    if not well_typed or not _within(field.rule, value):
        shown = "not right" if field.rule.secret else repr(value)
        raise ConfigError(f"{source} is {shown}; it must be {_described(field)}")
    return value


def _within(rule: Rule, value: Any) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if rule.minimum is not None and value < rule.minimum:
        return False
    if rule.maximum is not None and value > rule.maximum:
        return False
    words = value if isinstance(value, tuple) else (value,)
    if rule.choices and any(word not in rule.choices for word in words):
        return False
    return not rule.pattern or all(re.fullmatch(rule.pattern, word) for word in words)


def allowed_values(field: ConfigField) -> str:
    """Return in words which values the setting may have."""
    rule = field.rule
    kinds = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}
    allowed = kinds.get(field.hint, "a list of texts")
    if rule.choices:
        allowed = f"one of {', '.join(rule.choices)}"
    if rule.minimum is not None and rule.maximum is not None:
        allowed += f" from {_number(rule.minimum)} to {_number(rule.maximum)}"
    elif rule.minimum is not None:
        allowed += f" of at least {_number(rule.minimum)}"
    elif rule.maximum is not None:
        allowed += f" of at most {_number(rule.maximum)}"
    if rule.pattern:
        allowed += f" matching {rule.pattern}"
    return allowed


def _described(field: ConfigField) -> str:
    allowed = allowed_values(field)
    return f"{allowed} ({field.rule.help})" if field.rule.help else allowed


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
