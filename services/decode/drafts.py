"""Draft sessions as the decode worker keeps them: what to tell speculators, what to make of their answers.

Pure bookkeeping; nothing here waits. A speculator is a guesser: whatever it says or fails to say, decoding
goes on, and the engine verifies every guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.decode.draft_length import DraftLength
from shared.degradation import DegradationLevel
from shared.messages import DraftBlock, DraftClose, DraftCommit, DraftOpen, pack_ids
from shared.sampling.parameters import SamplingParams
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


class Proposal(NamedTuple):
    """Guesses for the tokens from `base` on, for the engine to verify."""

    key: str
    base: int
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class _Session:
    request_id: str
    epoch: int
    speculator: str
    tokens: list[int]  # prompt and output so far
    prompt_len: int
    sampling: SamplingParams
    length: DraftLength
    known: bool = False  # the speculator was num_sent of it, and has not said that it lost it
    num_sent: int = 0  # how many of `tokens` the speculator has been sent
    advanced: bool = True
    open_at: int = 0  # do not open (again) before the sequence is this long
    reopen_after: int = REOPEN_AFTER_TOKENS
    lag: int = 1  # tokens that were decoded between the last commit and the use of its answer
    block: tuple[int, tuple[int, ...]] | None = None  # (base, ids) of the newest answer
    adapter: str = ""  # what clients call it


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
    """

    decode: str
    longest: int
    batch_tokens: int
    counts: DraftCounts = field(default_factory=DraftCounts)
    level: DegradationLevel = DegradationLevel.NONE
    """The degradation of this worker's model now: it leaves out half of every draft, then all of them."""
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
            DraftLength(self.longest),
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

    def resync(self, request_ids: Iterable[str], epochs: Iterable[int]) -> None:
        """The speculator does not know these sessions (any more)."""
        for request_id, epoch in zip(request_ids, epochs, strict=False):
            session = self._sessions.get(sequence_key(request_id, epoch))
            if session is not None:
                session.known = False
                session.block = None

    def receive(self, block: DraftBlock) -> None:
        """Keep the newest answer of each row until the next step; unknown rows are over and count as late."""
        for request_id, epoch, base, ids in zip(
            block.request_ids, block.epochs, block.bases, block.token_ids, strict=True
        ):
            session = self._sessions.get(sequence_key(request_id, epoch))
            if session is None:
                self.counts.late += len(ids)
            elif ids and (session.block is None or session.block[0] <= base):
                session.block = (base, ids)

    def proposals(self) -> list[Proposal]:
        """Return the answers that are still ahead of each sequence; the others are dropped and counted
        late."""
        found: list[Proposal] = []
        for key, session in self._sessions.items():
            if session.block is None:
                continue
            base, ids = session.block
            session.block = None
            session.lag = max(1, min(len(session.tokens) - base, MAX_LAG_TOKENS))
            rest = still_ahead(session.tokens, base, ids)
            if rest:
                found.append(Proposal(key, len(session.tokens), rest))
            else:
                self.counts.late += len(ids)
                session.length.observe(len(ids), 0)
        return found

    def record_use(self, key: str, behind: int, late: int) -> None:
        """The engine had decoded `behind` tokens more when a proposal came to it; `late` guesses were of no
        use then."""
        self.counts.late += late
        session = self._sessions.get(key)
        if session is not None:
            session.lag = min(session.lag + behind, MAX_LAG_TOKENS)
            if late:
                session.length.observe(late, 0)

    def outgoing(self) -> list[Outgoing]:
        """Messages after a step: sessions to open and to close, and one commit per speculator."""
        if self.level >= DegradationLevel.NO_DRAFTS:
            return self._closes()
        messages = [*self._closes(), *self._opens()]
        rows: dict[str, list[tuple[_Session, int]]] = {}
        limit = min(self.batch_tokens // max(1, len(self._sessions)), longest_at(self.level, self.longest))
        for session in self._sessions.values():
            if not (session.known and session.advanced):
                continue
            session.advanced = False
            wanted = session.length.next(limit)
            if wanted:
                rows.setdefault(session.speculator, []).append((session, wanted + session.lag))
        messages += [Outgoing(speculator, "", 0, self._commit(chosen)) for speculator, chosen in rows.items()]
        return messages

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

    def _commit(self, rows: Sequence[tuple[_Session, int]]) -> DraftCommit:
        """Tokens that were not asked drafts for wait here, so the speculator never sees a gap."""
        message = DraftCommit(
            decode=self.decode,
            request_ids=tuple(session.request_id for session, _ in rows),
            epochs=tuple(session.epoch for session, _ in rows),
            bases=tuple(session.num_sent for session, _ in rows),
            token_ids=tuple(tuple(session.tokens[session.num_sent :]) for session, _ in rows),
            lengths=tuple(wanted for _, wanted in rows),
        )
        for session, _ in rows:
            session.num_sent = len(session.tokens)
        return message


def longest_at(level: DegradationLevel, longest: int) -> int:
    """Return what is left of the longest draft, whichever source makes it."""
    if level >= DegradationLevel.NO_DRAFTS:
        return 0
    return min(longest, max(1, longest // 2)) if level >= DegradationLevel.SHORT_DRAFTS else longest


def still_ahead(tokens: Sequence[int], base: int, ids: Sequence[int]) -> tuple[int, ...]:
    """The guesses after the end of `tokens`, if those before it turned out right; else nothing.

    A block that was asked for before the last step lies behind by that step's tokens: when they are the
    block's own first ids, the rest of it is as good as a fresh one.
    """
    behind = len(tokens) - base
    if behind < 0 or behind >= len(ids) or list(tokens[base:]) != list(ids[:behind]):
        return ()
    return tuple(ids[behind:])
