"""The lines that a user has typed into `penstock chat`, kept over sessions in a file that is theirs alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from prompt_toolkit.history import History

from shared.files.atomic_write import SECRET_MODE, write_file

MAX_ENTRIES = 1000
MAX_ENTRY_CHARS = 1 << 16
"""A longer entry was pasted, and is not kept."""
MAX_HISTORY_BYTES = 8 << 20
"""A longer file is cut to its last entries when it is read."""
STATE_VARIABLE = "XDG_STATE_HOME"


class ChatHistory(History):
    """Each line of the file is a JSON string. Where it cannot be kept that is told once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._is_kept = True

    @classmethod
    def of_user(cls) -> ChatHistory:
        """Return that of who runs this: in $XDG_STATE_HOME/penstock, which is ~/.local/state by default."""
        state = os.environ.get(STATE_VARIABLE, "") or Path.home() / ".local" / "state"
        return cls(Path(state) / "penstock" / "chat_history")

    def load_history_strings(self) -> Iterator[str]:
        """Yield the entries, the newest first."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_HISTORY_BYTES))
                rows = file.read().split(b"\n")
            entries = [entry for entry in map(_entry, rows) if entry]
            if size > MAX_HISTORY_BYTES or len(entries) > MAX_ENTRIES:
                entries = entries[-MAX_ENTRIES:]
                write_file(self._path, b"".join(map(_row, entries)), mode=SECRET_MODE)
        except FileNotFoundError:
            return
        except OSError as error:
            self._give_up(error)
            return
        yield from reversed(entries)

    def store_string(self, string: str) -> None:
        if not self._is_kept or len(string) > MAX_ENTRY_CHARS:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, SECRET_MODE)
            with open(handle, "ab") as file:
                file.write(_row(string))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._is_kept = False
        reason = error.strerror or str(error)
        print(f"penstock chat: what is typed is not kept in {self._path} ({reason})", file=sys.stderr)


def _row(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(row: bytes) -> str:
    """Return the text of a row, "" for one that is damaged or was cut."""
    try:
        entry = json.loads(row)
    except (ValueError, RecursionError):
        return ""
    return entry if isinstance(entry, str) else ""
