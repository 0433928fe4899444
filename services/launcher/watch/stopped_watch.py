"""End a gateway that was stopped (SIGSTOP, Ctrl-Z) while others listen on the same ports.

The kernel gives each new connection to one of the listeners of a port, and a process that is stopped keeps
its listener: a share of all that connect would wait for it. Nobody else can take a listener out of a port, so
the process ends; what waits there is reset, connects again and meets a gateway that runs. Its own calls had
stood still anyway, and their requests are given up elsewhere for want of its heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from services.launcher.processes.instance import Instance
from shared.ticks import until_tick

LOOK_EVERY_S = 0.25
STOPPED_LOOKS = 4
"""The looks in a row at which a process is found stopped and then ended: about a second, in which it may
still go on. They are counted and not seconds, so that a launcher that was stopped too ends nobody."""
REST_LOOK_S = 2.0
"""The time between two looks where nobody shares ports: one that comes then is watched from the next on."""
STOPPED = "T"


class StoppedWatch:
    """`gateways` returns the instances that share their ports now."""

    def __init__(
        self, gateways: Callable[[], Iterable[Instance]], state_of: Callable[[int], str] | None = None
    ) -> None:
        self._gateways = gateways
        self._state_of = state_of or process_state
        self._stopped: dict[int, int] = {}  # by process: looks in a row

    async def run(self) -> None:
        """Look for ever."""
        while True:
            shared = self.look()
            await until_tick(LOOK_EVERY_S if shared else REST_LOOK_S)

    def look(self) -> bool:
        """Look once; ends whoever has been stopped for too long. False: nobody shares ports."""
        stopped: dict[int, int] = {}
        gateways = tuple(self._gateways())
        for gateway in gateways:
            pid = gateway.pid
            if not pid or self._state_of(pid) != STOPPED:
                continue
            stopped[pid] = self._stopped.get(pid, 0) + 1
            if stopped[pid] == STOPPED_LOOKS:
                gateway.kill_hung("it was stopped, and new connections wait for it")
        self._stopped = stopped
        return bool(gateways)


def process_state(pid: int) -> str:
    """Return the letter that the kernel has for what a process does, "" for one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]
