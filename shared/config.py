"""Typed configuration: defaults, then a TOML file, then PENSTOCK_* environment variables.

A config type is a frozen dataclass whose fields are made by `field_of`. Every value is checked on
load; whatever is wrong raises a ConfigError that names the key, where it came from and what is
allowed. Nothing is clamped or ignored.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import PenstockError
from shared.health.watchdog import WATCHDOG_S
from shared.roles import ROLES

C = TypeVar("C")

DEFAULT_FILE = Path("penstock.toml")
FILE_VARIABLE = "PENSTOCK_CONFIG"
COMMON_SECTION = "common"
SECTIONS = (*ROLES, "launcher", "cli")
"""Tables that may stand in the file besides [common]; any other name is a typing error."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class ConfigError(PenstockError):
    """A configuration value that cannot be used; the process stops with exit code 2."""

    code = "config"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field allows besides its type. `pattern` must match the whole of a string. The value of a
    `secret` one is shown nowhere."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    secret: bool = False


def field_of(
    default: Any,
    *,
    help: str,  # noqa: A002 - the word every option library uses
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | None = None,
    pattern: str = "",
    secret: bool = False,
) -> Any:
    """A dataclass field with the rule that `load_config` checks."""
    rule = Rule(help, minimum, maximum, tuple(choices or ()), pattern, secret)
    return dataclasses.field(default=default, repr=not secret, metadata={"rule": rule})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """The fields every service has."""

    nats_url: str = field_of("nats://127.0.0.1:4222", help="URL of the NATS server")
    nats_credentials: str = field_of(
        "", help="file with the user and password for that server; empty = what the URL says, if anything"
    )
    instance: str = field_of(
        "", help="instance id, unique per role; empty = <role>-<6 hex digits>", pattern=r"[a-z0-9-]{0,63}"
    )
    fleet_key: str = field_of(
        "",
        help="key of the names of KV blocks, 64 hex digits, one for the whole fleet; "
        "empty = a public one, for development",
        pattern=r"([0-9a-f]{64})?",
        secret=True,
    )
    model: str = field_of("", help="model directory or hub id; empty = the demo model shipped with Penstock")
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


def load_config(
    config_type: type[C],
    section: str,
    *,
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> C:
    """Build `config_type` from its defaults, the file's [common] and [section], and the environment.

    `file`: None = $PENSTOCK_CONFIG, else ./penstock.toml where that exists. Raises ConfigError.
    """
    fields = _fields_of(config_type)
    values: dict[str, Any] = {}
    _read_file(fields, section, _file_path(environ, file), values)
    _read_environ(fields, section, environ, values)
    return config_type(**values)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    hint: Any
    rule: Rule


def _fields_of(config_type: type[Any]) -> dict[str, _Field]:
    hints = typing.get_type_hints(config_type)
    return {
        field.name: _Field(field.name, hints[field.name], field.metadata.get("rule", Rule("")))
        for field in dataclasses.fields(config_type)
    }


_COMMON_FIELDS = frozenset(field.name for field in dataclasses.fields(ServiceConfig))


# ---- sources ----------------------------------------------------------------------------------


def _file_path(environ: Mapping[str, str], file: Path | None) -> Path | None:
    if file is not None:
        return file
    named = environ.get(FILE_VARIABLE, "")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _read_file(fields: dict[str, _Field], section: str, path: Path | None, values: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from error
    allowed_tables = {COMMON_SECTION, section, *SECTIONS}
    for name, table in tables.items():
        if name not in allowed_tables or not isinstance(table, dict):
            raise ConfigError(
                f"{path}: [{name}] is not a table Penstock knows; use one of {_listed(allowed_tables)}"
            )
    for name in (COMMON_SECTION, section):
        # [common] speaks to all services, so it may name what this one has no use for.
        known = set(fields) | _COMMON_FIELDS if name == COMMON_SECTION else set(fields)
        for key, value in tables.get(name, {}).items():
            if key not in known:
                raise ConfigError(f"{path}: [{name}] has no key {key!r}; it may have {_listed(known)}")
            if key in fields:
                values[key] = _checked(fields[key], value, f"{path}: [{name}] {key}")


def _read_environ(
    fields: dict[str, _Field], section: str, environ: Mapping[str, str], values: dict[str, Any]
) -> None:
    for name in fields.keys() & _COMMON_FIELDS:
        variable = f"PENSTOCK_{name.upper()}"
        text = _file_of_secret(fields[name], variable, environ) or environ.get(variable)
        if text is not None:
            values[name] = _checked(fields[name], _parsed(fields[name], text, variable), variable)
    prefix = f"PENSTOCK_{section.upper()}_"
    for variable, text in sorted(environ.items()):
        if not variable.startswith(prefix):
            continue
        name = variable.removeprefix(prefix).lower()
        if name not in fields:
            raise ConfigError(
                f"{variable} is not an option of {section}; its options are {_listed(fields)} "
                f"(as {prefix}<OPTION>)"
            )
        values[name] = _checked(fields[name], _parsed(fields[name], text, variable), variable)


def _file_of_secret(field: _Field, variable: str, environ: Mapping[str, str]) -> str | None:
    """A secret may lie in a file that <variable>_FILE names, as containers are given theirs."""
    file = environ.get(f"{variable}_FILE", "") if field.rule.secret else ""
    if not file:
        return None
    if environ.get(variable):
        raise ConfigError(f"{variable} and {variable}_FILE are both set; set one of them")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{variable}_FILE {file} cannot be read ({why})") from error


# ---- values -----------------------------------------------------------------------------------


def _parsed(field: _Field, text: str, source: str) -> Any:
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
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _checked(field: _Field, value: Any, source: str) -> Any:
    if field.hint is float and type(value) is int:
        value = float(value)
    if field.hint == tuple[str, ...]:
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


def _described(field: _Field) -> str:
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
    return f"{allowed} ({rule.help})" if rule.help else allowed


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _listed(names: typing.Iterable[str]) -> str:
    return ", ".join(sorted(names))
