"""Take changes of an operator, keep them in a file, and hear of those that other gateways took.

No gateway leads: each has all changes, tells their digest in its heartbeats, and asks one that tells another
digest for what it has. Who cannot hear anybody goes on with what it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import structlog

from services.gateway.config import GatewayConfig
from services.gateway.flags.flag_guards import FlaggedTimes, FlagGuards
from services.gateway.flags.flag_settings import described_settings, flag_value
from services.gateway.flags.flag_traffic import times_of
from services.gateway.flags.flags_in_force import FlagsInForce
from services.gateway.scope.request_record import RequestRecord
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import InvalidRequest, PenstockError, Unavailable
from shared.flags.flag_file import read_flag_file, unite_flag_file
from shared.flags.flag_history import MAX_FLAG_DAYS, MAX_FLAGS, FlagHistory, change_problem
from shared.flags.guard import RequestTimes, parse_guard
from shared.messages import (
    ChangeFlag,
    FlagChange,
    FlagChanged,
    FlagLogReport,
    FlagLogRequest,
)
from shared.telemetry import metrics
from shared.telemetry.bounded_label import BoundedLabel
from shared.ticks import until_tick

log = structlog.get_logger()

WATCH_S = 1.0
"""The time between two looks at guards, at what has ended, and at what other gateways know."""
DISK_S = 2.0
"""The longest wait for the file: a guard must not wait for a disk."""
ASK_S = 1.0
"""The longest wait for what another gateway knows."""
GUARD = "guard"
"""The author of a change that a guard makes."""
VERSIONS = BoundedLabel()


class FlagKeeper:
    """The changes of one gateway. `file` None: they last as long as some gateway of the fleet does."""

    @classmethod
    def of(
        cls, instance: str, config: GatewayConfig, bus: Bus, fleet: FleetView, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """A file that cannot be read keeps no gateway from serving: it is logged, and shows in metrics."""
        keeper = cls(instance, config, bus, fleet, Path(config.flags) if config.flags else None, clock)
        keeper._read_file()
        return keeper

    def __init__(
        self,
        instance: str,
        config: GatewayConfig,
        bus: Bus,
        fleet: FleetView,
        file: Path | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._instance = instance
        self._config = config
        self._bus = bus
        self._fleet = fleet
        self._file = file
        self._clock = clock
        self._history = FlagHistory()
        self._flags = FlagsInForce(config)
        self._guards = FlagGuards(clock)
        self._changing = asyncio.Lock()
        self._unwritten = False
        self._heard: dict[str, tuple[str, str]] = {}
        """The digest of each gateway that was asked, with ours after that."""
        self.digest = ""

    @property
    def are_in_force(self) -> bool:
        """Whether any request may get a change."""
        return bool(self._flags.active)

    # ---- what requests ask -------------------------------------------------------------------------

    def versions_for(self, tenant: str, model: Callable[[], str], unit: str) -> tuple[str, ...]:
        """Return the changes that a request gets, as `FlagsInForce` says."""
        return self._flags.versions_for(tenant, model, unit)

    def config_of(self, versions: tuple[str, ...]) -> GatewayConfig:
        """Return the settings of a request that has these."""
        return self._flags.config_of(versions)

    def versions_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Return the versions with these numbers, which another gateway gave to a stream."""
        return self._flags.versions_of(numbers)

    def record_end(self, record: RequestRecord) -> None:
        """A request that has changes has ended."""
        self._record(times_of(record))

    def record_refused(self, versions: tuple[str, ...]) -> None:
        """A request that would have had these was not taken."""
        if versions:
            self._record(FlaggedTimes(versions, RequestTimes(0.0, None, 0, "shed")))

    def _record(self, ended: FlaggedTimes) -> None:
        self._guards.record_end(ended)
        for version in ended.flags:
            metrics.FLAGGED_REQUESTS.labels(
                setting=self._flags.setting_of(version),
                version=VERSIONS.label(version),
                outcome=ended.times.outcome,
            ).inc()

    # ---- what operators and other gateways ask -----------------------------------------------------

    def report(self) -> FlagLogReport:
        """Return all changes, and the settings that there are."""
        history = self._history
        settings = described_settings(self._config)
        return FlagLogReport(history.changes, history.forgotten, settings, self._flags.unusable)

    async def change(self, asked: ChangeFlag) -> FlagChanged:
        """Put a change in force, once it is in the file. Raises InvalidRequest, NotFound, Unavailable."""
        async with self._changing:
            await self._hear_others()
            change = self._numbered(asked)
            self._put_in_force(await self._united_with_file(self._history.united([change])))
        _note_change(change, "rollback" if change.rolls_back else "set")
        return FlagChanged(change.version, self.digest)

    def _numbered(self, asked: ChangeFlag) -> FlagChange:
        """Return the change as it will stand. Raises InvalidRequest, NotFound."""
        now_us = self._clock.unix_us()
        rolls_back = self._in_force(asked.rolls_back).version if asked.rolls_back else ""
        if not 0 <= asked.lasts_s <= MAX_FLAG_DAYS * 86_400:
            raise InvalidRequest(f"it lasts {asked.lasts_s} s: send seconds up to {MAX_FLAG_DAYS} days")
        change = FlagChange(
            number=self._history.next_number,
            origin=self._instance,
            made_unix_us=now_us,
            author=asked.author,
            reason=asked.reason,
            setting=asked.setting,
            value=asked.value,
            tenant=asked.tenant,
            model=asked.model,
            share=asked.share,
            guard=asked.guard,
            ends_unix_us=now_us + asked.lasts_s * 1_000_000 if asked.lasts_s else 0,
            rolls_back=rolls_back,
        )
        if problem := change_problem(change):
            raise InvalidRequest(problem)
        if not (change.author and change.reason):
            raise InvalidRequest("a change needs an author and a reason: send both")
        if change.setting:
            flag_value(change.setting, change.value)
            parse_guard(change.guard)
            if len(self._history.in_force(now_us)) >= MAX_FLAGS:
                raise InvalidRequest(f"{MAX_FLAGS} changes are in force: roll some back first")
        return change

    def _in_force(self, name: str) -> FlagChange:
        change = self._history.find(name)
        if change not in self._history.in_force(self._clock.unix_us()):
            raise InvalidRequest(f"{change.version} is not in force: there is nothing to roll back")
        return change

    # ---- the file, and the others ------------------------------------------------------------------

    async def watch(self, live: Callable[[], Iterable[FlaggedTimes]], changed: Callable[[], None]) -> None:
        """Keep to guards, to time, to the others and to the file, for ever. `live` are the requests with
        changes that run; `changed` asks for a heartbeat."""
        while True:
            before = self.digest
            await self.look(live)
            if self.digest != before:
                changed()
            await until_tick(WATCH_S)

    async def look(self, live: Callable[[], Iterable[FlaggedTimes]]) -> None:
        """Do all that `watch` does, once."""
        self._flags.refresh(self._clock.unix_us())
        self._guards.put(self._flags.active)
        metrics.FLAGS_IN_FORCE.set(len(self._flags.active))
        async with self._changing:
            if self._guards.watches:
                for version, why in self._guards.burning(live()).items():
                    self._burn(version, why)
            await self._hear_others()
            await self._write_file()

    def _burn(self, version: str, why: str) -> None:
        """End a change whose guard burns, at once; the file and the others hear of it next."""
        change = FlagChange(
            number=self._history.next_number,
            origin=self._instance,
            made_unix_us=self._clock.unix_us(),
            author=GUARD,
            reason=why,
            rolls_back=version,
        )
        self._put_in_force(self._history.united([change]))
        self._unwritten = True
        _note_change(change, "guard")

    async def _hear_others(self) -> None:
        """Ask every gateway whose digest is another one for what it knows."""
        told = {
            view.heartbeat.instance: view.heartbeat.gateway.flags
            for view in self._fleet.instances("gateway")
            if view.heartbeat.instance != self._instance
        }
        self._heard = {name: heard for name, heard in self._heard.items() if name in told}
        wanted = [
            name
            for name, digest in told.items()
            if digest not in ("", self.digest) and self._heard.get(name) != (digest, self.digest)
        ]
        if not wanted:
            return
        reports = await asyncio.gather(*map(self._ask, wanted))
        for name, report in zip(wanted, reports, strict=True):
            if report is not None:
                self._take(name, report)
                self._heard[name] = told[name], self.digest

    async def _ask(self, gateway: str) -> FlagLogReport | None:
        deadline = Deadline.after(ASK_S)
        try:
            answer = await self._bus.ask(
                inbox("gateway", gateway), FlagLogRequest(), self._bus.envelope(deadline=deadline), deadline
            )
        except PenstockError as error:
            log.info("flags_not_heard", peer=gateway, error=str(error))
            return None
        return answer if isinstance(answer, FlagLogReport) else None

    def _take(self, gateway: str, report: FlagLogReport) -> None:
        usable = [change for change in report.changes if not change_problem(change)]
        if len(usable) < len(report.changes):
            log.warning("flags_unusable", peer=gateway, changes=len(report.changes) - len(usable))
        history = self._history.united(usable, report.forgotten)
        if history != self._history:
            self._put_in_force(history)
            self._unwritten = True
            log.info("flags_heard", peer=gateway, changes=len(history.changes), digest=self.digest)

    def _read_file(self) -> None:
        if self._file is None:
            return
        try:
            read = read_flag_file(self._file)
        except (OSError, PenstockError) as error:
            self._say_stale(str(error))
            return
        if read.trouble:
            self._say_stale(read.trouble)
        self._put_in_force(read.history)
        if self._flags.active:
            log.info("flags_in_force", versions=[change.version for change in self._flags.active])

    async def _write_file(self) -> None:
        """Write what the file does not have yet; what cannot be written now is written later."""
        if not self._unwritten:
            return
        try:
            history = await self._united_with_file(self._history)
        except PenstockError as error:
            self._say_stale(str(error))
            return
        self._unwritten = False
        metrics.FLAGS_STALE.set(0)
        if history != self._history:
            self._put_in_force(history)

    async def _united_with_file(self, history: FlagHistory) -> FlagHistory:
        """Put it into the file, and return it with what that had. Raises Unavailable, InvalidRequest."""
        if self._file is None:
            return history
        try:
            async with asyncio.timeout(DISK_S):
                return await asyncio.to_thread(unite_flag_file, self._file, history)
        except OSError as error:  # a disk that is full, or, as TimeoutError, one that hangs
            why = error.strerror or str(error) or f"it took longer than {DISK_S:g} s"
            raise Unavailable(
                f"{self._file} cannot be written ({why}): see to its disk", hop="gateway"
            ) from error

    def _say_stale(self, why: str) -> None:
        metrics.FLAGS_STALE.set(1)
        log.error("flags_file_unusable", error=why)

    def _put_in_force(self, history: FlagHistory) -> None:
        self._history = history
        self.digest = history.digest
        self._flags.put(history, self._clock.unix_us())
        self._guards.put(self._flags.active)
        metrics.FLAGS_IN_FORCE.set(len(self._flags.active))


def _note_change(change: FlagChange, kind: str) -> None:
    metrics.FLAG_CHANGES.labels(kind=kind).inc()
    log.warning(
        "flag_changed",
        version=change.version,
        kind=kind,
        author=change.author,
        reason=change.reason,
        setting=change.setting,
        value=change.value,
        tenant=change.tenant,
        model=change.model,
        share=change.share,
        rolls_back=change.rolls_back,
    )
