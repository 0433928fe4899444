"""Tell of what goes wrong beside a stack that serves on: once, and when it is over."""

from __future__ import annotations

from collections.abc import Callable


class Troubles:
    """The troubles there are, by name; `say` tells a sentence to the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: dict[str, str] = {}

    def tell(self, name: str, sentence: str) -> None:
        """Say it unless that was said last."""
        if self._told.get(name) != sentence:
            self._told[name] = sentence
            self._say(sentence)

    def over(self, name: str) -> bool:
        """Return whether there was a trouble of that name; it is no more."""
        return self._told.pop(name, "") != ""
