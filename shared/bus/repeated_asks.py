"""Remember who has been asked for what, so that an ask that comes again is done once.

An ask is sent again when it or its answer may have been lost. One that is being worked on needs nothing: its
answer will go to the reply subject that came last, which a server of a closed bus lets through. To one that
was answered the same is said again; only a large answer, which nobody holds anything for, is worked out anew.
"""

from __future__ import annotations

from collections import OrderedDict

from shared.bus.subjects import ask_of

MAX_UNANSWERED = 8192
"""The most asks that are known to be worked on; of more, the oldest are forgotten, and done again."""
MAX_ANSWERS = 1024
MAX_ANSWER_BYTES = 4096
"""The longest answer that is kept to be given again: those that say what is held now are far shorter."""


class RepeatedAsks:
    """The asks that one connection has delivered, by what their reply subjects have in common."""

    def __init__(self) -> None:
        self._unanswered: OrderedDict[str, str] = OrderedDict()
        self._answers: OrderedDict[str, bytes] = OrderedDict()

    def is_open(self, reply: str) -> bool:
        """Return whether this ask has come already and is being worked on."""
        return ask_of(reply) in self._unanswered

    def came_again(self, reply: str) -> None:
        """Note where an open ask is to be answered now."""
        self._unanswered[ask_of(reply)] = reply

    def answer_of(self, reply: str) -> bytes | None:
        """Return what was answered to this ask, as far as that is kept."""
        return self._answers.get(ask_of(reply))

    def open(self, reply: str) -> None:
        """Note that it has come."""
        self._unanswered[ask_of(reply)] = reply
        if len(self._unanswered) > MAX_UNANSWERED:
            self._unanswered.popitem(last=False)

    def answered(self, reply: str, answer: bytes) -> str:
        """Note what is answered, and return where to; what has not come from here is not kept."""
        ask = ask_of(reply)
        last = self._unanswered.pop(ask, None)
        if last is not None and len(answer) <= MAX_ANSWER_BYTES:
            self._answers[ask] = answer
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return last or reply

    def forget(self, reply: str) -> None:
        """Its answer could not be given: when it comes again it is done again."""
        self._unanswered.pop(ask_of(reply), None)
