"""The API keys of a simulated fleet: whose they are, and the file of them, which changes while it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from shared.files.api_key_file import hash_api_key

OWNER = "acme"
"""The tenant that has a corpus of its own."""


@dataclass(frozen=True, slots=True)
class Key:
    """`requests_per_min` 0: without limit."""

    name: str
    tenant: str
    requests_per_min: int = 0

    @property
    def secret(self) -> str:
        return f"psk_{self.name}"

    def entry(self) -> str:
        lines = [
            f'name = "{self.name}"',
            f'tenant = "{self.tenant}"',
            f'hash = "{hash_api_key(self.secret)}"',
        ]
        lines += [f"requests_per_min = {self.requests_per_min}"] if self.requests_per_min else []
        return "\n".join(["[[key]]", *lines, ""])


KEYS = {key.name: key for key in (Key(OWNER, OWNER), Key("globex", "globex"), Key("metered", "globex", 3))}
SPOILT = "[[key\n"
"""What is no file of keys."""


class KeyFile:
    """`out_since_s`: when each key that is not in it was taken out, by the world's time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out_since_s: dict[str, float] = {}
        self._out: Counter[str] = Counter()
        self._spoilt = 0
        self._revision = 0
        self._write()

    def take_out(self, name: str, now_s: float) -> None:
        self._out[name] += 1
        if not self._spoilt:
            self.out_since_s.setdefault(name, now_s)
        self._write()

    def put_back(self, name: str) -> None:
        self._out[name] -= 1
        if not self._out[name]:
            self.out_since_s.pop(name, None)
        self._write()

    def spoil(self) -> None:
        """Write what cannot be used: nothing changes until it is put right."""
        self._spoilt += 1
        self.out_since_s.clear()
        self._write()

    def put_right(self) -> None:
        self._spoilt -= 1
        self._write()

    def _write(self) -> None:
        """Each time with another length: a file system may not see two changes by their time."""
        self._revision += 1
        entries = [key.entry() for key in KEYS.values() if not self._out[key.name]]
        head = f"# {'.' * self._revision}\n"
        self.path.write_text(head + (SPOILT if self._spoilt else "\n".join(entries)))
