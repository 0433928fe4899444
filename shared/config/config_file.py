"""The configuration file, with the line on which each setting stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.config.fields import ConfigError, PathRule
from shared.config.named_corpus import split_corpus
from shared.roles import ROLES

DEFAULT_FILE = Path("penstock.toml")
MAX_CONFIG_FILE_BYTES = 1 << 20
"""The longest configuration file that is read."""
FILE_VARIABLE = "PENSTOCK_CONFIG"
COMMON_TABLE = "common"
MODEL_TABLE = "model"
MODELS_TABLE = "models"
"""The models of a stack by name, which `penstock up` tells to its services: they do not read it."""
TABLES = (COMMON_TABLE, MODEL_TABLE, MODELS_TABLE, *ROLES)
"""The tables that the file may have; any other name is a typing error."""

_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """`path` None: there is no file, and nothing is in it."""

    path: Path | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The line of (table, key), and for (table, "") that of its header; none for what is written in a rarer
    way."""

    def table(self, name: str) -> Mapping[str, Any]:
        table = self.tables.get(name, {})
        return table if isinstance(table, dict) else {}

    def place(self, table: str, key: str = "") -> str:
        """FILE:LINE, for error messages and the list of settings."""
        line = self.lines.get((table, key))
        return f"{self.path}:{line}" if line else f"{self.path}"

    def value(self, given: Any, rule: PathRule) -> Any:
        """Return a value as it counts where the services run: a relative path as one from the file's
        folder."""
        if isinstance(given, list):
            return [self.value(each, rule) for each in given]
        if self.path is None or rule is PathRule.NO or not isinstance(given, str):
            return given
        if rule is PathRule.BEHIND_NAME:
            head, behind = split_corpus(given)
            return f"{head}{self.value(behind, PathRule.ALWAYS)}"
        if given[:1] in ("", "~"):
            return given
        path = self.path.absolute().parent / given
        return str(path) if rule is PathRule.ALWAYS or path.exists() else given

    def wrong_tables(self, section: str) -> list[str]:
        """A sentence for each table that nobody reads; `section` is read by the one who asks."""
        allowed = {*TABLES, section}
        return [
            f"{self.place(name)}: [{name}] is not a table Penstock knows; "
            f"use one of {', '.join(sorted(allowed))}"
            for name, table in self.tables.items()
            if name not in allowed or not isinstance(table, dict)
        ]


def find_config_file(environ: Mapping[str, str]) -> ConfigFile:
    """$PENSTOCK_CONFIG, else ./penstock.toml where that exists. Raises ConfigError."""
    named = environ.get(FILE_VARIABLE, "")
    if named:
        return read_config_file(Path(named))
    return read_config_file(DEFAULT_FILE) if DEFAULT_FILE.is_file() else ConfigFile()


def read_config_file(path: Path) -> ConfigFile:
    """Raises ConfigError when it cannot be read or is not TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_FILE_BYTES + 1)
        if len(data) > MAX_CONFIG_FILE_BYTES:
            raise ConfigError(
                f"the configuration file {path} is over the limit of {MAX_CONFIG_FILE_BYTES} bytes"
            )
        text = data.decode()
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from error
    return ConfigFile(path, tables, _lines_of(text))


def _lines_of(text: str) -> dict[tuple[str, str], int]:
    """Find the lines that begin with `[table]` or `key =`, which is how such files are written."""
    table = ""
    lines: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[1]
            lines.setdefault((table, ""), number)
        elif key := _KEY.match(line):
            lines.setdefault((table, key[1]) if table else (key[1], ""), number)
    return lines
