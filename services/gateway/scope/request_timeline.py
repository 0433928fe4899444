"""The timeline of one request as the gateway sees it, and the counts that came with the tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.model_choice import ModelChoice
from services.gateway.scope.request_record import AskedInstance, Attempt
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import Mark
from shared.telemetry import metrics
from shared.telemetry.timeline import Phase, Timeline

MAX_CLIENT_US = 60_000_000
"""A client's send time further back than this, or in the future, is a wrong clock: left out."""
MAX_MARK = 1 << 31
"""The greatest mark of a worker that is believed, in microseconds or as a count. Another is left out."""
MAX_ASKED = 16
"""The most instances, asked before a request has a route, whose names its record keeps."""
MAX_ATTEMPTS = 16
"""The most routes of a request that its record keeps: the first ones, and the last."""
COUNT_PREFIX = "count:"
FIRST_TOKEN_PARTS = (
    "prefill.queue",
    "prefill.fetch",
    "prefill.compute",
    "decode.prefill_queue",
    "decode.prefill_compute",
    "detokenize",
)
"""A prompt is computed by a prefill worker or by the decode worker."""
DECODE_PARTS = ("kv.transfer", "decode.queue", "decode.hand_over")


class RequestTimeline:
    """Turns what happens, and the marks measured elsewhere, into phases that partition the request."""

    def __init__(
        self, client_sent_unix_us: int, clock: Clock = SYSTEM_CLOCK, *, began_s: float | None = None
    ) -> None:
        """`began_s` is when the call came, on the monotonic clock; None: now."""
        self._timeline = Timeline(clock, began_s)
        self.began_unix_us = clock.unix_us() - self._timeline.elapsed_us()
        """The time of day at which the call came."""
        self._client_us = _client_us(client_sent_unix_us, self.began_unix_us)
        self._marks: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._streaming = False
        self._closed = False
        self._useful_us: int | None = None
        self._asked: list[AskedInstance] = []
        self._attempts: list[Attempt] = []
        self._open_attempt: Attempt | None = None
        self._region = ""
        self.counts: Counter[str] = Counter()

    def mark_phase(self, phase: str) -> None:
        """Everything since the last mark was `phase`."""
        self._timeline.mark(phase)

    def mark_admitted(self, choice: ModelChoice | None) -> None:
        """Everything since the last mark was admission, with the choice of a model where there was one."""
        if choice is None:
            self._timeline.mark("admit")
        else:
            self._timeline.split("admit", [("route.model", choice.took_us)])

    def note_asked(self, role: str, instance: str) -> None:
        """An instance is asked now, before there is a route."""
        if len(self._asked) < MAX_ASKED:
            self._asked.append(AskedInstance(role, instance, self._timeline.elapsed_us()))

    def begin_attempt(self, epoch: int, workers: tuple[tuple[str, str], ...], region: str = "") -> None:
        """Everything since the last mark was the way to the workers, (role, instance), of a new route, in
        another `region` than the gateway's where one is named."""
        self.mark_phase("route")
        self._region = region
        start_us = self._timeline.marked_us
        self._open_attempt = Attempt(epoch, workers, start_us, start_us)

    def add_row(self, marks: tuple[Mark, ...]) -> None:
        """Note the marks of a row of text; the first row of a route closes the way to its token."""
        if self._streaming and not marks:
            return
        self._add_marks(marks)
        if not self._streaming:
            self._streaming = True
            self._timeline.split("bus", self._parts(FIRST_TOKEN_PARTS))

    def add_shared_row(self) -> None:
        """A row has come of the computation that this request shares; until the first one it waited."""
        if not self._streaming:
            self._streaming = True
            self.mark_phase("shared")

    def end_sharing(self, why: str) -> None:
        """The computation that this request shared has ended before its answer did."""
        if self._streaming:
            self.mark_lost(why)
        else:
            self.mark_phase("shared")

    def note_hand_over(self, decode: str, counts: tuple[Mark, ...]) -> None:
        """The same route goes on at another decode worker; `counts` are those of the one that has left."""
        attempt = self._open_attempt
        if attempt is not None:
            self._open_attempt = replace(attempt, workers=(*attempt.workers, ("decode", decode)))
        self._add_marks(tuple(mark for mark in counts if mark.phase.startswith(COUNT_PREFIX)))

    def _add_marks(self, marks: tuple[Mark, ...]) -> None:
        for mark in marks:
            if not 0 <= mark.duration_us <= MAX_MARK:
                metrics.DROPPED_MESSAGES.labels(reason="wrong_mark").inc()
            elif mark.phase.startswith(COUNT_PREFIX):
                self.counts[mark.phase.removeprefix(COUNT_PREFIX)] += mark.duration_us
            else:
                self._marks[mark.phase] += mark.duration_us
                self._seen.add(mark.phase)

    def mark_delivered(self) -> None:
        """The first token has been handed to gRPC. Later calls change nothing."""
        if self._timeline.ttft_us is None:
            self._timeline.mark("deliver")
            self._timeline.first_token()

    def mark_useful(self) -> None:
        """The client has as much of the answer as is useful. That is a moment, and ends no phase."""
        self._useful_us = self._timeline.elapsed_us()

    def mark_lost(self, why: str) -> None:
        """The route failed, by the code of an error: what it did so far ends here, another one begins."""
        if self._streaming:
            self._timeline.split("decode", self._parts(DECODE_PARTS))
        else:
            self._timeline.mark("lost")
        self._reset()
        self._end_attempt(why)

    def mark_held(self) -> None:
        """The whole answer has come, and its client gets it now."""
        if self._streaming:
            self._timeline.split("decode", self._parts(DECODE_PARTS))
            self._reset()

    def mark_last_row(self) -> None:
        """The row that ended the request has come, unless the first token still waits for its client."""
        if self._streaming and self._timeline.ttft_us is not None:
            self._timeline.split("decode", self._parts(DECODE_PARTS))
            self._reset()

    def close_timeline(self) -> None:
        """The terminal event is about to be written, or would have been. Later calls change nothing."""
        if not self._closed:
            self._closed = True
            self.mark_last_row()
            self._timeline.mark("finish")
            self._end_attempt("")
            self._timeline.close()

    @property
    def measured_ttft_us(self) -> int | None:
        """The time to the first token by this gateway's clock alone, None while no token was delivered."""
        return self._timeline.ttft_us

    @property
    def measured_useful_us(self) -> int | None:
        """The time to a useful answer by this gateway's clock alone, None while there is none, or nobody
        looks."""
        return self._useful_us

    @property
    def measured_total_us(self) -> int:
        """The time from the request's arrival on, by this gateway's clock alone."""
        return self._timeline.marked_us

    @property
    def asked(self) -> tuple[AskedInstance, ...]:
        """Return the instances that were asked before there was a route, in order."""
        return tuple(self._asked)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return the routes that have ended, in order."""
        return tuple(self._attempts)

    def measured_phases(self) -> list[Phase]:
        """Return the phases from the request's arrival on, without what a client says of its way."""
        return self._timeline.phases()

    @property
    def ttft_us(self) -> int | None:
        """The time to the first token as the client sees it, None while no token was delivered."""
        ttft_us = self._timeline.ttft_us
        return None if ttft_us is None else ttft_us + self._client_us

    @property
    def total_us(self) -> int:
        return self._timeline.marked_us + self._client_us

    def phases(self) -> list[Phase]:
        """Return the phases in order, from 0, with the way from the client first when it is known."""
        client = [Phase("client", 0, self._client_us)] if self._client_us else []
        return client + [
            Phase(phase.name, phase.start_us + self._client_us, phase.duration_us)
            for phase in self._timeline.phases()
        ]

    def to_event(self) -> pb.Timeline:
        phases = [
            pb.Phase(name=phase.name, start_us=phase.start_us, duration_us=phase.duration_us)
            for phase in self.phases()
        ]
        useful_us = 0 if self._useful_us is None else self._useful_us + self._client_us
        return pb.Timeline(
            ttft_us=self.ttft_us or 0,
            total_us=self.total_us,
            phases=phases,
            useful_us=useful_us,
            region=self._region,
        )

    def _parts(self, names: tuple[str, ...]) -> list[tuple[str, int]]:
        return [(name, self._marks[name]) for name in names if name in self._seen]

    def _end_attempt(self, why: str) -> None:
        if self._open_attempt is not None:
            ended = replace(self._open_attempt, end_us=self._timeline.marked_us, why=why)
            self._attempts[MAX_ATTEMPTS - 1 :] = [ended]
        self._open_attempt = None

    def _reset(self) -> None:
        self._marks.clear()
        self._seen.clear()
        self._streaming = False


def _client_us(sent_unix_us: int, now_unix_us: int) -> int:
    """Microseconds from the client to here; 0 when unknown or not believable."""
    elapsed_us = now_unix_us - sent_unix_us
    return elapsed_us if sent_unix_us > 0 and 0 <= elapsed_us <= MAX_CLIENT_US else 0
