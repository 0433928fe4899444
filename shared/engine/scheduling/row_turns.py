"""Choose which decoding sequences have a row in the next step, where there are more than it has rows.

The others rest: their KV stays where it is and they go on in a later step, so that nothing is computed twice
and no token changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.sequence import LiveSequence

MAX_RESTS = 4
"""The most steps in a row that a sequence rests, whatever its tenant has: then it goes first."""


class RowTurns:
    """Tenants have equal parts of the rows by their weights; what one does not use is the others'. Of a
    tenant's own sequences the one that has rested longest goes first.

    At most half of the sequences rest in a step, so those that have rested MAX_RESTS steps all have a row in
    the next one.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._step = 0  # of those in which sequences rested: who is first among equals changes with it

    def resting(self, decoding: Sequence[LiveSequence]) -> frozenset[str]:
        """Return the keys of those that rest in the next step."""
        if len(decoding) <= self._most_rows:
            return frozenset()
        self._step += 1
        lines: dict[str, list[LiveSequence]] = {}
        for sequence in decoding:
            lines.setdefault(sequence.share.tenant, []).append(sequence)
        places: list[tuple[bool, float, int, LiveSequence]] = []
        for line in lines.values():
            first = self._step % len(line)
            in_order = sorted(line[first:] + line[:first], key=lambda sequence: -sequence.rests)
            places += (
                (sequence.rests < MAX_RESTS, rank / sequence.share.weight, -sequence.rests, sequence)
                for rank, sequence in enumerate(in_order, 1)
            )
        places.sort(key=lambda place: place[:3])
        for *_, sequence in places[: self._most_rows]:
            sequence.rests = 0
        for *_, sequence in places[self._most_rows :]:
            sequence.rests += 1
        return frozenset(sequence.key for *_, sequence in places[self._most_rows :])
