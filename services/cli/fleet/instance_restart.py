"""The restart of one instance: it drains, or is killed where it hangs, and its next life becomes ready."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from services.cli.fleet.draining import POLL_S, begin_drain, end_of
from services.cli.fleet.fleet_watch import Fleet, Seen
from services.cli.fleet.stack_process import StackProcess
from shared.bus import Bus
from shared.errors import NoAnswer, NoListener, Unavailable
from shared.messages import Heartbeat


@dataclass(frozen=True, slots=True)
class InstanceLife:
    """An instance as it is before the restart; `beat` is its last heartbeat, None where it says nothing."""

    instance: str
    pid: int
    beat: Heartbeat | None

    @property
    def role(self) -> str:
        """Names begin with it."""
        return self.instance.rpartition("-")[0] if self.beat is None else self.beat.role

    def is_of(self, beat: Heartbeat) -> bool:
        """Return whether a heartbeat of the instance is of this life."""
        return beat.pid == self.pid if self.beat is None else beat.incarnation == self.beat.incarnation


class InstanceRestart:
    """`process` is the one of the life, where it is of a stack here: it is killed when it has not answered
    for `kill_after_s`, or, once it drains, has said nothing for so long. Elsewhere nobody is killed.
    `patience_s` as in `begin_drain`."""

    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        life: InstanceLife,
        process: StackProcess | None,
        kill_after_s: float,
        patience_s: float = 0,
    ) -> None:
        self.fleet = fleet
        self.life = life
        self._bus = bus
        self._process = process
        self._kill_after_s = kill_after_s
        self._patience_s = patience_s
        self._began_s = self._heard_s = time.monotonic()
        self._is_killed = False
        self._is_told_of_end = False

    async def run(self, timeout_s: float) -> bool:
        """Return whether it is ready again in time. Raises Unavailable where it hangs and is not ours."""
        self._began_s = time.monotonic()
        await self._begin()
        self._heard_s = time.monotonic()
        while (again := self._next_life()) is None or again.state != "ready":
            self._watch_the_end()
            if self._took_s >= timeout_s:
                print(self._late(again, timeout_s))
                return False
            await asyncio.sleep(POLL_S)
        self._tell_end()  # where the next life was as quick as we are
        print(f"{self.life.instance} is ready again after {self._took_s:.1f} s, as process {again.pid}")
        return True

    @property
    def _took_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _begin(self) -> None:
        """Ask it to finish and end, for so long as it may hang."""
        instance, beat = self.life.instance, self.life.beat
        if beat is None:
            _say(f"{instance} says nothing; it is asked to drain, for {self._kill_after_s:g} s at most")
        while not self._has_ended:
            left_s = max(POLL_S, self._kill_after_s - self._took_s)
            try:
                await begin_drain(self._bus, self.life.role, instance, left_s, patience_s=self._patience_s)
            except (NoAnswer, NoListener) as error:
                if self._took_s >= self._kill_after_s:
                    self._end_hung(error)
                    return
                await asyncio.sleep(POLL_S)
            else:
                _say(f"{instance} drains" if beat is None else f"{instance} drains; it holds {beat.live}")
                return

    def _end_hung(self, error: NoAnswer | NoListener) -> None:
        if self._process is None:
            raise Unavailable(
                f"{self.life.instance} does not answer, and its process is not one of a stack here; end it "
                "where it runs"
            ) from error
        self._kill(f"has not answered for {self._kill_after_s:g} s")

    def _kill(self, what: str) -> None:
        assert self._process is not None
        self._process.kill()
        self._is_killed = True
        _say(f"{self.life.instance} hangs: it {what}; its process {self._process.pid} is killed (SIGKILL)")

    def _watch_the_end(self) -> None:
        """Say that it has ended, once; kill it where it hangs on the way there."""
        if self._has_ended:
            self._tell_end()
            return
        if (seen := self._seen()) is not None:
            self._heard_s = max(self._heard_s, seen.silent_since_s)
        silent_s = time.monotonic() - self._heard_s
        if self._process is not None and not self._is_killed and silent_s >= self._kill_after_s:
            self._kill(f"has said nothing for {self._kill_after_s:g} s")

    def _tell_end(self) -> None:
        if not self._is_told_of_end:
            _say(f"{self.life.instance} has ended after {self._took_s:.1f} s; it is started again …")
        self._is_told_of_end = True

    @property
    def _has_ended(self) -> bool:
        if self._process is not None:
            return self._process.has_ended
        beat = self.life.beat
        return self._next_life() is not None or (beat is not None and end_of(self.fleet, beat) is not None)

    def _seen(self) -> Seen | None:
        """Return what was heard of it last, of whichever life."""
        return next((seen for seen in self.fleet.all() if seen.beat.instance == self.life.instance), None)

    def _next_life(self) -> Heartbeat | None:
        """Return the last heartbeat of the life that came after this one, None while there is none."""
        seen = self._seen()
        return None if seen is None or self.life.is_of(seen.beat) else seen.beat

    def _late(self, again: Heartbeat | None, timeout_s: float) -> str:
        instance = self.life.instance
        if not self._has_ended:
            return f"{instance} has not ended after {timeout_s:g} s and goes on draining"
        if again is None:
            return f"{instance} has ended, and nobody has started it again after {timeout_s:g} s"
        return (
            f"{instance} has ended and is not ready again after {timeout_s:g} s, it is {again.state}; "
            f"`penstock logs {instance}` shows what it says"
        )


def _say(sentence: str) -> None:
    print(sentence, flush=True)
