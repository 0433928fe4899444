"""Remember who has been asked for what, so that an ask that comes again is done once.

An ask is sent again, to the same inbox, when it or its answer may have been lost. One that is being worked on
needs nothing: its answer will go there. To one that was answered the same is said again; only a large answer,
which nobody holds anything for, is worked out anew.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_UNANSWERED = 8192
"""The most asks that are known to be worked on; of more, the oldest are forgotten, and done again."""
MAX_ANSWERS = 1024
MAX_ANSWER_BYTES = 4096
"""The longest answer that is kept to be given again: those that say what is held now are far shorter."""


class RepeatedAsks:
    """The asks that one connection has delivered, by the inbox that their answers go to."""

    def __init__(self) -> None:
        self._unanswered: OrderedDict[str, None] = OrderedDict()
        self._answers: OrderedDict[str, bytes] = OrderedDict()

    def is_open(self, inbox: str) -> bool:
        """Return whether this ask has come already and is being worked on."""
        return inbox in self._unanswered

    def answer_of(self, inbox: str) -> bytes | None:
        """Return what was answered to this ask, as far as that is kept."""
        return self._answers.get(inbox)

    def open(self, inbox: str) -> None:
        """Note that it has come."""
        self._unanswered[inbox] = None
        if len(self._unanswered) > MAX_UNANSWERED:
            self._unanswered.popitem(last=False)

    def answered(self, inbox: str, answer: bytes) -> None:
        """Note what was answered; what has not come from here is not kept."""
        if not self.forget(inbox) or len(answer) > MAX_ANSWER_BYTES:
            return
        self._answers[inbox] = answer
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def forget(self, inbox: str) -> bool:
        """Its answer could not be given: when it comes again it is done again. False for one that is not
        open."""
        if inbox not in self._unanswered:
            return False
        del self._unanswered[inbox]
        return True
