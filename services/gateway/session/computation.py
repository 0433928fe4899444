"""The work of one request that others like it share: who follows it, and what a late one is handed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.rows.row_terms import KeptRows, RowTerms
from services.gateway.scope.session_state import SessionState
from services.gateway.scope.text_row import TextRow
from services.gateway.session.interruption import Interruption
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import Cancelled, PenstockError
from shared.messages import CitedSentence

MAX_CALLERS = 64
"""The most requests that share one computation; the next one begins another."""


@dataclass(frozen=True, slots=True)
class ComputationEnd:
    """`error` is None where the answer is whole, and `finish` how it ended; `sentences` are what its passages
    support. `cached_tokens` of the prompt were there where it was computed. `alone`: who followed does all of
    it by itself, as each would be answered otherwise."""

    error: PenstockError | None = None
    finish: str = ""
    sentences: tuple[CitedSentence, ...] = ()
    cached_tokens: int = 0
    alone: bool = False


class Follower(Protocol):
    """A request that follows. Nothing of it waits."""

    @property
    def next_position(self) -> int | None:
        """The place that its next token has; None while its prompt is not known."""

    def on_prompt(self, prompt: PreparedPrompt) -> None: ...
    def on_row(self, row: TextRow, now_s: float) -> None: ...
    def on_fault(self, error: Exception) -> None: ...
    def on_end(self, end: ComputationEnd) -> None: ...


class Computation:
    """One computation, which the request `request_id` has begun: its owner, of which `state` and
    `interruption` are.

    It is placed, watched and routed anew as any other, and ends with the deadlines of its owner. Where the
    owner's client leaves, it goes on for who follows; the last one that leaves cancels it.
    """

    def __init__(
        self,
        request_id: str,
        state: SessionState,
        first_token: Deadline,
        interruption: Interruption,
        most_tokens: int,
    ) -> None:
        """Keep `most_tokens` at most for who comes late; with more it takes nobody from the start."""
        self.request_id = request_id
        self.prompt: PreparedPrompt | None = None
        self._state = state
        self._first_token = first_token
        self._interruption = interruption
        self._most_tokens = most_tokens
        self._followers: tuple[Follower, ...] = ()
        self._rows: list[tuple[int, tuple[int, ...], str]] = []
        self._kept_tokens = 0
        self._keeps = True
        self._owner_left = False
        self._charged_tokens = 0

    def go_on_from(self, earlier: Self) -> None:
        """Its owner has followed `earlier`, which has ended before its answer did: hand on what that had."""
        self.prompt = earlier.prompt
        self._rows, self._kept_tokens = list(earlier._rows), earlier._kept_tokens
        self._keeps = earlier._keeps and self._kept_tokens == len(self._state.log.ids)

    @property
    def is_followed(self) -> bool:
        return bool(self._followers)

    def takes(self, first_token: Deadline, position: int | None, *, logprobs: bool) -> bool:
        """Whether a request may follow that has all before `position` (None: nothing, not even its prompt)
        and whose first token is due at `first_token`: at a queue it would not have been before this one."""
        if self._interruption.error is not None or len(self._followers) + 1 >= MAX_CALLERS:
            return False
        if not self._state.log.ids:
            return not first_token < self._first_token
        if logprobs:  # those of tokens that are out already are not kept
            return False
        return self._keeps or (position is not None and position >= self._state.log.next_position)

    def add(self, follower: Follower) -> None:
        """Hand it at once what is there; from now on it hears of all that comes."""
        self._followers = (*self._followers, follower)
        if self.prompt is None:
            return
        follower.on_prompt(self.prompt)
        position = follower.next_position
        if position is not None and (missed := self._row_from(position)) is not None:
            follower.on_row(missed, SYSTEM_CLOCK.monotonic_s())

    def remove(self, follower: Follower) -> int:
        """It leaves, or has been told the end. Returns the tokens that it is charged for: those drawn since
        the owner left, or the one that was charged for it before, where it has stayed longest since."""
        if follower not in self._followers:
            return 0
        charged = 0
        if self._owner_left and self._followers[0] is follower:
            charged = self._state.used_tokens - self._charged_tokens
            self._charged_tokens += charged
        self._followers = tuple(other for other in self._followers if other is not follower)
        if self._owner_left and not self._followers:
            self._interruption.interrupt(Cancelled("nobody waits for the answer any more", hop="gateway"))
        return charged

    def leave_owner(self) -> None:
        """Its owner's client goes, which is charged for what has been computed; others stay."""
        self._owner_left = True
        self._charged_tokens = self._state.used_tokens

    def put_prompt(self, prompt: PreparedPrompt) -> None:
        """The prompt is ids now."""
        self.prompt = prompt
        self._tell(lambda follower: follower.on_prompt(prompt))

    def put_row(self, row: TextRow, now_s: float) -> None:
        """A row that continues the owner's log."""
        if self._keeps:
            self._keep(row)
        if self._followers:
            self._tell(lambda follower: follower.on_row(row, now_s))

    def row_terms(self) -> RowTerms:
        return RowTerms(((self, "_followers", ()), (self, "_keeps", self._keeps)))

    def kept(self) -> KeptRows | None:
        """Return what plain rows are kept in, None where none is."""
        if not self._keeps:
            return None
        return KeptRows(self._rows, (self, "_kept_tokens"), self._most_tokens)

    def end(self, end: ComputationEnd) -> None:
        """Nothing more comes."""
        self._tell(lambda follower: follower.on_end(end))

    def _tell(self, what: Callable[[Follower], None]) -> None:
        """Tell all who follow. One follower's trouble is not that of another."""
        for follower in self._followers:
            try:
                what(follower)
            except Exception as error:  # noqa: BLE001 - its own, as that of a session
                follower.on_fault(error)

    def _keep(self, row: TextRow) -> None:
        self._rows.append((row.position, row.token_ids, row.text))
        self._kept_tokens += len(row.token_ids)
        if self._kept_tokens > self._most_tokens:
            self._keeps = False
            self._rows.clear()

    def _row_from(self, position: int) -> TextRow | None:
        """Return all that came from `position` on as one row, None for nothing."""
        missed = [row for row in self._rows if row[0] >= position]
        if not missed:
            return None
        ids = tuple(token for _, token_ids, _ in missed for token in token_ids)
        text = "".join(text for _, _, text in missed)
        return TextRow(0, missed[0][0], ids, text, self._state.finish, (), ())
