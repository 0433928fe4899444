"""The prefill worker turn by turn, with a real engine and a real sender; the test is the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from services.prefill import actor as prefill_actor
from services.prefill.actor import PrefillActor
from services.prefill.config import PrefillConfig
from services.prefill.queue import PATIENCE_S
from shared.bus import Delivery
from shared.bus.bulk import BulkConnection
from shared.engine import Engine
from shared.engine import engine as engine_module
from shared.engine.core_arbiter import CoreArbiter, WorkClass
from shared.engine.native.library import library
from shared.engine.sampling import grammar_row
from shared.errors import InvalidRequest
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnFailed, OnReleased
from shared.messages import (
    Accepted,
    Cancel,
    CancelAck,
    Envelope,
    GrammarTried,
    KvAbort,
    KvAbortAck,
    KvGrant,
    Lost,
    Message,
    Prefill,
    Tokens,
    pack_hashes,
    pack_ids,
)
from shared.process.service import Service
from shared.sampling.parameters import Grammar
from shared.worker import grammar_compiler
from shared.worker.job import JobPhase
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.clock import FakeClock
from tests.support.engine import make_engine
from tests.support.heartbeats import make_heartbeat
from tests.support.held_masks import held_masks
from tests.support.metric import value
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.played_receiver import PlayedReceiver
from tests.support.sampling import sampling
from tests.support.slow_grammar import PATTERNS_TOGETHER, held_compiler
from tests.support.wait import until

CHUNK = 16
PROMPT = range(1, 5 * CHUNK)
SLOW = Grammar("regex", "[ -~]+")


class Worker(PrefillActor):
    """Its mailbox and its turns are in the hands of the test."""

    bus_type = NotedBus

    def __init__(self, llm_dir: Path, kv_blocks: int = 64) -> None:
        service = Service("prefill", PrefillConfig(), "prefill-0")
        self.sent = service.bus = self.bus_type()

        def make_sender(engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
            bulk = cast(BulkConnection, None)  # nothing is granted that bytes would be sent for
            return KvSender(
                self.sent, bulk, engine.kv_pool, None, on_released=on_released, on_failed=on_failed
            )

        super().__init__(
            service,
            lambda: make_engine(llm_dir, max_batch_tokens=CHUNK, kv_blocks=kv_blocks),
            make_sender,
            PlayedReceiver.make,
            PrefixMirror(),
        )

    async def send(self, message: Message, request_id: str = "r", epoch: int = 1) -> Message:
        await self.handle(self.sent.asked(message, request_id, epoch))
        return self.sent.to(REPLY).pop()

    async def place(
        self,
        request_id: str = "r",
        epoch: int = 1,
        *,
        grammar: Grammar | None = None,
        prompt: Sequence[int] = PROMPT,
        names: Sequence[bytes] = (),
        seconds: float = 60.0,
    ) -> None:
        how, hashes = sampling(ignore_eos=True, grammar=grammar), pack_hashes(names)
        prefill = Prefill(
            pack_ids(prompt), len(prompt), hashes, how, "gateway-0", "detokenizer-0", "decode-0", 0
        )
        await self.handle(self.sent.asked(prefill, request_id, epoch, seconds=seconds))
        assert isinstance(self.sent.to(REPLY).pop(), Accepted)

    def lost(self) -> list[str]:
        """The codes of what the gateway was told."""
        return [one.code for one in self.sent.to("penstock.gateway.gateway-0") if isinstance(one, Lost)]

    async def until_lost(self) -> list[str]:
        async def told() -> list[str]:
            await self.step()
            return self.lost()

        await until(told)
        return self.lost()

    async def step(self) -> None:
        """One turn, and what it began."""
        await self.turn()
        await until(lambda: self._driver._step is None or self._driver._step.done())

    async def until_first_token(self, request_id: str = "r", epoch: int = 1) -> None:
        async def drawn() -> bool:
            await self.step()
            return any(
                (request_id, epoch) in zip(tokens.request_ids, tokens.epochs, strict=True)
                for tokens in self.sent.to("penstock.detokenizer.detokenizer-0")
                if isinstance(tokens, Tokens)
            )

        await until(drawn)

    def grant(self) -> None:
        """Decode takes part in the transfer from now on, so that its end has to be acknowledged."""
        layout = self._driver.engine.layout.fingerprint()
        grant = KvGrant(1, layout, (0,), 0, "nats", "penstock.kv.decode-0.1", 0)
        self.receive(Delivery(Envelope("r", 1), grant))

    def jobs_held(self) -> int:
        return sum(held.kind in ("queued", "transfer") for held in self.held())


@pytest.fixture
async def worker(llm_dir: Path) -> AsyncIterator[Worker]:
    worker = Worker(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def test_a_late_cancel_of_an_epoch_leaves_the_next_one_alive(worker: Worker) -> None:
    await worker.place(epoch=2)
    assert await worker.send(Cancel("replaced"), epoch=1) == CancelAck(held=False, phase="")
    await worker.until_first_token(epoch=2)


async def test_a_later_epoch_leaves_nothing_of_an_earlier_one_in_the_audit(worker: Worker) -> None:
    await worker.place(epoch=1)
    await worker.until_first_token(epoch=1)
    await worker.place(epoch=2)
    await worker.until_first_token(epoch=2)
    assert worker.jobs_held() == 1
    await worker.send(Cancel("cancelled"), epoch=2)
    await worker.step()
    await worker.step()
    assert list(worker.held()) == []


async def test_a_suspect_gateway_keeps_its_jobs_and_a_stopped_one_loses_them(worker: Worker) -> None:
    await worker.place()
    await worker.on_instance_lost("gateway", "gateway-0", "suspect")
    assert worker.jobs_held() == 1
    await worker.on_instance_lost("gateway", "gateway-1", "stopped")
    assert worker.jobs_held() == 1
    await worker.on_instance_lost("gateway", "gateway-0", "stopped")
    assert worker.jobs_held() == 0


async def test_a_cancel_in_mid_compute_stops_the_steps_though_nobody_acknowledges_the_abort(
    worker: Worker,
) -> None:
    await worker.place()
    await worker.step()
    worker.grant()
    ack = await worker.send(Cancel("cancelled"))
    assert ack == CancelAck(held=True, phase="computing")
    await worker.turn()  # takes the step that was running
    assert not worker._driver.stepping
    assert [(held.kind, held.phase) for held in worker.held()] == [("transfer", "stopping")]
    await until(lambda: KvAbort(1, "cancelled") in worker.sent.to("penstock.decode.decode-0"))
    worker.receive(Delivery(Envelope("r", 1), KvAbortAck(1)))
    await worker.turn()
    assert list(worker.held()) == []


async def test_a_cancel_in_transfer_keeps_the_blocks_until_the_abort_is_acknowledged(worker: Worker) -> None:
    await worker.place()
    await worker.until_first_token()
    worker.grant()
    assert await worker.send(Cancel("cancelled")) == CancelAck(held=True, phase="transferring")
    await worker.step()
    assert {held.kind for held in worker.held()} == {"transfer", "kv_blocks"}
    worker.receive(Delivery(Envelope("r", 1), KvAbortAck(1)))
    await worker.step()
    assert list(worker.held()) == []


# ---- grammars ----


async def test_a_prompt_is_computed_while_the_grammar_of_another_is_compiled(worker: Worker) -> None:
    with held_compiler(SLOW) as held:
        await worker.place("constrained", grammar=SLOW)
        await asyncio.to_thread(held.begun.wait)
        await worker.place("beside")
        await worker.until_first_token("beside")
        assert [held.phase for held in worker.held() if held.request_id == "constrained"] == ["queued"]
        held.go_on.set()
        await worker.until_first_token("constrained")


def no_trial(*_: object) -> None:
    raise AssertionError("it was tried here")


@pytest.fixture
def beside_decode(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker that tries nothing itself, with a decode worker that does."""
    worker._service.fleet._state.observe(make_heartbeat("decode", "decode-0"))
    monkeypatch.setattr(worker._grammar_compiler._trials, "submit", no_trial)
    return worker


async def tell(worker: Worker, tried: GrammarTried, sender: str, epoch: int = 1) -> None:
    await worker.handle(Delivery(Envelope("r", epoch), tried, sender))


async def test_a_grammar_is_compiled_on_the_word_of_its_decode_worker_alone(beside_decode: Worker) -> None:
    worker, before = beside_decode, value("penstock_dropped_messages_total", reason="foreign_verdict")
    await worker.place(grammar=SLOW)
    await tell(worker, GrammarTried(0, "no"), "decode-9")
    await tell(worker, GrammarTried(0, "no"), "decode-0", epoch=2)
    assert worker._grammar_compiler._waiting[SLOW].future is None
    await tell(worker, GrammarTried(1000, ""), "decode-0")
    await worker.until_first_token()
    assert worker.lost() == []
    assert value("penstock_dropped_messages_total", reason="foreign_verdict") == before + 1


async def test_a_grammar_that_its_decode_worker_refuses_ends_its_request(beside_decode: Worker) -> None:
    await beside_decode.place(grammar=SLOW)
    await tell(beside_decode, GrammarTried(0, "the grammar (regex) is not liked"), "decode-0")
    assert await beside_decode.until_lost() == ["invalid_request"]


@pytest.mark.parametrize("sender", ["decode-0", ""])
async def test_a_word_on_a_grammar_may_come_before_its_prompt(beside_decode: Worker, sender: str) -> None:
    await tell(beside_decode, GrammarTried(0, "no"), "decode-9")
    await tell(beside_decode, GrammarTried(1000, ""), sender)
    await beside_decode.place(grammar=SLOW)
    await beside_decode.until_first_token()


async def test_words_on_grammars_of_nobody_are_forgotten(
    beside_decode: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = beside_decode._early_verdicts
    for epoch in range(1, prefill_actor.MAX_EARLY_VERDICTS + 3):
        await tell(beside_decode, GrammarTried(1000, ""), "decode-0", epoch)
    assert len(early) == prefill_actor.MAX_EARLY_VERDICTS
    early.forget(time.monotonic() + prefill_actor.EARLY_VERDICT_S)
    assert len(early) == 0


async def test_a_grammar_is_tried_here_where_nobody_says_anything_of_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "OTHERS_TRIAL_S", 0.0)
    worker._service.fleet._state.observe(make_heartbeat("decode", "decode-0"))
    await worker.place(grammar=SLOW)
    await worker.until_first_token()


async def test_a_bad_grammar_is_refused_before_anything_is_computed(worker: Worker) -> None:
    await worker.place(grammar=Grammar("regex", "(ab"))
    assert await worker.until_lost() == ["invalid_request"]
    assert (worker._driver.steps, list(worker.held())) == (0, [])


async def test_a_cancel_while_its_grammar_is_compiled_gives_everything_back(worker: Worker) -> None:
    with held_compiler(SLOW) as held:
        await worker.place(grammar=SLOW)
        await asyncio.to_thread(held.begun.wait)
        assert await worker.send(Cancel("cancelled")) == CancelAck(held=True, phase="queued")
        await worker.step()
        assert list(worker.held()) == []


async def test_a_deadline_passes_while_the_grammar_is_compiled(worker: Worker) -> None:
    clock = FakeClock()
    with held_compiler(SLOW):
        await worker.place(grammar=SLOW)
        clock.advance(1e9)
        worker._book.queue._clock = clock
        await worker.on_tick()
        assert worker.lost() == ["expired"]
        await worker.step()
        assert list(worker.held()) == []


# ---- room ----


async def test_a_grammar_is_tried_no_longer_than_its_request_has_time(worker: Worker) -> None:
    """The trial would go on by itself for a second of CPU time."""
    await worker.place(grammar=PATTERNS_TOGETHER)
    trial = worker._grammar_compiler._waiting[PATTERNS_TOGETHER].trial
    clock = worker._book.queue._clock = FakeClock(time.monotonic())
    clock.advance(61.0)
    await worker.on_tick()
    assert worker.lost() == ["expired"]
    assert trial._stopped


async def test_a_first_token_that_its_grammar_is_too_complex_for_is_told_by_name(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_row, "MAX_MASKS_S", 0.0)
    await worker.place(grammar=SLOW)
    assert await worker.until_lost() == ["invalid_request"]
    await worker.step()
    assert worker._driver.engine.held() == {}


async def test_a_prompt_that_comes_while_another_waits_for_its_mask_is_computed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "MASK_WAIT_S", 60.0)
    with held_masks(SLOW) as held:
        held.hold()
        await worker.place("slow", grammar=SLOW)

        async def waits() -> bool:
            await worker.turn()
            return worker._driver.engine.awaits_masks

        await until(waits)
        await worker.place("quick")

        async def drawn() -> list[Message]:
            await worker.turn()
            return worker.sent.to("penstock.detokenizer.detokenizer-0")

        await until(drawn)
        assert [one.request_ids for one in await drawn() if isinstance(one, Tokens)] == [("quick",)]
        assert worker._driver.engine.waiting_for_masks == {"slow/1"}
    await worker.until_first_token("slow")


async def test_a_prompt_that_found_no_room_is_not_overtaken_for_ever(llm_dir: Path) -> None:
    """Smaller ones of an earlier deadline keep coming, and each finds room beside those on their way out."""
    worker = Worker(llm_dir, kv_blocks=6)
    await worker.on_start()
    clock = worker._book.queue._clock = FakeClock(time.monotonic())
    try:
        await worker.place("first", prompt=range(1, 2 * CHUNK))
        await worker.until_first_token("first")
        await worker.place("big")  # 5 blocks of 6, of which 2 are taken
        for number in range(6):
            await worker.place(f"small-{number}", prompt=range(1, CHUNK), seconds=30.0)
            await worker.step()
            await worker.step()
            clock.advance(PATIENCE_S / 2)
        started = {job.request_id for job in worker._book.jobs.values() if job.phase is not JobPhase.QUEUED}
        assert "small-0" in started
        assert "small-5" not in started
        for request_id in sorted(started):
            await worker.send(Cancel("cancelled"), request_id)
        await worker.until_first_token("big")
    finally:
        await worker.on_stop()


# ---- the way to the first token ----


async def test_a_prompt_is_in_the_engine_and_computed_by_one_call_of_its_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, calls = worker._driver._thread, list[object]()
    start = thread.start
    monkeypatch.setattr(thread, "start", lambda call: calls.append(call) or start(call))  # type: ignore[func-returns-value]
    await worker.place(prompt=range(1, CHUNK))
    await worker.step()
    assert len(calls) == 1
    await worker.turn()
    assert any(isinstance(sent, Tokens) for sent in worker.sent.to("penstock.detokenizer.detokenizer-0"))


async def test_the_first_token_is_sent_before_kv_of_its_step_is_announced(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_tokens: list[int] = []

    def note(*_: object) -> None:
        sent_tokens.append(len(worker.sent.to("penstock.detokenizer.detokenizer-0")))

    monkeypatch.setattr(worker._sender, "layer_ready", note)
    worker._step_events._clock = FakeClock()  # the step takes no time
    await worker.place(prompt=range(1, CHUNK))
    await worker.until_first_token()
    assert sent_tokens == [1] * worker._driver.engine.layout.num_layers


async def test_a_cancel_while_the_engine_takes_the_prompt_in_gives_everything_back(worker: Worker) -> None:
    await worker.place()
    await worker.turn()
    worker._step_events.deliver = lambda: None  # type: ignore[method-assign]  # the loop has not heard of it yet
    assert await worker.send(Cancel("cancelled")) == CancelAck(held=True, phase="queued")
    del worker._step_events.deliver

    async def idle() -> bool:
        await worker.step()
        return not list(worker.held())

    await until(idle)
    assert worker.sent.to("penstock.detokenizer.detokenizer-0") == []


async def test_a_prompt_that_the_engine_refuses_is_lost_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidRequest("not this one")

    monkeypatch.setattr(worker._driver.engine, "admit", refuse)
    await worker.place()
    assert await worker.until_lost() == ["invalid_request"]
    await worker.step()
    assert (worker.lost(), list(worker.held())) == (["invalid_request"], [])


@pytest.mark.skipif(library() is None, reason="the kernels were not built, or this CPU cannot run them")
async def test_who_shares_the_cores_knows_how_many_prompts_have_no_first_token(
    worker: Worker, tmp_path: Path
) -> None:
    other = CoreArbiter(WorkClass.DECODE, tmp_path)
    slot = CoreArbiter(WorkClass.PREFILL, tmp_path)
    worker._driver.engine.share_cores(slot)
    slot.compute(now=True)
    for number, request_id in enumerate("abc"):
        await worker.place(request_id)
        assert other.prompts.requests == number + 1
    await worker.until_first_token("a")
    await worker.turn()
    slot.compute(now=True)
    assert other.prompts.requests == 3 - sum(
        job.phase is JobPhase.TRANSFERRING for job in worker._book.jobs.values()
    )
    other.close()
