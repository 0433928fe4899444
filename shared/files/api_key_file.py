"""The file of API keys: who may use the edge, as which tenant, how much. It holds hashes, never a key.

    [[key]]
    name = "web"                    # unique; in messages and logs
    tenant = "acme"                 # may have several keys; KV is shared within a tenant alone
    hash = "sha256:…"               # of the key, 64 hex digits
    requests_per_min = 600          # the limits are optional; they hold over all gateways together
    concurrency = 16
    tokens_per_min = 200000         # of prompt and output
    weight = 2                      # what its requests use counts as half, where several tenants wait
    cache = "exact"                 # whether an earlier answer will do, where a request does not say: exact,
                                    # semantic or off; without it, what the gateway does
    operator = true                 # may see what is said of all tenants: /metrics of the HTTP edge

A hash without salt and stretching is enough where keys are random (`new_api_key`): nobody can guess one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shared.cache_modes import CACHE_MODES
from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded_text

MAX_FILE_BYTES = 4 << 20
"""The longest file of API keys."""
MAX_KEYS = 4096
"""It bounds what is kept per key and per tenant, metrics too."""
KEY_BYTES = 32
KEY_PREFIX = "psk_"
"""The beginning that scanners for leaked secrets can look for."""
MAX_REQUESTS_PER_MIN = 1_000_000
"""The most requests a minute that a key may be given."""
MAX_CONCURRENCY = 65_536
"""The most requests at once that a key may be given."""
MAX_TOKENS_PER_MIN = 1_000_000_000
"""The most tokens a minute that a key may be given."""
MAX_WEIGHT = 1000
"""The greatest weight of a key; that of a share on the bus is no greater."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*key[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of a key over all gateways; None: without limit."""

    requests_per_min: int | None = None
    concurrency: int | None = None
    tokens_per_min: int | None = None


HIGHEST = KeyLimits(MAX_REQUESTS_PER_MIN, MAX_CONCURRENCY, MAX_TOKENS_PER_MIN)
LIMITS = tuple(field.name for field in fields(KeyLimits))
TEXTS = ("name", "tenant", "hash")
WEIGHT = "weight"
CACHE = "cache"
OPERATOR = "operator"
FIELDS = (*TEXTS, *LIMITS, WEIGHT, CACHE, OPERATOR)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An entry of the file. `hash` is `hash_api_key` of the key itself, which nobody but its client has.
    `cache` is one of CACHE_MODES, or "" for what the gateway does. `operator`: it may see what is said of all
    tenants. What the key's requests use counts for its tenant as one part in `weight` of it."""

    name: str
    tenant: str
    hash: str
    limits: KeyLimits = KeyLimits()
    cache: str = ""
    operator: bool = False
    weight: int = 1


def is_tenant_name(name: str) -> bool:
    """Return whether a tenant, or a key, may have this name."""
    return _NAME.fullmatch(name) is not None


def new_api_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_api_key(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def read_key_file(path: Path) -> str:
    """Return the text of the file. Raises InvalidRequest when there is none that could be one."""
    advice = "; `penstock keys new --tenant NAME --file FILE` makes such a file"
    return read_bounded_text(path, MAX_FILE_BYTES, f"the file of API keys {path}", advice)


def parse_api_keys(text: str, source: object) -> tuple[ApiKey, ...]:
    """Parse all keys of a file. Raises InvalidRequest naming `source`, the entry and its line.

    No message shows a value: somebody may have written the key itself where its hash belongs.
    """
    entries = _entries(text, source)
    lines = [text.count("\n", 0, found.start()) + 1 for found in _HEADER.finditer(text)]
    keys: list[ApiKey] = []
    names: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for number, entry in enumerate(entries, start=1):
        line = f" (line {lines[number - 1]})" if len(lines) == len(entries) else ""
        place = f"key {number}{line}"
        key = _key(entry, f"{source}: {place}")
        if key.name in names:
            raise InvalidRequest(f"{source}: {place} has the name of {names[key.name]}: give it another one")
        if key.hash in hashes:
            raise InvalidRequest(f"{source}: {place} has the hash of {hashes[key.hash]}: make a key for each")
        names[key.name] = hashes[key.hash] = place
        keys.append(key)
    return tuple(keys)


def describe_api_key(key: ApiKey) -> str:
    """The entry, as it stands in a file."""
    lines = [f'{name} = "{getattr(key, name)}"' for name in TEXTS]
    stated = {name: getattr(key.limits, name) for name in LIMITS}
    lines += [f"{name} = {value}" for name, value in stated.items() if value is not None]
    lines += [f"{WEIGHT} = {key.weight}"] if key.weight != 1 else []
    lines += [f'{CACHE} = "{key.cache}"'] if key.cache else []
    lines += [f"{OPERATOR} = true"] if key.operator else []
    return "\n".join(["[[key]]", *lines, ""])


def without_api_key(text: str, name: str, source: object) -> str:
    """Return the text of the file without the entry of that name; all else stays as it is written.

    Raises InvalidRequest where there is none, or where its lines cannot be told from others.
    """
    keys = parse_api_keys(text, source)
    number = next((number for number, key in enumerate(keys) if key.name == name), None)
    if number is None:
        raise InvalidRequest(f"{source} has no key {name}: `penstock keys list` shows those that it has")
    starts = [found.start() for found in _HEADER.finditer(text)]
    left = ""
    if len(starts) == len(keys):
        start, *rest = starts[number:]
        entry = text[start : rest[0] if rest else len(text)]
        lines = entry.splitlines(keepends=True)
        while not lines[-1].strip() or lines[-1].lstrip().startswith("#"):
            lines.pop()  # what is said above the next entry, or below the last, is no part of this one
        left = text[:start] + text[start + len("".join(lines)) :].lstrip("\n")
    kept = keys[:number] + keys[number + 1 :]
    if parse_api_keys(left, source) != kept:
        raise InvalidRequest(f"{source} is not written entry by entry: remove the key {name} by hand")
    return left


def _entries(text: str, source: object) -> list[dict[str, Any]]:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the API keys {source} are not TOML: {error}") from error
    entries = table.pop("key", [])
    if table:
        raise InvalidRequest(f"{source} has {_listed(table)}: write nothing but [[key]] entries")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest(f"{source}: key is no list of tables: write [[key]] above each entry")
    if len(entries) > MAX_KEYS:
        raise InvalidRequest(f"{source} has {len(entries)} keys: at most {MAX_KEYS} are allowed")
    return entries


def _key(entry: dict[str, Any], place: str) -> ApiKey:
    unknown = sorted(set(entry) - set(FIELDS))
    if unknown:
        raise InvalidRequest(f"{place} has {_listed(unknown)}: it may have {', '.join(FIELDS)}")
    tenant, name, key_hash = (_text(entry, field, place) for field in ("tenant", "name", "hash"))
    limits = KeyLimits(*(_limit(entry, limit, place) for limit in LIMITS))
    cache, operator, weight = _cache(entry, place), _operator(entry, place), _weight(entry, place)
    return ApiKey(name, tenant, key_hash, limits, cache, operator, weight)


def _text(entry: dict[str, Any], field: str, place: str) -> str:
    value = entry.get(field)
    wanted, allowed = (
        (_HASH, "sha256: and 64 hex digits, which `penstock keys new` writes: never the key itself")
        if field == "hash"
        else (_NAME, "1 to 63 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit")
    )
    if not isinstance(value, str) or not wanted.fullmatch(value):
        missing = "has no" if field not in entry else "has a wrong"
        raise InvalidRequest(f"{place} {missing} {field}: it must be {allowed}")
    return value


def _cache(entry: dict[str, Any], place: str) -> str:
    value = entry.get(CACHE, "")
    if CACHE in entry and value not in CACHE_MODES:
        raise InvalidRequest(
            f"{place} has a wrong {CACHE}: it must be one of {', '.join(CACHE_MODES)}; without it the "
            "gateway's cache_mode counts"
        )
    return str(value)


def _operator(entry: dict[str, Any], place: str) -> bool:
    value = entry.get(OPERATOR, False)
    if type(value) is not bool:
        raise InvalidRequest(f"{place} has a wrong {OPERATOR}: it must be true or false")
    return value


def _weight(entry: dict[str, Any], place: str) -> int:
    value = entry.get(WEIGHT, 1)
    if type(value) is not int or not 1 <= value <= MAX_WEIGHT:
        raise InvalidRequest(
            f"{place} has a wrong {WEIGHT}: it must be a whole number from 1 to {MAX_WEIGHT}; without it the "
            "weight is 1"
        )
    return value


def _limit(entry: dict[str, Any], field: str, place: str) -> int | None:
    value = entry.get(field)
    highest: int = getattr(HIGHEST, field)
    if value is not None and (type(value) is not int or not 1 <= value <= highest):
        raise InvalidRequest(
            f"{place} has a wrong {field}: it must be a whole number from 1 to {highest}; "
            "without it there is no limit, and a key that may do nothing is one to remove"
        )
    return value


def _listed(names: Iterable[str]) -> str:
    """Names out of a file, none that could be a secret put in the wrong place."""
    return ", ".join(sorted(name if _NAME.fullmatch(name) and len(name) < 32 else "…" for name in names))
