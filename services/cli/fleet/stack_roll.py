"""The roll of a stack: role by role, with an instance more while the others are started anew."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Collection
from pathlib import Path

from services.cli.fleet.draining import POLL_S, beat_of
from services.cli.fleet.fleet_watch import NATS_URL_OPTION, Fleet
from services.cli.fleet.instance_restart import InstanceLife, InstanceRestart
from services.cli.fleet.stack_process import stack_process
from services.cli.stack_file import stack_pids, stack_roll
from shared.bus import Bus
from shared.errors import Unavailable
from shared.files.roll_file import StackRoll, stand_in_name, write_roll

ROLL_ORDER = ("tokenizer", "retriever", "detokenizer", "speculator", "decode", "prefill", "gateway")
"""The roles that are asked come before those that ask, so that what a newer one asks for is known."""
FOLLOW_TIMEOUT_S = 15.0
"""The longest time in which a launcher sees what it is to do: it looks once a second."""


class FleetRoll:
    """`timeout_s` is for each instance until it is ready, `kill_after_s` as for an `InstanceRestart`.
    Of the roles `in_place` nobody stands in for another."""

    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        state_dir: Path,
        roll: StackRoll,
        timeout_s: float,
        kill_after_s: float,
        in_place: Collection[str] = (),
    ) -> None:
        self._bus = bus
        self._fleet = fleet
        self._state_dir = state_dir
        self._roll = roll
        self._timeout_s = timeout_s
        self._kill_after_s = kill_after_s
        self._in_place = in_place

    async def run(self) -> bool:
        """Return whether every instance is ready again; else a sentence has told why not. Raises Unavailable
        where the launcher does not follow."""
        began_s = time.monotonic()
        await self._tell(stand_in="", stands_for="")
        for group in self._groups():
            if not await self._roll_group(group):
                return False
        self._roll = dataclasses.replace(self._roll, is_done=True)
        write_roll(self._state_dir, self._roll)
        _say(f"{len(self._roll.lives)} instances run anew after {time.monotonic() - began_s:.1f} s")
        return True

    def _groups(self) -> list[list[InstanceLife]]:
        """Return the instances of each role, and of each model of it, in the order of the roll."""
        lives = [
            InstanceLife(name, pid, beat if beat is not None and beat.pid == pid else None)
            for name, pid in sorted(self._roll.lives.items())
            for beat in [beat_of(self._fleet, name)]
        ]
        groups: dict[tuple[int, str], list[InstanceLife]] = {}
        for life in lives:
            model = "" if life.beat is None else life.beat.model
            groups.setdefault((ROLL_ORDER.index(life.role), model), []).append(life)
        return [groups[key] for key in sorted(groups)]

    async def _roll_group(self, group: list[InstanceLife]) -> bool:
        role, first = group[0].role, group[0].instance
        of_role = [name for name in stack_pids(self._state_dir, NATS_URL_OPTION) if _role_of(name) == role]
        stand_in = "" if role in self._in_place else stand_in_name(role, len(of_role))
        if stand_in:
            await self._tell(stand_in=stand_in, stands_for=first)
            if not await self._is_ready(stand_in, first):
                return False
        for life in group:
            if not await self._restart(life):
                _say(f"{stand_in or 'nobody'} stands in for it; the same command goes on from here")
                return False
        await self._tell(stand_in="", stands_for="")
        return True

    async def _restart(self, life: InstanceLife) -> bool:
        with stack_process(self._state_dir, life.pid) as process:
            restart = InstanceRestart(
                self._bus, self._fleet, life, process, self._kill_after_s, patience_s=self._timeout_s
            )
            return await restart.run(self._timeout_s)

    async def _is_ready(self, stand_in: str, stands_for: str) -> bool:
        """Wait for it; nothing has been touched yet where it does not come."""
        until_s = time.monotonic() + self._timeout_s
        while time.monotonic() < until_s:
            _, _, trouble = stack_roll(self._state_dir, NATS_URL_OPTION)
            if trouble:
                _say(f"{trouble}; {stands_for} and all that have not been rolled go on as they are")
                return False
            beat = beat_of(self._fleet, stand_in)
            if beat is not None and beat.state == "ready":
                _say(f"{stand_in} stands in for {stands_for}")
                return True
            await asyncio.sleep(POLL_S)
        _say(
            f"{stand_in} was not ready after {self._timeout_s:g} s; {stands_for} and all that have not been "
            f"rolled go on as they are; `penstock logs {stand_in}` shows what it says"
        )
        return False

    async def _tell(self, *, stand_in: str, stands_for: str) -> None:
        """Let the launcher have this instance beside the others, or none, and wait until it is so."""
        self._roll = dataclasses.replace(self._roll, stand_in=stand_in, stands_for=stands_for)
        write_roll(self._state_dir, self._roll)

        def follows() -> bool:
            number, now, trouble = stack_roll(self._state_dir, NATS_URL_OPTION)
            if number is None:
                raise Unavailable(
                    "the launcher of this stack knows of no roll; end it with `penstock down` and start it "
                    "with `penstock up`"
                )
            return number == self._roll.number and (now == stand_in or bool(trouble))

        await self._until(follows, FOLLOW_TIMEOUT_S if stand_in else self._timeout_s)

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() >= until_s:
                raise Unavailable(
                    f"the launcher has not done what {self._state_dir} asks for within {timeout_s:g} s; "
                    "`penstock logs penstock` shows what it says"
                )
            await asyncio.sleep(POLL_S)


def _role_of(instance: str) -> str:
    return instance.rpartition("-")[0]


def _say(sentence: str) -> None:
    print(sentence, flush=True)
