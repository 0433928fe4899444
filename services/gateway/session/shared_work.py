"""Let others share what a request computes: its own client may leave, and the work goes on."""

from __future__ import annotations

from collections.abc import Hashable

from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.request_scope import RequestScope
from services.gateway.rows.row_terms import KeptRows, RowTerms
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.text_row import TextRow
from services.gateway.session.computation import Computation, ComputationEnd
from services.gateway.session.interruption import Interruption
from services.gateway.session.running_computations import RunningComputations
from shared.errors import Overloaded, PenstockError
from shared.messages import CitedSentence


class SharedWork:
    """The computation of one request, None while nobody may share it. `left`: the outcome of a client that
    is gone while others wait for the rest."""

    def __init__(self, scope: RequestScope, running: RunningComputations, interruption: Interruption) -> None:
        self.left: Outcome | None = None
        self._scope = scope
        self._running = running
        self._interruption = interruption
        self._key: Hashable = None
        self._computation: Computation | None = None

    def begin(self, key: Hashable, earlier: Computation | None) -> None:
        """This request computes what `key` asks for. `earlier`: what it has followed up to here."""
        scope = self._scope
        computation = Computation(
            scope.request_id,
            scope.state,
            scope.budget.first_token,
            self._interruption,
            scope.context.config.max_buffered_tokens,
        )
        if earlier is not None:
            computation.go_on_from(earlier)
        self._key, self._computation = key, computation
        self._running.begin(key, computation)

    def put_prompt(self, prompt: PreparedPrompt | None) -> None:
        """The prompt is ids; None: an earlier answer does, which others are to look for themselves."""
        if self._computation is None:
            return
        if prompt is None:
            self._end(ComputationEnd(alone=True))
        else:
            self._computation.put_prompt(prompt)

    def put_row(self, row: TextRow, now_s: float) -> None:
        """A row that continues the log of this request."""
        if self._computation is not None:
            self._computation.put_row(row, now_s)

    def row_terms(self) -> RowTerms:
        """Return when a row goes to the client of the request, and to no one else."""
        own = RowTerms(((self, "left", None), (self, "_computation", self._computation)))
        return own if self._computation is None else RowTerms.of_all((own, self._computation.row_terms()))

    def kept(self) -> KeptRows | None:
        """Return what plain rows are kept in for who comes late, None where none is."""
        return None if self._computation is None else self._computation.kept()

    def leave(self, error: PenstockError) -> None:
        """The client of the request goes. So does the work, unless others share it."""
        if self.left is not None:
            return
        if self._computation is None or not self._computation.is_followed or self._interruption.error:
            self._interruption.interrupt(error)
            return
        self.left = Outcome.of(error)
        self._computation.leave_owner()
        self._scope.allowance.charge(self._scope.state.used_tokens)
        self._scope.response.put_end(self.left)

    def end(self, outcome: Outcome, sentences: tuple[CitedSentence, ...]) -> None:
        """The request is over. Who follows is shed by its own time, and not by that of this one."""
        if self._computation is not None:
            alone = isinstance(outcome.error, Overloaded)
            cached_tokens = self._scope.state.cached_tokens
            self._end(ComputationEnd(outcome.error, outcome.finish, sentences, cached_tokens, alone=alone))

    def _end(self, end: ComputationEnd) -> None:
        computation, self._computation = self._computation, None
        if computation is not None:
            self._running.end(self._key, computation)
            self._key = None
            computation.end(end)
