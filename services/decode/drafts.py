"""Draft sessions as the decode worker keeps them: what to tell speculators, what to make of their answers.

Pure bookkeeping; nothing here waits. A speculator is a guesser: whatever it says or fails to say, decoding
goes on, and the engine verifies every guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.decode.ahead.answer_times import AnswerTimes
from services.decode.ahead.draft_fan import DraftFan
from services.decode.ahead.draft_offers import DraftUse, Proposal, RoundEnd
from services.decode.draft_length import UNKNOWN_PRICE, DraftLength, DraftRecord, ask_price
from shared.degradation import DegradationLevel
from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.scheduling.probes import Probes
from shared.messages import DraftBlock, DraftClose, DraftCommit, DraftOpen, pack_ids
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import DraftTree, trees_of
from shared.worker.drafts.prefix_digest import PrefixDigest
from shared.worker.wire import sequence_key

REOPEN_AFTER_TOKENS = 16
"""A session that the speculator dropped is opened again after this many tokens, later twice as many."""
MAX_REOPEN_AFTER_TOKENS = 1024
MAX_LAG_TOKENS = 8
"""A draft is asked for this much longer at most, for the tokens decoded while it is made and sent."""


class Outgoing(NamedTuple):
    """A message for a speculator; request_id and epoch go into its envelope ("" and 0 when it has rows)."""

    speculator: str
    request_id: str
    epoch: int
    message: DraftOpen | DraftCommit | DraftClose


@dataclass(slots=True)
class _Session:
    request_id: str
    epoch: int
    speculator: str
    tokens: list[int]  # prompt and output so far
    prompt_len: int
    sampling: SamplingParams
    length: DraftLength
    fan: DraftFan
    known: bool = False  # the speculator was num_sent of it, and has not said that it lost it
    num_sent: int = 0  # how many of `tokens` the speculator has been sent
    advanced: bool = True
    open_at: int = 0  # do not open (again) before the sequence is this long
    reopen_after: int = REOPEN_AFTER_TOKENS
    lag: int = 1  # tokens that were decoded between the last commit and the use of its answer
    tree: DraftTree | None = None  # the newest answer, until it is proposed
    adapter: str = ""  # what clients call it
    digest: PrefixDigest = field(default_factory=PrefixDigest)  # of what the speculator has been sent
    asked_s: float = 0.0  # when the last commit went out
    is_fanned: bool = False  # it asked for branches
    unanswered: int = 0  # commits since the last answer
    is_offered: bool = False  # the engine has a draft for the step that runs


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
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _closed: list[_Session] = field(default_factory=list)

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
        self._sessions[sequence_key(request_id, epoch)] = _Session(
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
        session.tokens.extend(token_ids)
        session.advanced = True
        session.length.observe(proposed, accepted)
        if session.is_offered and not proposed:
            session.length.observe_waste()
        session.is_offered = False
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
                session.known = False
                session.tree = None

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
            if tree.token_ids and tree.base >= (session.tree.base if session.tree else 0):
                session.tree = tree

    def proposals(self) -> list[Proposal]:
        """Return the answers that are still ahead of each sequence; the others are dropped, those without
        branches counted late."""
        found: list[Proposal] = []
        for key, session in self._sessions.items():
            tree, session.tree = session.tree, None
            if tree is None:
                continue
            num_known = len(session.tokens)
            if not tree.branches:
                session.lag = max(1, min(num_known - tree.base, MAX_LAG_TOKENS))
            if tree.base <= num_known and tree.rest_after(session.tokens[tree.base :]):
                found.append(Proposal(key, tree, num_known))
            elif not tree.branches:
                self._count_late(session, len(tree.token_ids))
        return found

    def record_use(self, use: DraftUse) -> None:
        """Take note of a draft that came to the engine, or of a round that has ended there."""
        session = self._sessions.get(use.key)
        if session is None:
            self.counts.late += use.late
            return
        if use.late:
            self._count_late(session, use.late)
        elif use.ended is RoundEnd.HIT or (use.ended is None and not session.is_fanned):
            session.is_offered = True
        if use.ended is not None and session.is_fanned:
            session.fan.observe(in_time=use.ended is not RoundEnd.LATE)
        elif use.ended is None:
            session.lag = min(session.lag + use.behind, MAX_LAG_TOKENS)

    def _count_late(self, session: _Session, num_tokens: int) -> None:
        self.counts.late += num_tokens
        session.length.observe_waste()

    def outgoing(self, now_s: float) -> list[Outgoing]:
        """Messages after a step: sessions to open and to close, and one commit per speculator."""
        if self.level >= DegradationLevel.NO_DRAFTS:
            return self._closes()
        self._probes.begin_step()
        messages = [*self._closes(), *self._opens()]
        rows: dict[str, list[tuple[_Session, int]]] = {}
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

    def _prices_of(self, session: _Session) -> tuple[float, float]:
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
            if session.known or len(session.tokens) < session.open_at:
                continue
            session.known = session.advanced = True
            session.num_sent = len(session.tokens)
            session.digest = PrefixDigest(session.tokens)
            session.open_at = session.num_sent + session.reopen_after
            session.reopen_after = min(2 * session.reopen_after, MAX_REOPEN_AFTER_TOKENS)
            message = DraftOpen(
                pack_ids(session.tokens), session.prompt_len, session.sampling, self.decode, session.adapter
            )
            yield Outgoing(session.speculator, session.request_id, session.epoch, message)

    def _closes(self) -> list[Outgoing]:
        closed, self._closed = self._closed, []
        by_speculator: dict[str, list[_Session]] = {}
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

    def _commit(self, speculator: str, rows: Sequence[tuple[_Session, int]], now_s: float) -> DraftCommit:
        """Tokens that were not asked drafts for wait here, so the speculator never sees a gap."""
        within_us = self._times.within_us(speculator, self.step_us) if self.step_us else 0
        bases = tuple(session.num_sent for session, _ in rows)
        token_ids = tuple(tuple(session.tokens[session.num_sent :]) for session, _ in rows)
        fans = tuple(
            0 if self.step_us and within_us <= 0 else session.fan.next(wanted, len(self._sessions))
            for session, wanted in rows
        )
        for (session, _), new, fan in zip(rows, token_ids, fans, strict=True):
            session.num_sent += len(new)
            session.unanswered += 1
            session.digest.extend(new)
            session.asked_s, session.is_fanned = now_s, fan > 0
        return DraftCommit(
            decode=self.decode,
            request_ids=tuple(session.request_id for session, _ in rows),
            epochs=tuple(session.epoch for session, _ in rows),
            bases=bases,
            token_ids=token_ids,
            lengths=tuple(wanted + session.lag for session, wanted in rows),
            fans=fans,
            ahead_lengths=tuple(wanted for _, wanted in rows),
            within_us=max(0, within_us),
            prefix_digests=tuple(session.digest.value for session, _ in rows),
        )


def longest_at(level: DegradationLevel, longest: int) -> int:
    """Return what is left of the longest draft, whichever source makes it."""
    if level >= DegradationLevel.NO_DRAFTS:
        return 0
    return min(longest, max(1, longest // 2)) if level >= DegradationLevel.SHORT_DRAFTS else longest
