"""What a terminal shows of what was written to it, with all that has scrolled out of it."""

from __future__ import annotations

import re

SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\n|\r|[^\x1b\n\r]")


class Screen:
    """Every character is one column wide, and colours are nothing. Cursor moves end at its edges."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns = columns
        self.rows = rows
        self._cells: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    @property
    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self._cells).rstrip()

    def write(self, text: str) -> None:
        at = 0
        for found in SEQUENCE.finditer(text):
            assert found.start() == at, f"not known here: {text[at : at + 20]!r}"
            at = found.end()
            if found[2]:
                self._obey(found[1], found[2])
            elif found[0] == "\n":
                self._next_line()
            elif found[0] == "\r":
                self._column = 0
            else:
                self._put(found[0])
        assert at == len(text), f"not known here: {text[at : at + 20]!r}"

    def _obey(self, argument: str, command: str) -> None:
        line = self._cells[self._row]
        # A cursor behind the last column still stands on it.
        column = min(self._column, self.columns - 1)
        match command:
            case "F":
                top = max(0, len(self._cells) - self.rows)
                self._row = max(top, self._row - int(argument or 1))
                self._column = 0
            case "K":
                del line[column:]
            case "J":
                del line[column:]
                del self._cells[self._row + 1 :]
            case "m":
                pass
            case _:
                raise AssertionError(f"not known here: {argument}{command}")

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self._next_line()
        line = self._cells[self._row]
        line.extend(" " * (self._column + 1 - len(line)))
        line[self._column] = character
        self._column += 1

    def _next_line(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self._cells):
            self._cells.append([])
