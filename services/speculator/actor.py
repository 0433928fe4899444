"""The speculator: sessions in, guesses out. All of its state may vanish at any time without harm.

One turn: send the finished tick's guesses, begin the next tick. While a tick runs, newer commits replace
older ones in the sessions, so that a slow drafter skips what is already decided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import structlog

from services.speculator.config import SpeculatorConfig
from services.speculator.drafting import Drafted, Drafter, Wish
from services.speculator.sessions import DraftSession, DraftSessions
from shared import messages
from shared.actor.lease import LEASE_S
from shared.bus import Delivery
from shared.engine import Engine
from shared.errors import Overloaded, PenstockError, UnknownMessage
from shared.messages import CancelAck, DraftBlock, DraftResync, Heartbeat, Held, unpack_ids
from shared.process.service import Service
from shared.telemetry import metrics
from shared.worker.adapters import WorkerAdapters
from shared.worker.driver import EngineDriver
from shared.worker.engine_actor import EngineActor
from shared.worker.grammar_compiler import GrammarCompiler
from shared.worker.job_book import WorkerLoad
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.wire import sequence_key

log = structlog.get_logger()

GUESSED_FROM = (messages.DraftOpen, messages.DraftCommit)
MOST_GUESSED_FROM = 512
"""Messages in the mailbox, half of its limit. A session that misses a commit is opened again, one whose close
is lost stays until its lease ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraftTick:
    """The work of one tick, and what came of it."""

    sessions: Sequence[tuple[str, DraftSession, int]]  # key, session, base
    drafted: Drafted


class SpeculatorActor(EngineActor):
    """Owns the draft model's engine and the sessions."""

    _driver: EngineDriver[DraftTick]
    _grammar_compiler: GrammarCompiler | None = None  # until there is an engine

    def __init__(
        self,
        service: Service[SpeculatorConfig],
        load: Callable[[], Engine],
        mirror: PrefixMirror,
        adapters: WorkerAdapters | None = None,
    ) -> None:
        super().__init__(service, EngineDriver("draft-engine", load, mirror, self.wake), mirror, adapters)
        self._config = service.config
        self._sessions = DraftSessions(
            limit=service.config.max_sessions, lease_s=LEASE_S, on_drop=self._driver.release_later
        )
        self._drafter = Drafter()

    async def on_start(self) -> None:
        await super().on_start()
        grammars = self._driver.engine.grammars
        self._grammar_compiler = GrammarCompiler(self._service.role, grammars, self.wake)

    async def on_stop(self) -> None:
        if self._grammar_compiler is not None:
            await self._grammar_compiler.close()
        await super().on_stop()

    def status(self) -> Heartbeat:
        beat = super().status()
        return dataclasses.replace(
            beat, worker=dataclasses.replace(beat.worker, drafts_for=self._config.drafts_for)
        )

    def worker_load(self) -> WorkerLoad:
        return WorkerLoad(
            capacity=self._config.max_sessions,
            live=len(self._sessions),
            kv_blocks_free=self._driver.snapshot.free_blocks,
        )

    def held(self) -> Iterable[Held]:
        for session in self._sessions.held():
            yield Held(session.request_id, "draft", 1, "")
        yield from super().held()

    # ---- messages ---------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """A close must not overtake the open that it ends, and finds room behind whatever else has come: who
        stood still has seconds of commits before him then."""
        if isinstance(delivery.message, messages.DraftClose):
            self.tell(delivery)
        elif isinstance(delivery.message, GUESSED_FROM) and self.queued >= MOST_GUESSED_FROM:
            raise Overloaded(f"{self.queued} messages wait: nobody needs guesses about what is over")
        else:
            super().receive(delivery)

    async def on_message(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        match delivery.message:
            case messages.DraftOpen() as opened:
                self._open_session(envelope.request_id, envelope.epoch, opened)
            case messages.DraftCommit() as commit:
                await self._commit(commit)
            case messages.DraftClose(request_ids, epochs):
                for request_id, epoch in zip(request_ids, epochs, strict=False):
                    self._sessions.drop(sequence_key(request_id, epoch))
            case messages.Cancel():
                held = self._sessions.drop_request(envelope.request_id, envelope.epoch)
                await self.bus.answer(envelope, CancelAck(held, "drafting" if held else ""))
            case message:
                raise UnknownMessage(f"a speculator has no use for {type(message).__name__}")

    def holds_work(self) -> bool:
        return len(self._sessions) > 0

    def adapters_in_use(self) -> set[str]:
        return {session.adapter for session in self._sessions.held() if session.adapter}

    async def on_tick(self) -> None:
        self._sessions.expire()

    async def on_instance_lost(self, role: str, instance: str, why: str) -> None:
        if role == "decode" and why != "suspect":
            self._sessions.drop_decode(instance)

    def _open_session(self, request_id: str, epoch: int, opened: messages.DraftOpen) -> None:
        params = dataclasses.replace(opened.sampling, logprobs=-1)
        key = sequence_key(request_id, epoch)
        assert self._grammar_compiler is not None
        self._grammar_compiler.check_room(params.grammar)
        if params.grammar is not None:
            self._grammar_compiler.begin(key, params.grammar)
        self._sessions.open_session(
            key,
            request_id,
            epoch,
            opened.decode,
            unpack_ids(opened.token_ids),
            opened.prompt_len,
            params,
            adapter=self._adapters.name_for_draft(opened.adapter),
        )

    async def _commit(self, commit: messages.DraftCommit) -> None:
        unknown: list[tuple[str, int]] = []
        most = self._config.max_draft_tokens
        for request_id, epoch, base, ids, wanted in zip(
            commit.request_ids, commit.epochs, commit.bases, commit.token_ids, commit.lengths, strict=True
        ):
            key = sequence_key(request_id, epoch)
            if not self._sessions.commit(key, base, ids, max(0, min(wanted, most))):
                unknown.append((request_id, epoch))
        if unknown:
            resync = DraftResync(tuple(item[0] for item in unknown), tuple(item[1] for item in unknown))
            await self._outbox.tell("decode", commit.decode, resync)

    def _take_grammars(self) -> None:
        assert self._grammar_compiler is not None
        for key, result in self._grammar_compiler.take_ended():
            if isinstance(result, PenstockError):
                self._refuse_session(key, result.message)
            else:
                self._sessions.take_grammar(key, result)

    def _refuse_session(self, key: str, why: str) -> None:
        self._sessions.drop(key)
        metrics.DRAFT_SESSIONS_REFUSED.inc()
        log.debug("draft_session_refused", why=why)

    # ---- one turn -----------------------------------------------------------------------------------

    async def turn(self) -> bool:
        await self._outbox.send_waiting()
        self._take_grammars()
        if self._driver.stepping:
            tick = self._driver.take_result()
            if tick is None:
                return False
            await self._send_blocks(tick)
        if self._sessions.has_wishes:
            self._begin_tick()
        else:
            await self._driver.flush_releases()
        self._driver.show_blocks()
        return False

    def _begin_tick(self) -> None:
        chosen = self._sessions.take_wishes(self._config.max_sequences)
        sessions = [(key, session, len(session.tokens)) for key, session, _ in chosen]
        wishes = []
        for key, session, wanted in chosen:
            untold = tuple(session.tokens[session.num_known :])
            wishes.append(
                Wish(
                    key,
                    session.num_known,
                    untold,
                    session.prompt_len,
                    session.params,
                    wanted,
                    session.adapter,
                )
            )
            session.num_known = len(session.tokens)
        self._driver.begin_step(lambda engine: DraftTick(sessions, self._drafter.draft(engine, wishes)))

    async def _send_blocks(self, tick: DraftTick) -> None:
        """One block per decode worker."""
        self._sessions.forget(tick.drafted.forgotten)
        for key, why in tick.drafted.refused.items():
            self._refuse_session(key, why)
        rows: dict[str, list[tuple[DraftSession, int, tuple[int, ...]]]] = {}
        for key, session, base in tick.sessions:
            guesses = tick.drafted.token_ids.get(key, ())
            if guesses:
                rows.setdefault(session.decode, []).append((session, base, guesses))
        for decode, answers in rows.items():
            block = DraftBlock(
                request_ids=tuple(session.request_id for session, _, _ in answers),
                epochs=tuple(session.epoch for session, _, _ in answers),
                bases=tuple(base for _, base, _ in answers),
                token_ids=tuple(guesses for _, _, guesses in answers),
            )
            await self._outbox.tell("decode", decode, block)
