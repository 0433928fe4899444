"""The settings of the planner: a table `[planner]` of a TOML file, every field bounded, a wrong one named."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from services.cli.bench.report.service_level import FORMS, ServiceLevel
from services.cli.capacity.prediction import NOT_PREDICTED
from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded_text
from shared.files.scale_file import MAX_INSTANCES

MAX_SETTINGS_BYTES = 1 << 16
"""The largest file of the planner's settings."""
MAX_LEVELS = 16
"""The most objectives that are planned for."""
MAX_SPARES = 8
"""The most instances of a role that are kept for those that fail."""
MAX_PLAN_S = 86_400.0
"""The longest time of a setting of the planner."""
MAX_CHANGES = 1000
"""The most instances that may come or go within a minute."""
TABLE = "planner"
ROLES_PLANNED = ("prefill", "decode")
"""The roles whose instances come and go: those with an engine that serves a model."""
OF_LIMITS = re.compile(r"(\d{1,4})-(\d{1,4})")


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """There are never fewer instances of a role than `least` (unless their model rests), nor more than
    `most`."""

    least: int
    most: int

    def bounded(self, count: int) -> int:
        return max(self.least, min(self.most, count))


DEFAULT_LIMITS = RoleLimits(1, 8)


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """`levels` are the objectives; of the roles in `limits` instances come and go, each model has its own.

    `spares`: so many more than the load needs, so that one may fail. Fewer are kept only after
    `scale_in_after_s` in which no more were needed; a model that nobody has asked for in `rest_after_s` loses
    its workers, 0: never. `cold_start_s` is from a decision to the first work, until one has been seen.
    `hosts`: instances share the cores of so many machines, None: each has its own.
    """

    levels: tuple[ServiceLevel, ...] = ()
    limits: Mapping[str, RoleLimits] = field(
        default_factory=lambda: {"prefill": DEFAULT_LIMITS, "decode": DEFAULT_LIMITS}
    )
    spares: int = 1
    scale_in_after_s: float = 300.0
    rest_after_s: float = 0.0
    changes_per_minute: int = 6
    cold_start_s: float = 30.0
    hosts: int | None = None
    profile: Path | None = None


def read_planner_settings(path: Path) -> PlannerSettings:
    """Read the table `[planner]`. Raises InvalidRequest, which names the field."""
    text = read_bounded_text(path, MAX_SETTINGS_BYTES, str(path), "; name another file")
    try:
        given = tomllib.loads(text).get(TABLE)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is no TOML ({error})") from error
    if not isinstance(given, dict):
        raise InvalidRequest(f"{path} has no table [{TABLE}]; write one, an empty one has every default")
    return _settings_of(path, given)


def _settings_of(path: Path, given: Mapping[str, Any]) -> PlannerSettings:
    known = [*(each.name for each in fields(PlannerSettings) if each.name not in OTHERWISE_NAMED), "slo"]
    names = sorted({*known, *ROLES_PLANNED})
    for name in given:
        if name not in names:
            raise InvalidRequest(f"{path}: there is no {TABLE}.{name[:40]}; there are {', '.join(names)}")
    read: dict[str, Any] = {
        name: reader(f"{path}: {TABLE}.{name}", given[name])
        for name, reader in READERS.items()
        if name in given
    }
    if "slo" in given:
        read["levels"] = _levels(f"{path}: {TABLE}.slo", given["slo"])
    if "profile" in read:
        read["profile"] = path.parent / read["profile"]
    limits = {
        role: _limits(f"{path}: {TABLE}.{role}", given[role]) for role in ROLES_PLANNED if role in given
    }
    if limits:
        read["limits"] = limits
    return PlannerSettings(**read)


OTHERWISE_NAMED = ("levels", "limits")
"""Fields that the table has by other names: `slo`, and one for each role."""


def _whole(least: int, most: int) -> Callable[[str, object], int]:
    def value(where: str, given: object) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise InvalidRequest(f"{where} is {given!r:.40}; it is a whole number from {least} to {most}")
        return given

    return value


def _seconds(where: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MAX_PLAN_S:
        raise InvalidRequest(f"{where} is {given!r:.40}; it is a number of seconds to {MAX_PLAN_S:g}")
    return float(given)


def _path(where: str, given: object) -> Path:
    if not isinstance(given, str) or not given:
        raise InvalidRequest(f"{where} is {given!r:.40}; it is the name of a file")
    return Path(given)


READERS: Mapping[str, Callable[[str, object], Any]] = {
    "spares": _whole(0, MAX_SPARES),
    "scale_in_after_s": _seconds,
    "rest_after_s": _seconds,
    "changes_per_minute": _whole(1, MAX_CHANGES),
    "cold_start_s": _seconds,
    "hosts": _whole(1, 4096),
    "profile": _path,
}


def _levels(where: str, given: object) -> tuple[ServiceLevel, ...]:
    if not isinstance(given, list) or len(given) > MAX_LEVELS:
        raise InvalidRequest(f"{where} is no list of up to {MAX_LEVELS} objectives; write {FORMS}")
    found = []
    for text in given:
        try:
            level = ServiceLevel.read(text if isinstance(text, str) else repr(text)[:40])
        except ValueError as error:
            raise InvalidRequest(f"{where}: {error}") from error
        if level.quantity in NOT_PREDICTED or level.source:
            raise InvalidRequest(f"{where}: {level.text!r} cannot be predicted; leave it out")
        found.append(level)
    return tuple(found)


def _limits(where: str, given: object) -> RoleLimits:
    match = OF_LIMITS.fullmatch(given) if isinstance(given, str) else None
    least, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= least <= most <= MAX_INSTANCES:
        raise InvalidRequest(
            f"{where} is {given!r:.40}; write the fewest and the most, as in '1-{MAX_INSTANCES}'"
        )
    return RoleLimits(least, most)
