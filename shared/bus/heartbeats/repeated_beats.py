"""Read and write heartbeats that say what the last ones said: of who rests only the two times differ.

A fleet at rest does little else than hear each other's heartbeats. Whoever gets the bytes that it got last,
but for the times, knows the message; and whoever says the same again has its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from shared.bus import codec
from shared.messages import Envelope, Heartbeat, Message

MAX_KNOWN = 1024
"""The most senders whose last heartbeats are kept; beyond it the oldest is forgotten, and read in full."""
WORKING_MS = 250
"""The next heartbeat of who works comes within so much: what it says changes, and is not kept."""
TIME_MARK = 0xCF
TIME_BYTES = 8
"""A time as msgpack writes it: the mark of a number of 64 bits, and these."""
LEAST_US = 1 << 32
"""The least time that is written so, an hour after the beginning of 1970."""

_NAMES = codec.field_names(Heartbeat)
_UNIX, _STEADY = _NAMES.index("sent_unix_us"), _NAMES.index("sent_steady_us")
_values: Any = attrgetter(*_NAMES)
_setters: Any = tuple(vars(Heartbeat)[name].__set__ for name in _NAMES)


def beat_with(beat: Heartbeat, **fields: Any) -> Heartbeat:
    """Return the heartbeat with other values in some fields, as `dataclasses.replace` and much sooner."""
    values = dict(zip(_NAMES, _values(beat), strict=True))
    return _beat_of((values | fields).values())


def _beat_of(values: Iterable[Any]) -> Heartbeat:
    """Return the heartbeat of all these values. Its own beginning asks at each field whether it may be set,
    which takes most of what it takes to read a heartbeat."""
    beat: Heartbeat = object.__new__(Heartbeat)
    for set_field, value in zip(_setters, values, strict=True):
        set_field(beat, value)
    return beat


class BeatTemplate:
    """A heartbeat in bytes, and what it means: others like it are told apart by their times alone."""

    __slots__ = ("_envelope", "_head", "_middle", "_size", "_steady_at", "_tail", "_unix_at", "_values")

    def __init__(
        self, data: bytes, envelope: Envelope, beat: Heartbeat, unix_at: int, steady_at: int
    ) -> None:
        self._envelope = envelope
        self._values = list(_values(beat))
        self._size = len(data)
        self._unix_at, self._steady_at = unix_at, steady_at
        self._head = data[:unix_at]
        self._middle = data[unix_at + TIME_BYTES : steady_at]
        self._tail = data[steady_at + TIME_BYTES :]

    @classmethod
    def of(cls, data: bytes, envelope: Envelope, beat: Heartbeat) -> BeatTemplate | None:
        """Return None for one whose times are not found for sure: something else in it looks like them."""
        places = sorted({*_places(data, beat.sent_unix_us), *_places(data, beat.sent_steady_us)})
        if [_time(data, at) for at in places] != [beat.sent_unix_us, beat.sent_steady_us]:
            return None
        return cls(data, envelope, beat, *places)

    def read(self, data: bytes) -> tuple[Envelope, Heartbeat] | None:
        """Return what `data` means, None where it says anything else than this one."""
        unix_at, steady_at = self._unix_at, self._steady_at
        if (
            len(data) != self._size
            or data[:unix_at] != self._head
            or data[steady_at + TIME_BYTES :] != self._tail
            or data[unix_at + TIME_BYTES : steady_at] != self._middle
        ):
            return None
        values = self._values
        values[_UNIX], values[_STEADY] = _time(data, unix_at), _time(data, steady_at)
        return self._envelope, _beat_of(values)

    def write(self, beat: Heartbeat, envelope: Envelope) -> bytes | None:
        """Return the bytes of `beat`, None where it says anything else than this one."""
        values, own = list(_values(beat)), self._values
        own[_UNIX], own[_STEADY] = unix_us, steady_us = values[_UNIX], values[_STEADY]
        if values != own or envelope != self._envelope or min(unix_us, steady_us) < LEAST_US:
            return None
        unix, steady = unix_us.to_bytes(TIME_BYTES, "big"), steady_us.to_bytes(TIME_BYTES, "big")
        return b"".join((self._head, unix, self._middle, steady, self._tail))


class HeardBeats:
    """The last heartbeats at rest of all that one connection hears, by subject."""

    def __init__(self) -> None:
        self._known: dict[str, BeatTemplate] = {}

    def decode(self, subject: str, data: bytes, reply: str) -> tuple[Envelope, Message]:
        """Do what `codec.decode` does, for any message."""
        known = self._known.get(subject)
        if known is not None and not reply and (read := known.read(data)) is not None:
            return read
        envelope, message = codec.decode(data, reply)
        if type(message) is Heartbeat and not reply:
            self._note(subject, data, envelope, message)
        return envelope, message

    def _note(self, subject: str, data: bytes, envelope: Envelope, beat: Heartbeat) -> None:
        self._known.pop(subject, None)
        template = BeatTemplate.of(data, envelope, beat) if beat.next_ms > WORKING_MS else None
        if template is not None:
            self._known[subject] = template
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]


class SaidBeat:
    """The last heartbeat that one connection has sent, where it was one at rest."""

    def __init__(self) -> None:
        self._last: BeatTemplate | None = None

    def encode(self, message: Message, envelope: Envelope) -> bytes:
        """Do what `codec.encode` does, for any message."""
        if type(message) is not Heartbeat:
            return codec.encode(message, envelope)
        if self._last is not None and (data := self._last.write(message, envelope)) is not None:
            return data
        data = codec.encode(message, envelope)
        self._last = BeatTemplate.of(data, envelope, message) if message.next_ms > WORKING_MS else None
        return data


def _places(data: bytes, time_us: int) -> list[int]:
    """Return where these bytes of a time are, behind their mark."""
    if not 0 <= time_us < 1 << 8 * TIME_BYTES:
        return []
    wanted, found = bytes((TIME_MARK, *time_us.to_bytes(TIME_BYTES, "big"))), []
    at = data.find(wanted)
    while at >= 0:
        found.append(at + 1)
        at = data.find(wanted, at + 1)
    return found


def _time(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + TIME_BYTES], "big")
