"""The adapters of a worker: what comes with its model and what the adapter file wants over it, and what has
become of them.

Reading and packing weights is done beside the engine's thread, so that no stream waits for it. Whatever goes
wrong is told in the heartbeats and leaves what is there as it is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from shared.engine import AdapterInfo
from shared.errors import InvalidRequest, Overloaded, PenstockError
from shared.files.adapter_file import AdapterEntry, read_adapter_file
from shared.files.file_signature import FileSignature
from shared.files.followed_file import FollowedFile
from shared.messages import MAX_REPORTED_CHARS, AdapterId, AdapterReport
from shared.process.niceness import give_way
from shared.seams.threads import THREADS
from shared.telemetry import metrics
from shared.ticks import until_tick

log = structlog.get_logger()

POLL_S = 1.0
"""The time between two looks at the file."""
ELSEWHERE_MS = 250
"""A heartbeat later the gateway knows what is loaded here."""


class AdaptableEngine(Protocol):
    """The parts of an Engine that are needed here, from any thread."""

    def load_adapter(self, name: str, directory: str, /) -> AdapterInfo: ...
    def unload_adapter(self, name: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class _Served:
    """`engine_name`: another one for each version, so that the next is loaded while the last is in use."""

    entry: AdapterEntry
    engine_name: str
    digest: str
    rank: int


class WorkerAdapters:
    """`base` is the name of the worker's model, `shipped` are (name, folder) of what comes with it: an entry
    of the file takes the place of one of its name. Without a `file` there are these alone.

    `changed` is called when there is something new to tell.
    """

    def __init__(
        self,
        file: Path | None = None,
        base: str = "",
        *,
        shipped: Sequence[tuple[str, Path]] = (),
        most: int = 0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._file = None if file is None else FollowedFile(file)
        self._base = base
        self._most = most
        self._changed = changed
        self._signature: FileSignature = None
        self._shipped = tuple(AdapterEntry(base, name, str(folder), 0) for name, folder in shipped)
        self._listed: tuple[AdapterEntry, ...] = ()
        """The adapters that the file has over this model."""
        self._served: dict[str, _Served] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        """The version, and why."""
        self._retired: list[str] = []
        """Engine names of which jobs may still be here."""
        self._is_due = bool(shipped)
        """There is something to load of which the file says nothing new."""
        self._serials = itertools.count(1)
        self._loader = THREADS.pool(1, "adapter-loader", initializer=give_way)

    # ---- for the worker ---------------------------------------------------------------------------

    def engine_name(self, adapter: AdapterId) -> str:
        """Return the engine's name for it, "" for no adapter. Raises Overloaded where another worker may
        have it."""
        if not adapter.name:
            return ""
        served = self._served.get(adapter.name)
        if served is None or served.digest != adapter.digest:
            raise Overloaded(
                f"the adapter {adapter.name!r} is not loaded here as it was asked for; use another worker",
                retry_after_ms=ELSEWHERE_MS,
            )
        return served.engine_name

    def name_for_draft(self, name: str) -> str:
        """The same for a draft, which may be made without one: "" where it is not here."""
        served = self._served.get(name)
        return "" if served is None else served.engine_name

    def reports(self) -> tuple[AdapterReport, ...]:
        """Return every entry that was acted on, for heartbeats."""
        found = []
        for name in sorted({*self._served, *self._refused}):
            served = self._served.get(name)
            told = AdapterReport(name, 0, "", 0)
            if served is not None:
                entry = served.entry
                told = AdapterReport(name, entry.version, served.digest, served.rank, tenants=entry.tenants)
            version, error = self._refused.get(name, (told.version, ""))
            found.append(replace(told, version=version, error=error))
        return tuple(found)

    # ---- following the file -------------------------------------------------------------------------

    async def watch_file(self, engine: AdaptableEngine, in_use: Callable[[], Collection[str]]) -> None:
        """Keep to the file for as long as there is one. `in_use`: engine names that jobs here have."""
        while self._file is not None:
            await until_tick(POLL_S)
            self._unload_retired(engine, in_use())
            await self.follow(engine)

    async def follow(self, engine: AdaptableEngine) -> None:
        """Make what is loaded what the file says, if that has changed."""
        if await self._read() or self._is_due:
            self._is_due = False
            await self._load_wanted(engine)
            metrics.ADAPTERS.set(len(self._served))

    async def _read(self) -> bool:
        """Return whether there is something new to act on. A file that cannot be used changes nothing."""
        if self._file is None:
            return False
        signature = await self._file.signature()
        if signature == self._signature:
            return False
        self._signature = signature
        try:
            entries = await asyncio.to_thread(
                read_adapter_file, self._file.path, may_be_missing=not self._listed
            )
        except InvalidRequest as error:
            metrics.ADAPTERS_STALE.set(1)
            log.error("adapter_file_unusable", error=error.message)  # noqa: TRY400 - a sentence
            return False
        metrics.ADAPTERS_STALE.set(0)
        self._listed = tuple(each for each in entries if each.base == self._base)
        return True

    async def _load_wanted(self, engine: AdaptableEngine) -> None:
        listed = {each.name for each in self._listed}
        wanted = (*(each for each in self._shipped if each.name not in listed), *self._listed)
        names = {each.name for each in wanted}
        for name in [name for name in self._served if name not in names]:
            self._retired.append(self._served.pop(name).engine_name)
            log.info("adapter_unloaded", adapter=name)
        self._refused = {}
        self._follow_tenants(wanted)
        self._changed()
        for number, entry in enumerate(wanted):
            before = self._served.get(entry.name)
            if before is not None and before.entry == entry:
                continue
            if number >= self._most:
                self._refuse(entry, f"{self._most} adapters are all that max_adapters lets be here: raise it")
            else:
                await self._load(engine, entry)
            self._changed()

    def _follow_tenants(self, wanted: Sequence[AdapterEntry]) -> None:
        """Let the tenants of the file alone use what is loaded, also while its next version is not here."""
        for entry in wanted:
            if (served := self._served.get(entry.name)) is not None:
                served_entry = replace(served.entry, tenants=entry.tenants)
                self._served[entry.name] = replace(served, entry=served_entry)

    async def _load(self, engine: AdaptableEngine, entry: AdapterEntry) -> None:
        engine_name = f"{entry.name}.{next(self._serials)}"
        loading = asyncio.get_running_loop().run_in_executor(
            self._loader, engine.load_adapter, engine_name, entry.directory
        )
        try:
            info = await loading
        except PenstockError as error:
            self._refuse(entry, error.message)
        except OSError as error:
            self._refuse(entry, f"{entry.directory} cannot be read ({error.strerror})")
        except Exception as error:
            log.exception("adapter_failed", adapter=entry.name)
            self._refuse(
                entry, f"it cannot be loaded ({type(error).__name__}); the worker's log has the cause"
            )
        else:
            before = self._served.get(entry.name)
            if before is not None:
                self._retired.append(before.engine_name)
            self._served[entry.name] = _Served(entry, engine_name, info.digest, info.rank)
            log.info(
                "adapter_loaded", adapter=entry.name, digest=info.digest, rank=info.rank, bytes=info.nbytes
            )

    def _refuse(self, entry: AdapterEntry, why: str) -> None:
        if len(why) > MAX_REPORTED_CHARS:
            why = why[: MAX_REPORTED_CHARS - 1] + "…"
        self._refused[entry.name] = (entry.version, why)
        log.error("adapter_refused", adapter=entry.name, error=why)

    def _unload_retired(self, engine: AdaptableEngine, in_use: Collection[str]) -> None:
        """Unload adapters that no job has any more; their room may be enough for one that found none."""
        for name in [name for name in self._retired if name not in in_use]:
            engine.unload_adapter(name)
            self._retired.remove(name)
            self._is_due = bool(self._refused)
