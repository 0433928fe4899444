"""The decoder sessions of an instance: which are open, refused or given up. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.detokenizer.config import DetokenizerConfig
from services.detokenizer.decoder_session import DecodedRow, DecoderSession, TokenRow, rows_of
from services.detokenizer.early_tokens import EarlyTokens
from shared.actor import Tombstones
from shared.actor.lease import LEASE_S, LeaseTable
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import (
    Cancelled,
    InvalidRequest,
    NotFound,
    Overloaded,
    PenstockError,
    ProtocolError,
    StaleEpoch,
)
from shared.messages import CancelAck, Held, Lost, Open, Tokens
from shared.telemetry import metrics
from shared.text.tokenizer import TextTokenizer

HOP = "detokenizer"


@dataclass(frozen=True, slots=True)
class LostRow:
    """A request that cannot go on here, and the gateway to tell."""

    gateway: str
    request_id: str
    epoch: int
    lost: Lost


@dataclass(slots=True)
class DecodedOutput:
    """The output of decoder sessions: what is to be sent, in order."""

    texts: list[DecodedRow] = field(default_factory=list)
    lost: list[LostRow] = field(default_factory=list)


class DecoderSessions:
    """The state of the detokenizer. Methods never block and never raise but where they say so.

    A request's rows are taken in position order. Rows of an old epoch, of a request that is over, rows
    seen before and rows of another worker than those it is placed on are dropped and counted. Rows that
    came too early, before their Open or before the rows in front of them, wait a bounded time; then the
    request is reported lost.
    """

    def __init__(
        self, tokenizer: TextTokenizer, config: DetokenizerConfig, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._clock = clock
        self._sessions: dict[str, DecoderSession] = {}
        self._leases: LeaseTable[str] = LeaseTable(clock=clock)
        self._over = Tombstones(ttl_s=LEASE_S, clock=clock)
        self._early = EarlyTokens(config.max_early_rows)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def timed(self) -> bool:
        """Whether there is anything that `tick` may end."""
        return bool(self._sessions or self._early)

    # ---- messages -----------------------------------------------------------------------------------

    def open_decoder(
        self, request_id: str, epoch: int, opened: Open, deadline: Deadline | None
    ) -> DecodedOutput:
        """Expect tokens of this request; the output is what its early tokens and its replay give.

        Raises Cancelled when its cancel came first, StaleEpoch below or at an epoch that is open,
        Overloaded when there are `max_sessions`, DeadlineExpired, InvalidRequest (a
        request of another gateway is one).
        """
        if deadline is not None:
            deadline.check(HOP, self._clock)
        over = self._over.refuses(request_id, epoch, opened.gateway)
        if over:
            raise Cancelled(f"this route was over before it was opened ({over})", hop=HOP)
        current = self._sessions.get(request_id)
        if current is not None and current.gateway != opened.gateway:
            _count("foreign_route", 1)
            raise InvalidRequest("another gateway has opened a request of this id; use ids of your own")
        if current is not None and epoch <= current.epoch:
            raise StaleEpoch(f"epoch {current.epoch} of this request is open already", hop=HOP)
        if current is None and len(self._sessions) >= self._config.max_sessions:
            raise Overloaded(
                f"all {self._config.max_sessions} decoders are in use; try another detokenizer",
                hop=HOP,
                retry_after_ms=100,
            )
        session = DecoderSession(request_id, epoch, opened, deadline, self._tokenizer)
        if current is not None:
            self._drop(current, "replaced")
        output = DecodedOutput()
        if (told := session.take_replay_row()) is not None:
            output.texts.append(told)
        if session.stopped_in_replay:
            self._over.add(request_id, epoch, "finished")
            output.texts.append(session.stop_row())
            return output
        self._sessions[request_id] = session
        self._leases.grant(request_id, session.gateway)
        for row in self._early.pop(request_id):
            self._take_row(row, output)
        return output

    def allow_worker(self, request_id: str, epoch: int, gateway: str, instance: str) -> None:
        """Take tokens of this epoch from `instance` too.

        Raises NotFound where `gateway` has opened no such request here, Overloaded after too many workers.
        """
        session = self._sessions.get(request_id)
        if session is None or session.epoch != epoch or session.gateway != gateway:
            raise NotFound(f"epoch {epoch} of this request is not open here", hop=HOP)
        session.allow_worker(instance)

    def decode_tokens(self, message: Tokens, sender: str = "") -> DecodedOutput:
        """Decode the rows of one step of the instance `sender`."""
        output = DecodedOutput()
        sessions, vocab_size, texts = self._sessions, self._tokenizer.vocab_size, output.texts
        for row in rows_of(message, self._clock.monotonic_s(), sender):
            session, decoded = sessions.get(row[0]), None
            if session is not None and not self._over.knows(row[0], sender):
                decoded = session.decode_plain(row, vocab_size)
            if decoded is None:
                self._take_row(row, output)
            else:
                texts.append(decoded)
        return output

    def cancel_decoder(self, request_id: str, epoch: int, reason: str, sender: str = "") -> CancelAck:
        """Give back what is held for the request at epochs up to `epoch`, and let nothing of it in again.

        Only for the gateway that opened it, or whose name the id begins with; "" has not said who it is.
        """
        session = self._sessions.get(request_id)
        owner = _gateway_of(request_id) if session is None else session.gateway
        if sender not in ("", owner):
            _count("foreign_cancel", 1)
            self._over.add(request_id, epoch, reason or "cancelled", by=sender)
            return CancelAck(held=False, phase="")
        self._over.add(request_id, epoch, reason or "cancelled")
        waiting = self._early.drop(request_id, epoch)
        if session is not None and session.epoch <= epoch:
            self._drop(session, reason or "cancelled")
            return CancelAck(held=True, phase="detokenizing")
        return CancelAck(held=waiting, phase="queued" if waiting else "")

    # ---- time and neighbours --------------------------------------------------------------------------

    def gateways(self) -> set[str]:
        return {session.gateway for session in self._sessions.values()}

    def gateway_lives(self, gateway: str) -> None:
        self._leases.renew_owner(gateway)

    def gateway_lost(self, gateway: str) -> int:
        """Its process is gone and with it everybody who waits for these texts. How many were dropped."""
        orphans = [session for session in self._sessions.values() if session.gateway == gateway]
        for session in orphans:
            self._drop(session, "gateway lost")
        return len(orphans)

    def tick(self) -> DecodedOutput:
        """Return what time has decided: gaps that were not closed, tokens without an Open, leases that ran
        out."""
        output = DecodedOutput()
        now_s = self._clock.monotonic_s()
        for session in list(self._sessions.values()):
            if session.ahead.rows and now_s - session.ahead.since_s >= self._config.gap_grace_ms / 1e3:
                self._lose(session, _gap(session), output)
            elif session.deadline is not None and now_s - session.deadline.at_s >= LEASE_S:
                # The gateway ends a request at its deadline; if it has not said so, the message was lost.
                metrics.DROPPED_MESSAGES.labels(reason="lease_expired").inc()
                self._drop(session, "expired")
        for request_id in self._leases.expired():
            metrics.DROPPED_MESSAGES.labels(reason="lease_expired").inc()
            self._drop(self._sessions[request_id], "lease expired")
        for row in self._early.expired(now_s - self._config.open_grace_ms / 1e3):
            self._unknown(row, output)
        return output

    def undelivered(self, rows: Iterable[DecodedRow], error: PenstockError) -> list[LostRow]:
        """These rows could not be sent: their requests cannot go on here."""
        lost = []
        for row in rows:
            session = self._sessions.get(row.request_id)
            if session is not None:
                self._drop(session, error.code)
            why = Lost(error.code, f"text was not delivered: {error.message}", HOP)
            lost.append(LostRow(row.gateway, row.request_id, row.epoch, why))
        return lost

    def abandon_decoders(self) -> list[LostRow]:
        """This instance ends: its gateways should place their requests elsewhere at once."""
        output = DecodedOutput()
        why = Lost("unavailable", "the detokenizer ends; open the request elsewhere", HOP)
        for session in list(self._sessions.values()):
            self._lose(session, why, output)
        return output.lost

    def held(self) -> Iterable[Held]:
        for session in self._sessions.values():
            yield Held(session.request_id, "decoder", 1, "detokenizing")
        for request_id, rows in self._early.counts().items():
            yield Held(request_id, "queued", rows, "before open")

    @property
    def waiting_rows(self) -> int:
        return len(self._early)

    # ---- rows ---------------------------------------------------------------------------------------

    def _take_row(self, row: TokenRow, output: DecodedOutput) -> None:
        session = self._sessions.get(row.request_id)
        if self._over.refuses(row.request_id, row.epoch, row.sender) or (
            session and row.epoch < session.epoch
        ):
            metrics.STALE_MESSAGES.inc()
            return
        if session is not None and row.epoch == session.epoch and not session.is_from_its_workers(row):
            _count("foreign_tokens", max(1, len(row.token_ids)))
            return
        try:
            row.check(self._tokenizer.vocab_size)
        except ProtocolError as error:
            self._broken(row, error, output)
            return
        if session is None or row.epoch > session.epoch:
            for given_up in self._early.add(row):
                self._unknown(given_up, output)
            return
        if row.position > session.next_position:
            if not session.keep_ahead(row):
                self._lose(session, _gap(session), output)
            return
        self._decode_row(session, row, output)
        while (
            session.ahead.rows
            and row.request_id in self._sessions
            and (ahead := session.next_ahead()) is not None
        ):
            self._decode_row(session, ahead, output)

    def _decode_row(self, session: DecoderSession, row: TokenRow, output: DecodedOutput) -> None:
        if session.is_next(row):
            output.texts.append(session.decode_next(row))
            if row.finish:
                self._drop(session, "finished")
            return
        taken = session.decode_row(row, self._clock)
        _count("duplicate_tokens", taken.duplicate_tokens)
        _count("tokens_after_stop", taken.tokens_after_stop)
        if taken.row is None:
            return
        output.texts.append(taken.row)
        if taken.row.finish:
            self._drop(session, "finished")

    def _broken(self, row: TokenRow, error: PenstockError, output: DecodedOutput) -> None:
        """Nothing that comes after a malformed row can be placed."""
        lost = Lost(error.code, error.message, HOP)
        session = self._sessions.get(row.request_id)
        if session is not None and session.epoch == row.epoch:
            self._lose(session, lost, output)
        else:
            self._report(row, lost, output)

    def _unknown(self, row: TokenRow, output: DecodedOutput) -> None:
        if not self._over.refuses(row.request_id, row.epoch, row.sender):
            message = f"tokens came for epoch {row.epoch} of a request that was not opened here"
            self._report(row, Lost("unknown", message, HOP), output)

    def _report(self, row: TokenRow, lost: Lost, output: DecodedOutput) -> None:
        """Say so to the gateway that a request id begins with; no session of this epoch is known.

        An older one ends by this only where the row is of its own workers: they would not have gone on to
        another epoch by themselves. Anybody else's claim, true or not, is its gateway's to make.
        """
        self._over.add(row.request_id, row.epoch, lost.code, by=row.sender)
        older = self._sessions.get(row.request_id)
        if older is not None and not older.is_from_its_workers(row):
            _count("foreign_tokens", max(1, len(row.token_ids)))
            return
        self._early.drop(row.request_id, row.epoch)
        if older is not None:  # its gateway has moved on to this epoch
            self._drop(older, "replaced")
        metrics.DROPPED_MESSAGES.labels(reason=f"tokens_{lost.code}").inc()
        gateway = _gateway_of(row.request_id)
        if gateway:
            output.lost.append(LostRow(gateway, row.request_id, row.epoch, lost))

    def _lose(self, session: DecoderSession, lost: Lost, output: DecodedOutput) -> None:
        output.lost.append(LostRow(session.gateway, session.request_id, session.epoch, lost))
        self._drop(session, lost.code)

    def _drop(self, session: DecoderSession, why: str) -> None:
        self._sessions.pop(session.request_id, None)
        self._leases.drop(session.request_id)
        self._over.add(session.request_id, session.epoch, why)


def _gateway_of(request_id: str) -> str:
    """Gateways begin the ids of their requests with their names; "" when this one does not."""
    return request_id.rpartition(".")[0]


def _gap(session: DecoderSession) -> Lost:
    return Lost("gap", f"the tokens from position {session.next_position} on did not come", HOP)


def _count(reason: str, tokens: int) -> None:
    if tokens:
        metrics.DROPPED_MESSAGES.labels(reason=reason).inc(tokens)
