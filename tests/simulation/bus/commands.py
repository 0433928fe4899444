"""Read the commands that a client of NATS sends from its bytes."""

from __future__ import annotations

from dataclasses import dataclass

WITH_ARGUMENTS = (b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", b"INFO ")
ALONE = (b"PING", b"PONG", b"+OK", b"-ERR")
"""Operations whose line may go on as it likes."""
OPERATIONS = WITH_ARGUMENTS + ALONE
LONGEST = max(map(len, OPERATIONS))
_WITH_PAYLOAD = {b"PUB": (2, 3), b"HPUB": (3, 4)}
"""How many words may stand in the line of an operation that has a payload."""


class UnknownOperation(Exception):
    """Bytes begin no operation: the server says so and closes."""


class LineTooLong(Exception):
    """A line is over the server's limit: the server says so and closes."""


class Malformed(Exception):
    """An operation has wrong arguments: the server closes without a word."""


class PayloadTooLong(Exception):
    """A payload is over the server's limit: the server says so and closes."""


@dataclass(frozen=True, slots=True)
class Command:
    """`words` are the arguments without sizes; `payload` of an HPUB begins with `header_bytes` of headers."""

    operation: bytes
    words: tuple[bytes, ...] = ()
    payload: bytes = b""
    header_bytes: int = 0


class CommandReader:
    """Bytes in, commands out; what is not whole yet waits."""

    def __init__(self, max_line_bytes: int, max_payload_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()
        self._at = 0
        self._waiting: tuple[bytes, tuple[bytes, ...], int, int] | None = None

    def feed(self, data: bytes) -> None:
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def next(self) -> Command | None:
        """Return the next command, None when it is not whole. Raises what its bytes deserve."""
        if self._waiting is None and not self._read_line():
            return None
        assert self._waiting is not None
        operation, words, header_bytes, size = self._waiting
        if operation not in _WITH_PAYLOAD:
            self._waiting = None
            return Command(operation, words)
        end = self._at + size
        if len(self._buffer) < end + 2:
            return None
        if self._buffer[end : end + 2] != b"\r\n":
            raise UnknownOperation
        payload = bytes(memoryview(self._buffer)[self._at : end])
        self._at = end + 2
        self._waiting = None
        return Command(operation, words, payload, header_bytes)

    def _read_line(self) -> bool:
        """Return whether a line was there; it is `_waiting` then."""
        if self._at == len(self._buffer):
            return False
        end = self._buffer.find(b"\n", self._at)
        start = bytes(self._buffer[self._at : self._at + LONGEST]).upper().replace(b"\t", b" ")
        operation = next((one for one in OPERATIONS if start.startswith(one)), b"")
        if not operation and not any(one.startswith(start) for one in OPERATIONS):
            raise UnknownOperation
        if end < 0:
            if len(self._buffer) - self._at > self._max_line_bytes + LONGEST:
                raise LineTooLong
            return False
        line = bytes(self._buffer[self._at : end]).removesuffix(b"\r")
        self._at = end + 1
        rest = line[len(operation) :].lstrip(b" \t")
        if len(rest) > self._max_line_bytes:
            raise LineTooLong
        self._waiting = self._understood(operation.rstrip(b" "), rest)
        return True

    def _understood(self, operation: bytes, rest: bytes) -> tuple[bytes, tuple[bytes, ...], int, int]:
        if operation == b"CONNECT":
            return operation, (rest,), 0, 0
        words = tuple(rest.split())
        if operation not in _WITH_PAYLOAD:
            return operation, words, 0, 0
        if len(words) not in _WITH_PAYLOAD[operation]:
            raise Malformed
        size, header_bytes = _size(words[-1]), 0
        words = words[:-1]
        if operation == b"HPUB":
            header_bytes, words = _size(words[-1]), words[:-1]
        if size < 0 or header_bytes < 0 or header_bytes > size:
            raise Malformed
        if size > self._max_payload_bytes:
            raise PayloadTooLong
        return operation, words, header_bytes, size


def _size(word: bytes) -> int:
    """Return -1 for what is no size."""
    return int(word) if word.isdigit() and len(word) <= 9 else -1
