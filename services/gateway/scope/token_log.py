"""The token log of one request: what has been relayed, so that nothing is lost or repeated."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from shared.messages import ALL_EMITTED, TELL_REPLAY


class Arrival(Enum):
    """The relation of a row of text to the log."""

    NEXT = auto()
    DUPLICATE = auto()
    GAP = auto()


@dataclass(slots=True)
class TokenLog:
    """Output ids in position order. Position `prompt_tokens` is that of the first one.

    `emitted_chars` counts the characters of text that went towards the client, so that a new
    detokenizer can go on at exactly that point. `texts` is that text where it is wanted again, else None.
    `taken_over`: the first ids came by another gateway, and how many characters they have nobody knows here.
    `rereads`: a detokenizer has still to tell their text, which is read once more.
    """

    prompt_tokens: int
    ids: list[int] = field(default_factory=list)
    emitted_chars: int = 0
    texts: list[str] | None = None
    taken_over: bool = False
    rereads: bool = False

    @property
    def told_chars(self) -> int:
        """The characters for `Open`. A decoder gives the same text for the same ids, whoever asks."""
        if self.taken_over:
            return TELL_REPLAY if self.rereads else ALL_EMITTED
        return self.emitted_chars

    @property
    def next_position(self) -> int:
        return self.prompt_tokens + len(self.ids)

    def arrival(self, position: int, count: int) -> Arrival:
        """Compare `count` ids from `position` on with the log: only those that begin exactly at its end
        continue it.

        A row that overlaps the end cannot be cut, as its text belongs to all its ids: it is a gap,
        and a new route brings both.
        """
        end = self.prompt_tokens + len(self.ids)
        if position == end:
            return Arrival.NEXT
        if position + count <= end:
            return Arrival.DUPLICATE
        return Arrival.GAP

    def take_replay(self, text: str) -> None:
        """Take the text of the ids that came by another gateway: from here on its length is known."""
        self.emitted_chars = len(text)
        self.taken_over = self.rereads = False

    def append(self, ids: tuple[int, ...], text: str) -> None:
        self.ids.extend(ids)
        self.emitted_chars += len(text)
        if self.texts is not None:
            self.texts.append(text)

    @property
    def kept_text(self) -> str | None:
        return None if self.texts is None else "".join(self.texts)
