"""Tell for how long processes ran, and for how long they waited for a core: the kernel counts both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CoreTime:
    """The time that threads of some processes ran, and that they were ready to and did not."""

    ran_s: float = 0.0
    waited_s: float = 0.0

    @classmethod
    def of(cls, pids: Iterable[int]) -> CoreTime:
        """Return the time of these processes' threads until now."""
        total = cls()
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                try:
                    ran_ns, waited_ns, _ = map(int, (thread / "schedstat").read_text().split())
                except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                    continue
                total += cls(ran_ns / 1e9, waited_ns / 1e9)
        return total

    def __add__(self, other: CoreTime) -> CoreTime:
        return CoreTime(self.ran_s + other.ran_s, self.waited_s + other.waited_s)

    def __sub__(self, other: CoreTime) -> CoreTime:
        return CoreTime(self.ran_s - other.ran_s, self.waited_s - other.waited_s)

    @property
    def waits_per_run(self) -> float:
        """Return the seconds of waiting that a second of running took."""
        return self.waited_s / self.ran_s if self.ran_s else 0.0
