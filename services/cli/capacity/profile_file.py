"""Read a profile from TOML or JSON, and write one: each field bounded, and a wrong one named."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.capacity.profile import (
    DecodeProfile,
    DeploymentProfile,
    FrontProfile,
    HostSize,
    PrefillProfile,
    QuantizedSpeed,
    RestartProfile,
)
from services.cli.capacity.step_curve import StepCurve
from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded

MAX_PROFILE_BYTES = 1 << 16
"""The largest file of a profile."""
MAX_STEP_POINTS = 256
"""The most points of a curve of decode steps."""
MAX_SLOTS = 1024
"""The most slots of a decode worker, and the largest batch of a point."""
MAX_NAME_CHARS = 200
"""The longest name of a profile."""
MAX_TIME_MS = 600_000.0
"""The longest time of a profile."""


@dataclass(frozen=True, slots=True)
class ProfileField:
    """A number of a profile. `default` None: it has to be there. `whole`: a whole number."""

    table: str
    name: str
    least: float
    most: float
    meaning: str
    default: float | None = None
    whole: bool = False

    @property
    def path(self) -> str:
        return f"{self.table}.{self.name}"

    @property
    def rule(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {self.least:g} to {self.most:g}"


_MS = MAX_TIME_MS
FIELDS = (
    ProfileField("host", "cores", 1, 4096, "cores of one machine", whole=True),
    ProfileField("host", "gpus", 0, 64, "GPUs of one machine", 0, whole=True),
    ProfileField("host", "request_cpu_ms", 0, _MS, "CPU of a request there beside instances' own work", 0.0),
    ProfileField("host", "token_cpu_ms", 0, _MS, "CPU there of each token of an answer, beside that", 0.0),
    ProfileField("host", "kv_token_cpu_ms", 0, _MS, "CPU there of a prompt token's KV on its way", 0.0),
    ProfileField("gateway", "cpu_ms", 0, _MS, "CPU of a request at gateway, tokenizer and detokenizer"),
    ProfileField("gateway", "token_cpu_ms", 0, _MS, "CPU there of each token of an answer", 0.0),
    ProfileField("gateway", "overhead_ms", 0, _MS, "the way to the first token beside queues and work", 0.0),
    ProfileField("gateway", "cores", 0.01, 4096, "cores of one, tokenizer and detokenizer included", 1.0),
    ProfileField("prefill", "tokens_per_s", 0.01, 1e9, "prompt tokens that one computes"),
    ProfileField("prefill", "overhead_ms", 0, _MS, "of each prompt, whatever its length", 0.0),
    ProfileField("prefill", "cores", 0.01, 4096, "cores of one", 1.0),
    ProfileField("prefill", "gpus", 0, 64, "GPUs of one", 0, whole=True),
    ProfileField("decode", "slots", 1, MAX_SLOTS, "sequences of one at a time", whole=True),
    ProfileField("decode", "kv_blocks", 1, 1e9, "blocks of one's KV pool", whole=True),
    ProfileField("decode", "block_tokens", 1, 4096, "tokens of a block", 16, whole=True),
    ProfileField("decode", "transfer_ms", 0, _MS, "KV makes a request wait so long", 0.0),
    ProfileField("decode", "cores", 0.01, 4096, "cores of one", 1.0),
    ProfileField("decode", "gpus", 0, 64, "GPUs of one", 0, whole=True),
    ProfileField("restart", "ready_s", 0, 86_400, "from a start to the first work", 0.0),
    ProfileField("restart", "detect_s", 0, 86_400, "until a dead instance is missed", 0.75),
)
INT8_SPEED = ProfileField("int8", "tokens_per_s", 0.01, 1e9, "prefill.tokens_per_s with int8 weights")
CURVES = {"decode": "decode.step_ms", "int8": "int8.step_ms"}
TABLES = ("host", "gateway", "prefill", "decode", "restart", "int8")


def read_profile(path: Path) -> DeploymentProfile:
    """Read a profile: JSON where the name says so, else TOML. Raises InvalidRequest with the field."""
    given = _document(path)
    return checked_profile(str(path), {"name": path.stem} | given)


def checked_profile(path: str, given: dict[str, Any]) -> DeploymentProfile:
    """Return the profile of these tables; `path` is where they come from. Raises InvalidRequest with the
    field."""
    for table, fields in given.items():
        if table == "name":
            continue
        if table not in TABLES:
            raise InvalidRequest(f"{path}: there is no table {table[:40]!r}; there are {', '.join(TABLES)}")
        if not isinstance(fields, dict):
            raise InvalidRequest(f"{path}: {table} is no table; write [{table}] and its fields below it")
        _refuse_strangers(path, table, fields)
    name = given.get("name", "a fleet")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"{path}: name is no line of 1 to {MAX_NAME_CHARS} characters; write another")
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for field in FIELDS:
        tables[field.table][field.name] = _number(path, field, given)
    profile = DeploymentProfile(
        name,
        HostSize(**tables["host"]),
        FrontProfile(**tables["gateway"]),
        PrefillProfile(**tables["prefill"]),
        DecodeProfile(step_ms=_curve(path, "decode", given), **tables["decode"]),
        RestartProfile(**tables["restart"]),
        QuantizedSpeed(_number(path, INT8_SPEED, given), _curve(path, "int8", given))
        if "int8" in given
        else None,
    )
    _check_together(path, profile)
    return profile


def _document(path: Path) -> dict[str, Any]:
    data = read_bounded(path, MAX_PROFILE_BYTES, f"the profile {path}", "; name another")
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = data.decode()
        read = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the profile {path} is no {kind} ({error})") from error
    if not isinstance(read, dict):
        raise InvalidRequest(f"the profile {path} is no JSON object; it has the tables {', '.join(TABLES)}")
    return read


def _refuse_strangers(path: str, table: str, fields: dict[str, Any]) -> None:
    known = [field.name for field in (*FIELDS, INT8_SPEED) if field.table == table]
    known += ["step_ms"] if table in CURVES else []
    for name in fields:
        if name not in known:
            raise InvalidRequest(
                f"{path}: there is no field {table}.{name[:40]!r}; there are {', '.join(known)}"
            )


def _number(path: str, field: ProfileField, given: dict[str, Any]) -> float:
    value = given.get(field.table, {}).get(field.name, field.default)
    if value is None:
        raise InvalidRequest(f"{path} lacks {field.path} ({field.meaning}); write {field.rule}")
    fits = not isinstance(value, bool) and isinstance(value, int if field.whole else int | float)
    if not fits or not field.least <= value <= field.most:
        raise InvalidRequest(f"{path}: {field.path} is {_told(value)}; it is {field.rule}")
    return int(value) if field.whole else float(value)


def _curve(path: str, table: str, given: dict[str, Any]) -> StepCurve:
    where = CURVES[table]
    points = given.get(table, {}).get("step_ms")
    if points is None:
        raise InvalidRequest(f"{path} lacks {where}; write [[sequences, ms], …] as [[1, 20.0], [8, 35.0]]")
    if not isinstance(points, list) or not 1 <= len(points) <= MAX_STEP_POINTS:
        raise InvalidRequest(f"{path}: {where} is no list of 1 to {MAX_STEP_POINTS} points [sequences, ms]")
    read: list[tuple[int, float]] = []
    for point in points:
        match point:
            case [int(batch), int() | float() as time_ms] if (
                not isinstance(batch, bool)
                and not isinstance(time_ms, bool)
                and 1 <= batch <= MAX_SLOTS
                and 0 < time_ms <= MAX_TIME_MS
            ):
                read.append((batch, float(time_ms)))
            case _:
                raise InvalidRequest(
                    f"{path}: {where} has {_told(point)}; a point is [sequences from 1 to {MAX_SLOTS}, ms "
                    f"above 0, to {MAX_TIME_MS:g}]"
                )
        if len(read) > 1 and (read[-1][0] <= read[-2][0] or read[-1][1] < read[-2][1]):
            raise InvalidRequest(
                f"{path}: {where} has {_told(point)} behind {list(read[-2])}; sequences rise, ms do not fall"
            )
    return StepCurve(tuple(read))


def _check_together(path: str, profile: DeploymentProfile) -> None:
    """Refuse instances that no host has room for. Raises InvalidRequest."""
    for role, part in (
        ("gateway", profile.gateway),
        ("prefill", profile.prefill),
        ("decode", profile.decode),
    ):
        if part.cores > profile.host.cores:
            raise InvalidRequest(
                f"{path}: {role}.cores is {part.cores:g} and host.cores {profile.host.cores}; an instance is "
                "on one host"
            )
    for role, gpus in (("prefill", profile.prefill.gpus), ("decode", profile.decode.gpus)):
        if gpus > profile.host.gpus:
            raise InvalidRequest(
                f"{path}: {role}.gpus is {gpus} and host.gpus {profile.host.gpus}; an instance is on one host"
            )


def _told(value: object) -> str:
    try:
        return repr(value)[:60]
    except ValueError:  # TOML has hexadecimal numbers that are longer than Python prints
        return "a number of more digits than can be printed"
