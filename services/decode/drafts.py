"""Draft sessions as the decode worker keeps them: what to tell speculators, what to make of their answers.

Pure bookkeeping; nothing here waits. A speculator is a guesser: whatever it says or fails to say, decoding
goes on, and the engine verifies every guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.decode.ahead.answer_times import AnswerTimes
from services.decode.ahead.draft_fan import DraftFan
from services.decode.ahead.draft_offers import DraftUse, Proposal
from services.decode.draft_length import UNKNOWN_PRICE, DraftLength, DraftRecord, ask_price
from services.decode.drafted_request import MAX_LAG_TOKENS, DraftedRequest, Outgoing
from shared.degradation import DegradationLevel
from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.scheduling.probes import Probes
from shared.messages import DraftBlock, DraftClose, DraftCommit
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import trees_of
from shared.worker.wire import sequence_key


@dataclass(slots=True)
class DraftCounts:
    """Tokens, since the start."""

    proposed: int = 0
    accepted: int = 0
    late: int = 0


@dataclass(slots=True)
class DraftBook:
    """The book of all draft sessions of one decode worker.

    `longest`: most tokens wanted per request and step. `batch_tokens`: most over the whole batch, so that
    drafts shrink as the batch grows: a full batch has no idle arithmetic to bet with. A commit asks for more,
    by what will have been decoded when the answer comes: at least the token of the step that runs meanwhile.
    `widest`: most ids that may follow at each place of a round for which drafts are wanted ahead of time.
    """

    decode: str
    longest: int
    batch_tokens: int
    widest: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    level: DegradationLevel = DegradationLevel.NONE
    """The degradation of this worker's model now: it leaves out half of every draft, then all of them."""
    step_us: int = 0
    """The time of a step of the batch; 0 while it is not known."""
    prices: DraftPrices | None = None
    """The price of verifying a token; None while it is not known."""
    _record: DraftRecord = field(default_factory=DraftRecord.common)
    _probes: Probes = field(default_factory=Probes)
    _times: AnswerTimes = field(default_factory=AnswerTimes)
    _sessions: dict[str, DraftedRequest] = field(default_factory=dict)
    _closed: list[DraftedRequest] = field(default_factory=list)

    def open_draft(
        self,
        request_id: str,
        epoch: int,
        speculator: str,
        token_ids: Sequence[int],
        prompt_len: int,
        sampling: SamplingParams,
        *,
        adapter: str = "",
    ) -> None:
        if self.longest == 0 or not speculator:
            return
        self._sessions[sequence_key(request_id, epoch)] = DraftedRequest(
            request_id,
            epoch,
            speculator,
            list(token_ids),
            prompt_len,
            sampling,
            DraftLength(self.longest, self._record, self._probes),
            DraftFan(self.widest),
            adapter=adapter,
        )

    def advance(self, key: str, token_ids: Sequence[int], proposed: int, accepted: int) -> None:
        """One verified step of a sequence: these tokens are final."""
        session = self._sessions.get(key)
        if session is None:
            return
        session.advance(token_ids, proposed, accepted)
        self.counts.proposed += proposed
        self.counts.accepted += accepted

    def close_draft(self, key: str) -> None:
        """The sequence is over; the speculator hears of it with the next `outgoing`."""
        session = self._sessions.pop(key, None)
        if session is not None and session.known:
            self._closed.append(session)

    def lose(self, speculator: str) -> None:
        """A speculator is not heard of: its requests go on without drafts. It may be alive, and is to keep
        nothing of them."""
        for key in [key for key, session in self._sessions.items() if session.speculator == speculator]:
            self.close_draft(key)
        self._times.forget(speculator)

    def resync(self, request_ids: Iterable[str], epochs: Iterable[int]) -> None:
        """The speculator does not know these sessions (any more)."""
        for request_id, epoch in zip(request_ids, epochs, strict=False):
            session = self._sessions.get(sequence_key(request_id, epoch))
            if session is not None:
                session.forget_sent()

    def receive(self, block: DraftBlock, speculator: str, now_s: float) -> None:
        """Keep the newest answer of each row until the next step; rows of sessions that are over, or that
        have another speculator, count as late. Raises ProtocolError for a block that nobody may send."""
        for request_id, epoch, tree, took_us in trees_of(block):
            session = self._sessions.get(sequence_key(request_id, epoch))
            if session is None or speculator not in ("", session.speculator):
                self.counts.late += len(tree.token_ids)
                continue
            session.unanswered = 0
            if took_us > 0 and tree.base == session.num_sent:
                self._times.observe(session.speculator, now_s - session.asked_s, took_us)
            session.answer(tree)

    def proposals(self) -> list[Proposal]:
        """Return the answers that are still ahead of each sequence; the others are dropped, those without
        branches counted late."""
        found: list[Proposal] = []
        for key, session in self._sessions.items():
            proposal, late = session.propose(key)
            self.counts.late += late
            if proposal is not None:
                found.append(proposal)
        return found

    def record_use(self, use: DraftUse) -> None:
        """Take note of a draft that came to the engine, or of a round that has ended there."""
        self.counts.late += use.late
        session = self._sessions.get(use.key)
        if session is not None:
            session.record_use(use)

    def outgoing(self, now_s: float) -> list[Outgoing]:
        """Messages after a step: sessions to open and to close, and one commit per speculator."""
        if self.level >= DegradationLevel.NO_DRAFTS:
            return self._closes()
        self._probes.begin_step()
        messages = [*self._closes(), *self._opens()]
        rows: dict[str, list[tuple[DraftedRequest, int]]] = {}
        limit = min(self.batch_tokens // max(1, len(self._sessions)), longest_at(self.level, self.longest))
        for session in self._sessions.values():
            if not (session.known and session.advanced):
                continue
            session.advanced = False
            if session.unanswered > MAX_LAG_TOKENS:
                session.length.observe_waste()
            wanted = session.length.next(limit, *self._prices_of(session), len(self._sessions))
            if wanted:
                rows.setdefault(session.speculator, []).append((session, wanted))
        messages += [
            Outgoing(speculator, "", 0, self._commit(speculator, chosen, now_s))
            for speculator, chosen in rows.items()
        ]
        return messages

    def _prices_of(self, session: DraftedRequest) -> tuple[float, float]:
        """Return what a token of a session, and asking for some, costs in steps of it."""
        if self.prices is None:
            return UNKNOWN_PRICE, 0.0
        return self.prices.of_token(len(session.tokens)), ask_price(self.prices, len(self._sessions))

    def held(self) -> list[tuple[str, int]]:
        """(request_id, epoch) of every session, for audits."""
        return [(session.request_id, session.epoch) for session in self._sessions.values()]

    def __len__(self) -> int:
        return len(self._sessions)

    def _opens(self) -> Iterable[Outgoing]:
        for session in self._sessions.values():
            message = session.open(self.decode)
            if message is not None:
                yield Outgoing(session.speculator, session.request_id, session.epoch, message)

    def _closes(self) -> list[Outgoing]:
        closed, self._closed = self._closed, []
        by_speculator: dict[str, list[DraftedRequest]] = {}
        for session in closed:
            by_speculator.setdefault(session.speculator, []).append(session)
        return [
            Outgoing(
                speculator,
                "",
                0,
                DraftClose(
                    tuple(session.request_id for session in sessions),
                    tuple(session.epoch for session in sessions),
                ),
            )
            for speculator, sessions in by_speculator.items()
        ]

    def _commit(
        self, speculator: str, chosen: Sequence[tuple[DraftedRequest, int]], now_s: float
    ) -> DraftCommit:
        """Tokens that were not asked drafts for wait here, so the speculator never sees a gap."""
        within_us = self._times.within_us(speculator, self.step_us) if self.step_us else 0
        rows = [
            session.commit(
                wanted,
                0 if self.step_us and within_us <= 0 else session.fan.next(wanted, len(self._sessions)),
                now_s,
            )
            for session, wanted in chosen
        ]
        return DraftCommit(
            decode=self.decode,
            request_ids=tuple(session.request_id for session, _ in chosen),
            epochs=tuple(session.epoch for session, _ in chosen),
            bases=tuple(row.base for row in rows),
            token_ids=tuple(row.token_ids for row in rows),
            lengths=tuple(row.length for row in rows),
            fans=tuple(row.fan for row in rows),
            ahead_lengths=tuple(row.ahead_length for row in rows),
            within_us=max(0, within_us),
            prefix_digests=tuple(row.prefix_digest for row in rows),
        )


def longest_at(level: DegradationLevel, longest: int) -> int:
    """Return what is left of the longest draft, whichever source makes it."""
    if level >= DegradationLevel.NO_DRAFTS:
        return 0
    return min(longest, max(1, longest // 2)) if level >= DegradationLevel.SHORT_DRAFTS else longest
