"""The speculator: sessions in, guesses out. All of its state may vanish at any time without harm.

One turn: send the finished tick's guesses, begin the next tick. While a tick runs, newer commits replace
older ones in the sessions, so that a slow drafter skips what is already decided. When nobody waits for
guesses, a tick prepares for what may come of the rounds that are being verified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import structlog

from services.speculator.answers import DraftTick, TickSession, draft_blocks
from services.speculator.commits import read_commit
from services.speculator.config import SpeculatorConfig
from services.speculator.drafting import Drafted, Drafter, Wish
from services.speculator.preparing import Preparer, Round
from services.speculator.sessions import DraftSessions, DraftWish
from shared import messages
from shared.actor.lease import LEASE_S
from shared.bus import Delivery
from shared.engine import Engine
from shared.errors import Overloaded, PenstockError, UnknownMessage
from shared.messages import CancelAck, DraftResync, Heartbeat, Held, unpack_ids
from shared.process.service import Service
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.adapters import WorkerAdapters
from shared.worker.drafts.draft_tree import MAX_BRANCHES
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
            limit=service.config.max_sessions, lease_s=LEASE_S, on_drop=self._release_later
        )
        self._drafter = Drafter()
        self._preparer = Preparer(self._drafter.sequences)
        self._somebody_waits = False  # for guesses; the engine's thread reads it

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
        """Take what has become final; whose session is not here, or has other tokens, opens it again."""
        unknown: list[tuple[str, int]] = []
        most, diverged = self._config.max_draft_tokens, self._sessions.diverged
        now_s = SYSTEM_CLOCK.monotonic_s()
        prepares = self._may_prepare(commit.within_us)
        for row in read_commit(commit):
            wish = DraftWish(
                max(0, min(row.num_tokens, most)),
                max(0, min(row.fan, MAX_BRANCHES)) if prepares else 0,
                max(1, min(row.ahead_tokens, most)),
                now_s + commit.within_us / 1e6 if commit.within_us > 0 else None,
                now_s,
            )
            key = sequence_key(row.request_id, row.epoch)
            if not self._sessions.commit(key, row.base, row.token_ids, wish, row.digest):
                unknown.append((row.request_id, row.epoch))
        metrics.DRAFT_DIVERGENCES.inc(self._sessions.diverged - diverged)
        self._somebody_waits = self._sessions.has_wishes
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
            await self._send_tick(tick)
        if self._sessions.has_wishes:
            self._begin_tick()
        elif self._sessions.has_rounds:
            self._begin_preparing()
        else:
            await self._driver.flush_releases()
        self._driver.show_blocks()
        return False

    def _begin_tick(self) -> None:
        self._somebody_waits = False
        asked = [
            TickSession(key, session, len(session.tokens), wish)
            for key, session, wish in self._sessions.take_wishes(self._config.max_sequences)
        ]
        wishes = [
            Wish(
                each.key,
                each.session.num_known,
                each.untold,
                each.session.prompt_len,
                each.session.params,
                each.wish.num_tokens,
                each.session.adapter,
                1 + each.wish.fan if each.wish.fan else 0,
            )
            for each in asked
        ]
        for each in asked:
            each.session.num_known = each.base
        self._driver.begin_step(lambda engine: DraftTick(asked, self._drafter.draft(engine, wishes)))

    def _begin_preparing(self) -> None:
        self._somebody_waits = False
        asked = [
            TickSession(key, session, len(session.tokens), wish, guesses)
            for key, session, wish, guesses in self._sessions.take_rounds(self._config.max_sequences)
        ]
        rounds = [
            Round(
                each.key,
                each.session.num_known,
                each.untold,
                each.guesses,
                each.wish.ahead_tokens,
                each.wish.fan,
                0 if each.wish.follow_up else len(each.guesses),
                each.wish.until_s,
            )
            for each in asked
        ]
        for each in asked:
            each.session.num_known = each.base

        def prepare(engine: Engine) -> DraftTick:
            return DraftTick(asked, self._preparer.prepare(engine, rounds, self._may_go_on))

        self._driver.begin_step(prepare)

    def _may_prepare(self, within_us: int) -> bool:
        """Return whether a step or two may be taken for what nobody may need: the cores are not taken from
        those that verify, and there is the time."""
        if self._driver.engine.shares_cores_now:
            return False
        step_us = sum(self._driver.engine.cost.last_coefficients()[:3])  # of one branch
        return not within_us or 2 * step_us <= within_us

    def _may_go_on(self) -> bool:
        """Return whether nobody waits for guesses; asked by the engine's thread, before each step."""
        return not self._somebody_waits

    async def _send_tick(self, tick: DraftTick) -> None:
        """Send what a tick has brought, and remember it: it says what decode verifies from now on."""
        self._sessions.forget(tick.outcome.forgotten)
        if isinstance(tick.outcome, Drafted):
            for key, why in tick.outcome.refused.items():
                self._refuse_session(key, why)
        answers = list(tick.answers())
        for asked, tree in answers:
            asked.session.tree = tree
            if not tree.branches and asked.session.wish is None and asked.wish.fan:
                asked.session.wish = asked.wish._replace(follow_up=True)
        for decode, block in draft_blocks(answers, SYSTEM_CLOCK.monotonic_s()):
            await self._outbox.tell("decode", decode, block)

    def _release_later(self, key: str) -> None:
        self._driver.later(lambda engine: self._drafter.sequences.release(engine, key))
