"""A label whose values come from a fleet or a file: the first of them stand for themselves."""

from __future__ import annotations

MAX_LABEL_VALUES = 64
"""The most values of such a label in a process; later ones are counted as `other`."""
OTHER = "other"


class BoundedLabel:
    """The values that came first; "" is always one of them."""

    def __init__(self, most: int = MAX_LABEL_VALUES) -> None:
        self._most = most
        self._values: set[str] = set()

    def label(self, value: str) -> str:
        """Return the value of the label for `value`."""
        if not value or value in self._values:
            return value
        if len(self._values) >= self._most:
            return OTHER
        self._values.add(value)
        return value
