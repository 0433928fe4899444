"""Say which changes a request gets, and what its settings are with them. Pure, but for what it keeps.

A request is looked at once, as it is read, and keeps what it got until it ends: it carries the versions, and
its settings follow from them, whatever is changed or rolled back meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from services.gateway.config import GatewayConfig
from services.gateway.flags.flag_settings import FlagValue, flag_value
from shared.errors import InvalidRequest
from shared.flags.flag_history import FlagHistory
from shared.flags.flag_match import is_for, is_in_share
from shared.messages import FlagChange

MAX_KEPT_CONFIGS = 256
"""The most combinations of changes of which the settings are kept ready."""


class FlagsInForce:
    """`config` is what is set where nothing is changed."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._history = FlagHistory()
        self._values: dict[str, FlagValue] = {}
        self._configs: dict[tuple[str, ...], GatewayConfig] = {}
        self._asks_model = False
        self.active: tuple[FlagChange, ...] = ()
        self.unusable: tuple[str, ...] = ()

    def put(self, history: FlagHistory, now_unix_us: int) -> None:
        """Go by this history from now on. A change that this version of the code does not know is left
        out."""
        self._history = history
        values, unusable = {}, []
        for change in history.changes:
            if change.setting:
                try:
                    values[change.version] = flag_value(change.setting, change.value)
                except InvalidRequest:
                    unusable.append(change.version)
        self._values, self.unusable, self._configs = values, tuple(unusable), {}
        self.refresh(now_unix_us)

    def refresh(self, now_unix_us: int) -> None:
        """Leave out what has ended since."""
        in_force = self._history.in_force(now_unix_us)
        self.active = tuple(change for change in in_force if change.version in self._values)
        self._asks_model = any(change.model for change in self.active)

    def versions_for(self, tenant: str, model: Callable[[], str], unit: str) -> tuple[str, ...]:
        """Return the changes that a request gets: of each setting the first that is for it. `model` says
        which one it asks for, and is called where that matters alone; `unit` is what shares go by."""
        if not self.active:
            return ()
        asked = model() if self._asks_model else ""
        found: dict[str, str] = {}
        for change in self.active:
            if change.setting not in found and is_for(change, tenant, asked) and is_in_share(change, unit):
                found[change.setting] = change.version
        return tuple(found.values())

    def config_of(self, versions: tuple[str, ...]) -> GatewayConfig:
        """Return the settings of a request that has these; one that is not known any more changes nothing."""
        if not versions:
            return self._config
        if (config := self._configs.get(versions)) is not None:
            return config
        if len(self._configs) >= MAX_KEPT_CONFIGS:
            self._configs.clear()
        known = [self._values[version] for version in versions if version in self._values]
        config = replace(self._config, **{each.setting: each.value for each in known})
        self._configs[versions] = config
        return config

    def setting_of(self, version: str) -> str:
        """Return what a version sets, "" where that is not known."""
        known = self._values.get(version)
        return "" if known is None else known.setting

    def versions_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Return the versions with these numbers, whether they are in force or not."""
        wanted = {*numbers}
        return tuple(change.version for change in self._history.changes if change.number in wanted)
