"""Hold the part of its key's limits that one request was given, and give back what it did not use."""

from __future__ import annotations

from typing import Protocol


class KeyUses(Protocol):
    """The place where a key's use is counted."""

    def check_size(self, tokens: int) -> None:
        """Raise TooLarge when a request of so many tokens could never be admitted."""

    def settle(self, use: int, *, tokens: int, requests: int = 0, ended: bool) -> None:
        """Take `tokens` and `requests` more for this use, fewer where they are negative."""


class CountedElsewhere:
    """The uses of a request that goes on with a stream: the gateway where that began has counted them."""

    def check_size(self, tokens: int) -> None:
        """It was small enough."""

    def settle(self, use: int, *, tokens: int, requests: int = 0, ended: bool) -> None:
        """Nothing is taken or given back."""


class Allowance:
    """The part of its key's limits that one request was given; it ends once, however the request does."""

    def __init__(self, uses: KeyUses, use: int, reserved: int, max_tokens: int) -> None:
        self._uses = uses
        self._use = use
        self._reserved = reserved
        self._max_tokens = max_tokens
        self._ended = False

    def count_prompt(self, prompt_tokens: int) -> None:
        """The prompt's length is known now. Raises TooLarge when the request can never fit."""
        tokens = prompt_tokens + self._max_tokens
        self._uses.check_size(tokens)
        if tokens != self._reserved:
            self._uses.settle(self._use, tokens=tokens - self._reserved, ended=False)
            self._reserved = tokens

    def charge(self, used_tokens: int) -> None:
        """The request has ended and used so much; later calls change nothing."""
        self._end(used_tokens, 0)

    def undo(self, *, counted: bool = False) -> None:
        """There will be no request, of which nothing is used; `counted`: that it was asked for counts."""
        self._end(0, 0 if counted else -1)

    def leave(self) -> None:
        """Another gateway goes on with the request: what it was given stays taken, for all of it."""
        self._end(self._reserved, 0)

    def _end(self, used_tokens: int, requests: int) -> None:
        if not self._ended:
            self._ended = True
            self._uses.settle(self._use, tokens=used_tokens - self._reserved, requests=requests, ended=True)
