"""The speculator: sessions in, guesses out. All of its state may vanish at any time without harm.

One turn: send the finished tick's guesses, begin the next tick. While a tick runs, newer commits replace
older ones in the sessions, so that a slow drafter skips what is already decided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from prometheus_client import Counter

from services.speculator.config import SpeculatorConfig
from services.speculator.drafting import Drafted, Wish, draft
from services.speculator.sessions import DraftSession, SessionTable
from shared import messages
from shared.actor import Ask, BusActor
from shared.actor.lease import LEASE_S
from shared.bus import Delivery
from shared.engine import Engine
from shared.errors import UnknownMessage
from shared.messages import CancelAck, DraftBlock, DraftResync, Heartbeat, Held, unpack_ids
from shared.service import Service
from shared.worker.driver import EngineDriver
from shared.worker.events import InstanceLost, Started, Tick
from shared.worker.outbox import Outbox
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.rate import TokenRate
from shared.worker.wire import sequence_key

log = structlog.get_logger()

SESSIONS_REFUSED = Counter(
    "penstock_draft_sessions_refused_total", "Draft sessions that the draft model cannot follow."
)


@dataclasses.dataclass(frozen=True, slots=True)
class DraftTick:
    """What one tick worked on, and what came of it."""

    sessions: Sequence[tuple[str, DraftSession, int]]  # key, session, base
    drafted: Drafted


class SpeculatorActor(BusActor):
    """Owns the draft model's engine and the sessions."""

    def __init__(
        self,
        service: Service[SpeculatorConfig],
        model_id: str,
        load: Callable[[], Engine],
        mirror: PrefixMirror,
    ) -> None:
        super().__init__("speculator", service)
        self._service = service
        self._model_id = model_id
        self._mirror = mirror
        self._driver: EngineDriver[DraftTick] = EngineDriver("draft-engine", load, mirror, self.wake)
        self._sessions = SessionTable(limit=service.config.max_sessions, lease_s=LEASE_S)
        self._outbox = Outbox(service.bus, "speculator")
        self._rate = TokenRate()

    # ---- life -------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        await self._driver.open()
        log.info("engine_ready", kv_blocks=self._driver.engine.config.kv_blocks)

    async def on_stop(self) -> None:
        """Nobody needs to be told: decode workers go on without."""
        await self._driver.close()

    def status(self) -> Heartbeat:
        if not self._driver.loaded:  # a restarted actor gets a fresh engine first
            return self._service.heartbeat(state="loading", model=self._model_id)
        engine, delta = self._driver.engine, self._mirror.drain()
        return self._service.heartbeat(
            model=self._model_id,
            layout=engine.layout.fingerprint(),
            capacity=self._service.config.max_sessions,
            live=len(self._sessions),
            kv_blocks=engine.config.kv_blocks,
            kv_blocks_free=self._driver.facts.free_blocks,
            tokens_per_s=self._rate.tokens_per_s,
            prefix_event_id=delta.event_id,
            added=delta.added,
            removed=delta.removed,
        )

    def snapshot(self) -> messages.Snapshot:
        return self._mirror.snapshot()

    def held(self) -> Iterable[Held]:
        for session in self._sessions.held():
            yield Held(session.request_id, "draft", 1, "")
        for key, blocks in self._driver.facts.held.items():
            yield Held(key.rpartition("/")[0], "kv_blocks", blocks, "")

    # ---- messages ---------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """A close must not overtake the open that it ends."""
        if isinstance(delivery.message, messages.DraftClose):
            self.tell(delivery)
        else:
            super().receive(delivery)

    async def on_message(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        match delivery.message:
            case messages.DraftOpen() as opened:
                self._open(envelope.request_id, envelope.epoch, opened)
            case messages.DraftCommit() as commit:
                await self._commit(commit)
            case messages.DraftClose(request_ids, epochs):
                for request_id, epoch in zip(request_ids, epochs, strict=False):
                    self._sessions.drop(sequence_key(request_id, epoch))
            case messages.Cancel():
                held = self._sessions.drop_request(envelope.request_id, envelope.epoch)
                if envelope.reply:
                    await self.bus.reply(envelope, CancelAck(held, "drafting" if held else ""))
            case message:
                raise UnknownMessage(f"a speculator has no use for {type(message).__name__}")

    async def on_item(self, item: Any) -> None:
        match item:
            case Ask(item=Started()):
                item.answer()
            case Tick():
                self._sessions.expire()
            case InstanceLost(role, instance, why):
                if role == "decode" and why != "suspect":
                    self._sessions.drop_decode(instance)
            case _:
                await super().on_item(item)

    def _open(self, request_id: str, epoch: int, opened: messages.DraftOpen) -> None:
        params = dataclasses.replace(opened.sampling, logprobs=-1)
        self._sessions.open(
            sequence_key(request_id, epoch),
            request_id,
            epoch,
            opened.decode,
            unpack_ids(opened.token_ids),
            opened.prompt_len,
            params,
        )

    async def _commit(self, commit: messages.DraftCommit) -> None:
        unknown: list[tuple[str, int]] = []
        most = self._service.config.max_draft_tokens
        for request_id, epoch, base, ids, wanted in zip(
            commit.request_ids, commit.epochs, commit.bases, commit.token_ids, commit.lengths, strict=True
        ):
            key = sequence_key(request_id, epoch)
            if not self._sessions.commit(key, base, ids, max(0, min(wanted, most))):
                unknown.append((request_id, epoch))
        if unknown:
            resync = DraftResync(tuple(item[0] for item in unknown), tuple(item[1] for item in unknown))
            await self._outbox.tell("decode", commit.decode, resync)

    # ---- one turn -----------------------------------------------------------------------------------

    async def turn(self) -> bool:
        if self._driver.stepping:
            tick = self._driver.take()
            if tick is None:
                return False
            await self._send_blocks(tick)
        if self._sessions.has_wishes:
            self._begin_tick()
        self._driver.show_blocks()
        return False

    def _begin_tick(self) -> None:
        chosen = self._sessions.take_wishes(self._service.config.max_sequences)
        sessions = [(key, session, len(session.tokens)) for key, session, _ in chosen]
        wishes = [
            Wish(key, tuple(session.tokens), session.prompt_len, session.params, wanted)
            for key, session, wanted in chosen
        ]
        self._driver.begin(lambda engine: DraftTick(sessions, draft(engine, wishes)))

    async def _send_blocks(self, tick: DraftTick) -> None:
        """One block per decode worker."""
        for key, why in tick.drafted.refused.items():
            self._sessions.drop(key)
            SESSIONS_REFUSED.inc()
            log.debug("draft_session_refused", why=why)
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
