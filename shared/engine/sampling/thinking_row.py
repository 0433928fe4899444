"""Follow the thinking of one sequence by its tokens alone, and say which token has to come where it is over.

Whoever has the tokens knows the same: another worker that goes on with the sequence, and a step that looks
ahead over drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shared.sampling.thinking import ANY_LENGTH, OPENING_TOKENS, ThinkingRule


@dataclass(frozen=True, slots=True)
class ThinkingPlace:
    """The place in a sequence behind `drawn` tokens of output.

    `thought` counts those of its thinking, None where that has not begun. `closing`: how many tokens of the
    closing are there, while they are being drawn; `over`: thinking and closing are.
    """

    drawn: int = 0
    thought: int | None = None
    closing: int = 0
    over: bool = False


class ThinkingRow:
    """The thinking of one sequence, which has no output yet. `holds_behind`: a grammar holds what follows, so
    that nothing may come between the closing and that."""

    def __init__(self, rule: ThinkingRule, *, holds_behind: bool) -> None:
        self._rule = rule
        self._holds_behind = holds_behind
        self._budget = rule.max_tokens
        self.place = ThinkingPlace(thought=0 if rule.begun else None)

    @property
    def is_thinking(self) -> bool:
        """Whether the thinking has begun and is not over."""
        return self.place.thought is not None and not self.place.over

    @property
    def opening_id(self) -> int | None:
        """Return the token that would open the thinking now, None where none would."""
        return self._rule.opening_id if self._may_begin(self.place) else None

    def take(self, token_id: int) -> bool:
        """Take the next token in; return whether it is one of the thinking, or of the marks around it."""
        before, self.place = self.place, self._after(self.place, token_id)
        return not before.over and self.place.thought is not None

    def close(self) -> None:
        """Let the thinking end here, within its budget: what closes it comes next. Where it has not begun, it
        ends as it begins; what is over stays so."""
        if self.place.over or self.place.closing:
            return
        self._budget = self.place.thought or 0

    def forced(self, drafts: Iterable[int] = ()) -> list[int | None]:
        """Return the tokens that have to come next, and after each of `drafts`; None where any may."""
        place = self.place
        forced = [self._forced_at(place)]
        for token_id in drafts:
            place = self._after(place, token_id)
            forced.append(self._forced_at(place))
        return forced

    def _forced_at(self, place: ThinkingPlace) -> int | None:
        if place.over or place.thought is None:
            return None
        spent = self._budget != ANY_LENGTH and place.thought >= self._budget
        return self._rule.close_ids[place.closing] if place.closing or spent else None

    def _may_begin(self, place: ThinkingPlace) -> bool:
        return not place.over and place.thought is None and self._rule.opening_id >= 0

    def _after(self, place: ThinkingPlace, token_id: int) -> ThinkingPlace:
        if place.over:
            return place
        if place.thought is None:
            return self._after_head(place, token_id)
        rule, closing = self._rule, place.closing
        if token_id == self._forced_at(place):
            closing += 1
        elif token_id == rule.closing_id:
            behind = rule.close_ids.index(rule.closing_id) + 1
            closing = behind if self._holds_behind else len(rule.close_ids)
        return ThinkingPlace(place.drawn + 1, place.thought + 1, closing, closing >= len(rule.close_ids))

    def _after_head(self, place: ThinkingPlace, token_id: int) -> ThinkingPlace:
        """A token before any thinking opens it, or there is none after the first few."""
        drawn = place.drawn + 1
        if self._may_begin(place) and token_id == self._rule.opening_id:
            return ThinkingPlace(drawn, thought=0)
        return replace(place, drawn=drawn, over=drawn >= OPENING_TOKENS or self._holds_behind)
