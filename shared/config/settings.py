"""Resolve the settings of a service from defaults, file, environment and command line, each with its source.

A later source wins over an earlier one:

    the field's default
    what `penstock up` sets for its stack
    the file ($PENSTOCK_CONFIG, else ./penstock.toml): [common], then [model], then the service's own table
    the environment: PENSTOCK_<SETTING>, then PENSTOCK_MODEL_<SETTING>, then PENSTOCK_<SERVICE>_<SETTING>
    the command line

Whatever is wrong in any of them is kept as a problem, so that all of it can be told at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from shared.config.config_file import COMMON_TABLE, FILE_VARIABLE, MODEL_TABLE, ConfigFile, find_config_file
from shared.config.fields import (
    COMMON_SETTINGS,
    MODEL_SETTINGS,
    ConfigError,
    ConfigField,
    ServiceConfig,
    checked_value,
    fields_of,
    parsed_value,
)
from shared.roles import ROLES

C = TypeVar("C")

STACK_SOURCE = "penstock up"
OTHER_VARIABLES = ("PENSTOCK_API_KEY", "PENSTOCK_CPU_FEATURES", "PENSTOCK_DEFAULT_MODEL")
"""The variables of commands and of the default model's place, which are no settings of services."""


class SourceKind(Enum):
    DEFAULT = "default"
    STACK = "stack"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that counts, and where it came from: `source` is a variable, an option or FILE:LINE [table]."""

    value: Any
    kind: SourceKind
    source: str
    secret: bool = False

    @property
    def said(self) -> bool:
        """Whether the user has said it, wherever."""
        return self.kind not in (SourceKind.DEFAULT, SourceKind.STACK)


@dataclass(frozen=True, slots=True)
class OptionValue:
    """A value that the command line gives for a setting, with the option's name."""

    value: Any
    option: str


@dataclass(slots=True)
class Settings:
    """The settings of one service, by name. `problems`: sentences, one for each thing that is wrong."""

    section: str
    by_name: dict[str, Setting]
    problems: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Setting:
        return self.by_name[name]

    def config(self, config_type: type[C]) -> C:
        """Raises ConfigError with all problems."""
        if self.problems:
            raise ConfigError("; ".join(self.problems))
        return config_type(**{name: setting.value for name, setting in self.by_name.items()})


def load_config(
    config_type: type[C],
    section: str,
    *,
    environ: Mapping[str, str] = os.environ,
    file: ConfigFile | None = None,
) -> C:
    """The configuration of the service `section`. Raises ConfigError.

    `file`: None = $PENSTOCK_CONFIG, else ./penstock.toml where that exists.
    """
    return resolve_settings(config_type, section, environ=environ, file=file).config(config_type)


def resolve_settings(
    config_type: type[Any],
    section: str,
    *,
    environ: Mapping[str, str] = os.environ,
    file: ConfigFile | None = None,
    stack: Mapping[str, Any] | None = None,
    options: Mapping[str, OptionValue] | None = None,
) -> Settings:
    """Resolve all settings of a service. `stack` are defaults of the one who starts it, `options` the command
    line's.

    Raises ConfigError only for a file that cannot be read; what is wrong in it is a problem among others.
    """
    file = find_config_file(environ) if file is None else file
    resolver = _Resolver(config_type, section)
    for name, value in (stack or {}).items():
        resolver.put(name, value, SourceKind.STACK, STACK_SOURCE)
    resolver.take_file(file)
    resolver.take_environ(environ)
    for name, option in (options or {}).items():
        resolver.put(name, option.value, SourceKind.COMMAND_LINE, option.option)
    return resolver.settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each PENSTOCK_* variable that nobody reads. Services do not look for them: other
    programs may have such variables."""
    tables = tuple(f"PENSTOCK_{table.upper()}_" for table in (MODEL_TABLE, *ROLES))
    known = {f"PENSTOCK_{name.upper()}" for name in COMMON_SETTINGS} | {FILE_VARIABLE, *OTHER_VARIABLES}
    secrets = [field.name for field in fields_of(ServiceConfig).values() if field.rule.secret]
    known |= {f"PENSTOCK_{name.upper()}_FILE" for name in secrets}
    return [
        f"{variable} is not read by anything; for all services there is {', '.join(sorted(known))}"
        for variable in sorted(environ)
        if variable.startswith("PENSTOCK_") and not variable.startswith(tables) and variable not in known
    ]


class _Resolver:
    """Takes one source after the other; what has a problem is not taken."""

    def __init__(self, config_type: type[Any], section: str) -> None:
        self._fields = fields_of(config_type)
        self._section = section
        self._secret_files = {
            f"{name}_file"
            for name, known in self._fields.items()
            if known.rule.secret and name not in COMMON_SETTINGS
        }
        self._of_draft = issubclass(config_type, ServiceConfig) and config_type.of_draft
        defaults = {
            name: Setting(
                config_type.__dataclass_fields__[name].default, SourceKind.DEFAULT, "default", f.rule.secret
            )
            for name, f in self._fields.items()
        }
        self.settings = Settings(section, defaults)

    def put(self, name: str, value: Any, kind: SourceKind, source: str, *, place: str = "") -> None:
        """`place` is how an error calls it, where that is not the source."""
        known = self._fields[name]
        try:
            checked = checked_value(known, value, place or source)
        except ConfigError as error:
            self.settings.problems.append(error.message)
        else:
            self.settings.by_name[name] = Setting(checked, kind, source, known.rule.secret)

    def take_file(self, file: ConfigFile) -> None:
        self.settings.problems += file.wrong_tables(self._section)
        for table, allowed in (
            (COMMON_TABLE, COMMON_SETTINGS),
            (MODEL_TABLE, MODEL_SETTINGS),
            (self._section, self._own_settings()),
        ):
            for name, value in file.table(table).items():
                place = f"{file.place(table, name)}: [{table}] {name}"
                if name not in allowed:
                    self.settings.problems.append(
                        self._not_here(name, place, f"[{MODEL_TABLE}] {name}", allowed)
                    )
                elif self._takes(table, name):
                    source = f"{file.place(table, name)} [{table}]"
                    counts = file.value(value, self._fields[name].rule.path)
                    self.put(name, counts, SourceKind.FILE, source, place=place)

    def take_environ(self, environ: Mapping[str, str]) -> None:
        self._take_variables(environ, COMMON_TABLE, "PENSTOCK_", COMMON_SETTINGS)
        for known in self._fields.values():
            if known.rule.secret:
                prefix = (
                    "PENSTOCK_" if known.name in COMMON_SETTINGS else f"PENSTOCK_{self._section.upper()}_"
                )
                self._take_secret_file(environ, known, f"{prefix}{known.name.upper()}")
        self._take_variables(environ, MODEL_TABLE, f"PENSTOCK_{MODEL_TABLE.upper()}_", MODEL_SETTINGS)
        prefix = f"PENSTOCK_{self._section.upper()}_"
        self._take_variables(environ, self._section, prefix, self._own_settings())

    def _take_variables(
        self, environ: Mapping[str, str], table: str, prefix: str, allowed: tuple[str, ...]
    ) -> None:
        for variable, text in sorted(environ.items()):
            name = variable.removeprefix(prefix).lower()
            if not variable.startswith(prefix) or (table == COMMON_TABLE and name not in allowed):
                continue
            if name in self._secret_files:
                continue  # read already
            if name not in allowed:
                instead = f"PENSTOCK_{MODEL_TABLE.upper()}_{name.upper()}"
                self.settings.problems.append(self._not_here(name, variable, instead, allowed))
            elif self._takes(table, name):
                self._put_text(self._fields[name], text, variable)

    def _take_secret_file(self, environ: Mapping[str, str], known: ConfigField, variable: str) -> None:
        """A secret may lie in a file that <variable>_FILE names, as containers are given theirs."""
        file = environ.get(f"{variable}_FILE", "")
        if not file:
            return
        problem = ""
        if environ.get(variable):
            problem = f"{variable} and {variable}_FILE are both set; set one of them"
        try:
            text = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            problem = problem or f"{variable}_FILE {file} cannot be read ({why})"
        if problem:
            self.settings.problems.append(problem)
        else:
            self._put_text(known, text, f"{variable}_FILE")

    def _put_text(self, known: ConfigField, text: str, variable: str) -> None:
        try:
            value = parsed_value(known, text, variable)
        except ConfigError as error:
            self.settings.problems.append(error.message)
        else:
            self.put(known.name, value, SourceKind.ENVIRONMENT, variable)

    def _own_settings(self) -> tuple[str, ...]:
        return tuple(name for name in self._fields if self._of_draft or name not in MODEL_SETTINGS)

    def _takes(self, table: str, name: str) -> bool:
        """Whether this service has a use for what `table` says; one for several may name what others need."""
        if self._of_draft and (table == MODEL_TABLE or (table == COMMON_TABLE and name == "model")):
            return False
        return name in self._fields

    def _not_here(self, name: str, place: str, right_place: str, allowed: Iterable[str]) -> str:
        if name in MODEL_SETTINGS:
            return (
                f"{place} stands in the wrong place: prefill and decode must have the same {name}, so it is "
                f"said once, as {right_place}"
            )
        return f"{place} is not a setting; there may be {', '.join(sorted(allowed))}"
