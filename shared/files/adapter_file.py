"""The file of adapters: which ones there are to be over which model. Workers follow it, and a new one begins
with what it says.

    [[adapter]]
    base = "my-llama"               # the model's name, as clients ask for it
    name = "sql"                    # clients then ask for my-llama:sql
    directory = "/models/sql"       # that PEFT has saved, as workers see it; relative: from the file's folder
    version = 1763843812345         # another one makes workers load the directory again
    tenants = ["acme"]              # those whose requests may name it; without it, everybody's
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.errors import InvalidRequest, NotFound
from shared.files.api_key_file import is_tenant_name
from shared.files.atomic_write import write_file
from shared.files.bounded_file import read_bounded_text
from shared.files.folder_lock import locked_folder
from shared.seams.clock import SYSTEM_CLOCK

MAX_ADAPTER_FILE_BYTES = 1 << 20
"""The longest file of adapters."""
MAX_ADAPTERS_LISTED = 256
"""Entries of a file: a worker tells of all that are over its model in each of its heartbeats."""
MAX_ADAPTER_NAME_CHARS = 48
"""The longest name of an adapter."""
MAX_BASE_CHARS = 256
"""The longest name of the model under it."""
MAX_DIRECTORY_CHARS = 1024
"""The longest path of its directory."""
MAX_ADAPTER_TENANTS = 16
"""The tenants of an entry: they are in the heartbeats too."""
MODE = 0o644
"""Workers may run as another user."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ADAPTER_NAME_CHARS - 1}}}")
_TEXTS = ("base", "name", "directory")
_TENANTS = "tenants"
_FIELDS = (*_TEXTS, "version", _TENANTS)


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """An adapter that there is to be: `directory` is absolute. No `tenants`: it is for everybody."""

    base: str
    name: str
    directory: str
    version: int
    tenants: tuple[str, ...] = ()


class WantedAdapter(NamedTuple):
    """An entry that there is to be. `tenants` None: those of the entry in whose place it comes."""

    base: str
    name: str
    directory: str
    tenants: tuple[str, ...] | None = None


def split_adapter_tenants(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return the name and the tenants of NAME[@TENANT+TENANT], None where none are said. Raises
    InvalidRequest."""
    name, at, listed = text.partition("@")
    tenants = tuple(listed.split("+")) if at else None
    if problem := adapter_name_problem(name) or _tenants_problem(tenants or ()):
        raise InvalidRequest(problem)
    return name, tenants


def adapter_name_problem(name: str) -> str:
    """Say what is wrong with a name, as a sentence; "" for a good one."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name[:80]!r} is no name for an adapter: take 1 to {MAX_ADAPTER_NAME_CHARS} letters, digits, '.', "
        "'_' and '-', beginning with a letter or digit"
    )


def read_adapter_file(file: Path, *, may_be_missing: bool = True) -> tuple[AdapterEntry, ...]:
    """Read all entries, in their order; none where there is no such file yet. Raises InvalidRequest."""
    if may_be_missing and not file.exists():
        return ()
    text = read_bounded_text(file, MAX_ADAPTER_FILE_BYTES, f"the adapter file {file}")
    return parse_adapters(text, file)


def parse_adapters(text: str, file: Path) -> tuple[AdapterEntry, ...]:
    """Raises InvalidRequest naming the file and the entry."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the adapter file {file} is not TOML: {error}") from error
    entries = table.pop("adapter", [])
    if table:
        raise InvalidRequest(
            f"{file} has {', '.join(sorted(table))[:80]}: write nothing but [[adapter]] entries"
        )
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest(f"{file}: adapter is no list of tables: write [[adapter]] above each entry")
    if len(entries) > MAX_ADAPTERS_LISTED:
        raise InvalidRequest(f"{file} has {len(entries)} adapters: at most {MAX_ADAPTERS_LISTED} are allowed")
    found: dict[tuple[str, str], AdapterEntry] = {}
    for number, entry in enumerate(entries, start=1):
        read = _entry(entry, f"{file}: adapter {number}", file.parent)
        if (read.base, read.name) in found:
            raise InvalidRequest(f"{file}: adapter {number} is a second {read.base}:{read.name}: keep one")
        found[read.base, read.name] = read
    return tuple(found.values())


def put_adapters(file: Path, wanted: Sequence[WantedAdapter]) -> tuple[AdapterEntry, ...]:
    """Add each, or put it in the place of an entry of that name, to be loaded (anew).

    Returns the new entries. Raises InvalidRequest for what a worker would not take, OSError.
    """
    file = file.resolve()  # what a link leads to is replaced, not the link
    with locked_folder(file.parent):
        entries = {(each.base, each.name): each for each in read_adapter_file(file)}
        newest = max((each.version for each in entries.values()), default=0)
        version = max(newest + 1, SYSTEM_CLOCK.unix_us() // 1000)
        added = [_new_entry(each, version, entries.get((each.base, each.name))) for each in wanted]
        entries.update({(each.base, each.name): each for each in added})
        _write(file, [*entries.values()])
    return tuple(added)


def remove_adapter(file: Path, base: str, name: str) -> None:
    """Raises NotFound where the file has no such entry, InvalidRequest, OSError."""
    file = file.resolve()
    with locked_folder(file.parent):
        entries = read_adapter_file(file)
        left = [each for each in entries if (each.base, each.name) != (base, name)]
        if len(left) == len(entries):
            there = ", ".join(f"{each.base}:{each.name}" for each in entries) or "nothing"
            raise NotFound(f"{file} has no {base}:{name}: there is {there}")
        _write(file, left)


def _new_entry(wanted: WantedAdapter, version: int, before: AdapterEntry | None) -> AdapterEntry:
    """Return the entry; one that is loaded anew is not for others than before unless that is said."""
    tenants = before.tenants if wanted.tenants is None and before is not None else wanted.tenants or ()
    return AdapterEntry(wanted.base, wanted.name, wanted.directory, version, tenants)


def _write(file: Path, entries: Sequence[AdapterEntry]) -> None:
    text = "\n".join(map(_described, entries))
    parse_adapters(text, file)
    write_file(file, text.encode(), mode=MODE)


def _described(entry: AdapterEntry) -> str:
    texts = [f"{name} = {json.dumps(getattr(entry, name), ensure_ascii=False)}" for name in _TEXTS]
    tenants = [f"{_TENANTS} = {json.dumps(entry.tenants)}"] if entry.tenants else []
    return "\n".join(["[[adapter]]", *texts, f"version = {entry.version}", *tenants, ""])


def _entry(entry: dict[str, Any], place: str, folder: Path) -> AdapterEntry:
    if unknown := sorted(set(entry) - set(_FIELDS)):
        raise InvalidRequest(f"{place} has {', '.join(unknown)[:80]}: it may have {', '.join(_FIELDS)}")
    base = _text(entry, "base", place, MAX_BASE_CHARS)
    name = _text(entry, "name", place, MAX_BASE_CHARS)
    if problem := adapter_name_problem(name):
        raise InvalidRequest(f"{place}: {problem}")
    directory = _text(entry, "directory", place, MAX_DIRECTORY_CHARS)
    version = entry.get("version", 0)
    if type(version) is not int or not 0 <= version < 1 << 63:
        raise InvalidRequest(f"{place} has a wrong version: write a whole number, or leave it out")
    tenants = _tenants(entry, place)
    return AdapterEntry(base, name, str(folder / directory), version, tenants)


def _tenants(entry: dict[str, Any], place: str) -> tuple[str, ...]:
    value = entry.get(_TENANTS)
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"{place} has wrong tenants: write a list of names, or leave it out for everybody"
        )
    if problem := _tenants_problem(value):
        raise InvalidRequest(f"{place}: {problem}")
    return tuple(value)


def _tenants_problem(tenants: Sequence[object]) -> str:
    """Say what is wrong with the tenants of an adapter, as a sentence; "" for good ones."""
    if len(tenants) > MAX_ADAPTER_TENANTS:
        return f"an adapter has at most {MAX_ADAPTER_TENANTS} tenants, not {len(tenants)}"
    wrong = next((each for each in tenants if not isinstance(each, str) or not is_tenant_name(each)), None)
    return "" if wrong is None else f"{str(wrong)[:80]!r} is no tenant's name as in the file of API keys"


def _text(entry: dict[str, Any], field: str, place: str, most: int) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= most:
        raise InvalidRequest(f"{place} needs a {field}: write a text of 1 to {most} characters")
    return value
