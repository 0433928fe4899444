"""Take in what the workers send for the client of one request, as it comes: nothing here waits."""

from __future__ import annotations

import asyncio

from services.gateway.request_scope import RequestScope
from services.gateway.rows.plain_stream import PlainStream
from services.gateway.rows.row_terms import RowTerms
from services.gateway.rows.stream_table import StreamTable
from services.gateway.scope.answer_confidence import AnswerConfidence
from services.gateway.scope.deliveries import Deliveries
from services.gateway.scope.report import count_tokens
from services.gateway.scope.session_state import RowVerdict
from services.gateway.scope.text_row import TextRow
from services.gateway.session.interruption import Interruption
from services.gateway.session.route_watch import RouteWatch
from services.gateway.session.shared_work import SharedWork
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Cancelled, StreamLost, Unavailable
from shared.messages import PromptLogprobs
from shared.telemetry import metrics

LOOKS = 16
"""The first rows of an answer behind each of which is looked whether the next ones are plain."""
ROWS_BETWEEN_LOOKS = 64
"""The most rows of one that are not until it is looked again."""


class TextIntake:
    """`begun` is done when the first token is there. Once there is an `interruption` nothing is taken in: the
    client must not get what follows a row that it did not."""

    def __init__(
        self, scope: RequestScope, watch: RouteWatch, interruption: Interruption, work: SharedWork
    ) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state = scope.state
        self._response = scope.response
        self._timeline = scope.timeline
        self._meter = scope.meter
        self._watch = watch
        self._interruption = interruption
        self._work = work
        self._request_id = scope.request_id
        self._rows = scope.context.rows
        self.deliveries: Deliveries | None = None
        """The notes of what the client gets, while there is one."""
        self.confidence: AnswerConfidence | None = None
        """The measure of the answer, where somebody wants to know."""
        self._flow: tuple[int, str] | None = None
        """The epoch and the sender of a row that was relayed: the next one needs no second look at either."""
        self._followed: tuple[int, str] | None = None
        """The flow whose plain rows come here no more."""
        self._rows_until_look = 0
        self._looks = 0

    def on_text(self, row: TextRow, sender: str, now_s: float) -> None:
        """`now_s`: when it came, by the monotonic clock. Most of what a gateway does is this, row by row."""
        state = self._state
        if self._interruption.error is not None:
            metrics.DROPPED_MESSAGES.labels(reason="interrupted").inc()
            return
        epoch, position, token_ids, text, finish, logprobs, marks = row
        if (
            self._flow == (epoch, sender)
            and not (finish or logprobs or marks)
            and self.confidence is None
            and state.accept_next(epoch, position, token_ids, text)
        ):
            self._relay_next(row, now_s)
        elif epoch == state.epoch and not state.is_from(sender, "detokenizer"):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_text").inc()
        elif state.told.complete:
            self._judge(row, sender, now_s)
        elif not state.told.hold(row, sender):
            metrics.DROPPED_MESSAGES.labels(reason="too_early").inc()

    def _judge(self, row: TextRow, sender: str, now_s: float) -> None:
        """Do with the row what its place in the answer says."""
        state = self._state
        verdict = state.accept_row(row.epoch, row.position, row.token_ids, row.text, row.finish)
        if verdict is RowVerdict.RELAY:
            self._relay_row(row, now_s)
            if row.position >= state.relayed_position:
                self._flow = row.epoch, sender
        elif verdict is RowVerdict.REPLAY:
            self._response.skip_text(row.text)
            self._watch.record_arrival(now_s)
        elif verdict is RowVerdict.STALE:
            metrics.STALE_MESSAGES.inc()
        elif verdict is RowVerdict.DUPLICATE:
            metrics.DROPPED_MESSAGES.labels(reason="duplicate").inc()
        else:
            metrics.DROPPED_MESSAGES.labels(reason="gap").inc()
            self._watch.fail_route(Unavailable("tokens were lost on the way", hop="bus"))

    def on_prompt_logprobs(self, epoch: int, message: PromptLogprobs, sender: str) -> None:
        """The text waits until all of them are there."""
        if self._interruption.error is not None or epoch != self._state.epoch:
            metrics.STALE_MESSAGES.inc()
            return
        route = self._state.route
        if route is not None and not self._state.is_from(sender, route.prompt_role):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_text").inc()
            return
        fresh = self._state.told.take(message.position, message.logprobs)
        if fresh is None:
            metrics.DROPPED_MESSAGES.labels(reason="gap").inc()
            lost = "log-probabilities of the prompt were lost on the way"
            self._watch.fail_route(Unavailable(lost, hop="bus"))
            return
        self._response.put_prompt_logprobs(fresh)
        now_s = SYSTEM_CLOCK.monotonic_s()
        self._watch.record_arrival(now_s)
        if self._state.told.complete:
            for row, row_sender in self._state.told.release():
                self.on_text(row, row_sender, now_s)

    def _relay_row(self, row: TextRow, now_s: float) -> None:
        if self.confidence is not None:
            self.confidence.add(row.logprobs)
            row = row._replace(logprobs=()) if self.confidence.hidden else row
        self._timeline.add_row(row.marks)
        if row.token_ids:
            count_tokens(self._state, len(row.token_ids))
            self._meter.draw(len(row.token_ids))
        if row.position < self._state.relayed_position:
            self._note_tokens(row, now_s)
            self._skip_row(row)
        else:
            self._hand_on(row, now_s)
        self._work.put_row(row, now_s)
        self._watch.record_arrival(now_s)

    def _relay_next(self, row: TextRow, now_s: float) -> None:
        """Relay a row in the middle of an answer, as nearly all are."""
        tokens = len(row.token_ids)
        count_tokens(self._state, tokens)
        self._meter.draw(tokens)
        self._watch.last_token_s = now_s
        if self._work.left is None:
            self._put(row)
        self._work.put_row(row, now_s)
        self._watch.record_arrival(now_s)
        if self._rows is not None and self._followed != self._flow:
            self._look_whether_plain(self._rows)

    def _look_whether_plain(self, rows: StreamTable) -> None:
        """Have the table take what comes behind this row, if that can be: looked at ever more rarely where it
        cannot, as by a client of another server."""
        if self._rows_until_look:
            self._rows_until_look -= 1
            return
        self._follow(rows)
        self._looks += 1
        self._rows_until_look = 0 if self._looks < LOOKS else min(self._looks - LOOKS, ROWS_BETWEEN_LOOKS)

    def _follow(self, rows: StreamTable) -> None:
        """Have the table take the plain rows that come behind this one, once all is known that they need."""
        state, watched = self._state, self._watch.row_terms()
        delivered = None if self.deliveries is None else self.deliveries.row_place()
        if watched is None or delivered is None or self._flow is None:
            return
        sink = self._response.row_sink()
        if sink is None:
            return
        parts = (
            RowTerms(((self, "confidence", None),)),
            self._interruption.row_terms(),
            state.row_terms(),
            self._work.row_terms(),
            self._meter.row_terms(),
            watched,
            sink.terms,
        )
        stream = PlainStream(
            *self._flow,
            state.log.prompt_tokens,
            state.log.ids,
            state.log.texts,
            state.model,
            RowTerms.of_all(parts),
            delivered,
            self._meter.drawn(),
            self._work.kept(),
            sink.sink,
        )
        rows.follow(self._request_id, stream)
        self._followed = self._flow

    def relay_shared_row(self, row: TextRow, now_s: float) -> None:
        """A row of the computation that this request follows, which continues its log."""
        if self._interruption.error is None:
            self._timeline.add_shared_row()
            self._hand_on(row, now_s)

    def _hand_on(self, row: TextRow, now_s: float) -> None:
        """Put the row where the client's call takes it, as long as there is one."""
        self._note_tokens(row, now_s)
        if self._work.left is None:
            self._put(row)

    def _put(self, row: TextRow) -> None:
        try:
            whole = bool(row.finish)
            self._response.put_text(row.position, row.token_ids, row.text, row.logprobs, whole=whole)
        except Cancelled as error:
            self._work.leave(error)  # the client does not read

    def _note_tokens(self, row: TextRow, now_s: float) -> None:
        if row.token_ids:
            self._watch.last_token_s = now_s
            if not self.begun.done():
                self.begun.set_result(None)
        if row.finish:
            self._timeline.mark_last_row()

    def _skip_row(self, row: TextRow) -> None:
        """The client of a resumed stream has this row already. One that it has a part of cannot be cut, as
        its text belongs to all its ids."""
        self._response.skip_text(row.text, whole=bool(row.finish))
        if row.position + len(row.token_ids) > self._state.relayed_position:
            lost = "the stream cannot be gone on with exactly where it broke: send the request again"
            self._interruption.interrupt(StreamLost(lost, hop="gateway"))
