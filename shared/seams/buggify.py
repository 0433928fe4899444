"""Take rare paths often: where a simulation says so, and else never.

A point stands where the product may do less than it could, or later, or once more, and has to be right all
the same: a full queue, a small window, a timeout that comes early. None stands where each token passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from shared.seams.replacement import replaced


class RarePaths(Protocol):
    """All that Buggify can be asked."""

    def takes(self, point: str, /) -> bool: ...


class Buggify:
    """The paths of this process: rare ones are taken where something asks for them."""

    __slots__ = ("takes",)

    takes: Callable[[str], bool]
    """(point): whether the rare path is taken now though nothing asks for it."""

    def __init__(self) -> None:
        self.takes = lambda _point: False

    def replaced_by(self, source: RarePaths) -> AbstractContextManager[None]:
        """Ask `source` in this block, whoever asks."""
        return replaced(self, self.__slots__, source)


BUGGIFY = Buggify()
