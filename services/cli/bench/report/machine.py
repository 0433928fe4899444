"""The machine that a load was made on, and how busy it was before: figures mean little without."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.process.cores import usable_cores

CPU_INFO = Path("/proc/cpuinfo")
MAX_CPU_INFO_BYTES = 1 << 16
"""The beginning of it names the processor."""


@dataclass(frozen=True, slots=True)
class MachineState:
    """`load_before`: processes that ran or waited, over the minute before the load began."""

    processor: str
    cores: int
    load_before: float

    @classmethod
    def now(cls) -> Self:
        return cls(_processor(), usable_cores(), os.getloadavg()[0])

    def words(self) -> str:
        return f"{self.processor}, {self.cores} cores, load average {self.load_before:.1f} before"

    def warnings(self) -> list[str]:
        if self.load_before <= self.cores:
            return []
        return [
            f"the machine was busy before (load average {self.load_before:.1f} on {self.cores} cores): "
            "figures include others' work"
        ]


def _processor() -> str:
    if CPU_INFO.exists():
        with CPU_INFO.open() as file:
            for line in file.read(MAX_CPU_INFO_BYTES).splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.machine()
