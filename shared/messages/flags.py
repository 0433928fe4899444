"""An operator changes settings of gateways at run time, and gateways tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TRAFFIC_ROWS = 1024
"""The most requests of which a gateway tells at once: the latest."""


@dataclass(frozen=True, slots=True)
class FlagChange:
    """One change, for good: `number` is one above all that its gateway `origin` knew of; both name it.

    It sets `setting` of [gateway] to `value`, a text as in the environment, for the requests of `tenant` and
    `model` ("" = all of them), of which a `share` gets it, above 0 and up to 1. It is over at `ends_unix_us`
    (0 = never), or as soon as a `guard` burns ("" = none). Or it sets nothing and ends the change
    `rolls_back`.
    """

    number: int
    origin: str
    made_unix_us: int
    author: str
    reason: str
    setting: str = ""
    value: str = ""
    tenant: str = ""
    model: str = ""
    share: float = 1.0
    guard: str = ""
    ends_unix_us: int = 0
    rolls_back: str = ""

    @property
    def version(self) -> str:
        """The name of the change."""
        return f"{self.number}@{self.origin}"


@dataclass(frozen=True, slots=True)
class ChangeFlag:
    """operator → gateway (ask): take this change, or end the one that `rolls_back` names. Answered by
    FlagChanged.

    Fields as in FlagChange; the gateway numbers it and says when it was made. `lasts_s`: how long it is in
    force, 0 until it is rolled back.
    """

    author: str
    reason: str
    setting: str = ""
    value: str = ""
    tenant: str = ""
    model: str = ""
    share: float = 1.0
    guard: str = ""
    lasts_s: int = 0
    rolls_back: str = ""


@dataclass(frozen=True, slots=True)
class FlagChanged:
    """The change is in force at this gateway as `version`, and in its file. `digest` is that of all that it
    knows, as its heartbeats tell it."""

    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class FlagLogRequest:
    """operator or gateway → gateway (ask): which changes do you know? Answered by FlagLogReport."""


@dataclass(frozen=True, slots=True)
class FlagSetting:
    """A setting that can be changed: its value in [gateway], which values there are, and what it does."""

    name: str
    value: str
    allowed: str
    help: str


@dataclass(frozen=True, slots=True)
class FlagLogReport:
    """All changes that the gateway keeps; of those with a number up to `forgotten` it has let some go that
    were over. `unusable`: versions that set what this version of the code cannot."""

    changes: tuple[FlagChange, ...]
    forgotten: int = 0
    settings: tuple[FlagSetting, ...] = ()
    unusable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagTrafficRequest:
    """operator → gateway (ask): which requests have ended that began since then? Answered by FlagTraffic."""

    since_unix_us: int


@dataclass(frozen=True, slots=True)
class FlagTrafficRow:
    """A request that has ended. `model` is what its client asked for, `flags` the versions that it had;
    `ttft_us` is 0 where no token came."""

    tenant: str
    model: str
    outcome: str
    began_unix_us: int
    ttft_us: int
    total_us: int
    output_tokens: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagTraffic:
    """The latest MAX_TRAFFIC_ROWS at most; all that ended since `since_unix_us` are among them."""

    rows: tuple[FlagTrafficRow, ...]
    since_unix_us: int
