"""The decode worker turn by turn, with a real engine; the test is the bus, and decides when KV is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from services.decode.actor import DecodeActor
from services.decode.ahead.draft_offers import DraftUse
from services.decode.config import DecodeConfig
from services.decode.driver import StepReport
from services.decode.pace import DecodePace
from shared.blocks.room import blocks_ahead
from shared.deadline import Deadline
from shared.engine import NO_STEP, Engine
from shared.engine.sampling import grammar_row
from shared.fairness.share import TenantShare
from shared.messages import (
    Cancel,
    CancelAck,
    DraftClose,
    DraftCommit,
    Failure,
    GrammarTried,
    HoldReport,
    LivenessCheck,
    Lost,
    Message,
    ModelLevel,
    Reserve,
    Tokens,
    pack_ids,
)
from shared.process.service import Service
from shared.sampling.parameters import Grammar
from shared.worker.job import JobPhase
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.clock import FakeClock
from tests.support.engine import make_engine
from tests.support.heartbeats import make_heartbeat
from tests.support.held_masks import held_masks
from tests.support.known_cost import take_rows_for_cheap
from tests.support.metric import value
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.played_receiver import PlayedReceiver
from tests.support.played_sender import PlayedSender
from tests.support.sampling import sampling
from tests.support.slow_grammar import PATTERNS_TOGETHER, held_compiler
from tests.support.wait import until

PROMPT = (1, 2, 3, 4)
SLOW = Grammar("regex", "[ -~]+")
SPECULATOR = "penstock.speculator.speculator-0"
LOOPING_TOKENS = 60


class Worker(DecodeActor):
    """Its mailbox and its turns are in the hands of the test."""

    def __init__(
        self,
        llm_dir: Path,
        *,
        kv_blocks: int = 64,
        max_batch_tokens: int = 512,
        prefix_cache: bool = True,
        places: tuple[int, int] = (16, 0),
        hand_overs: int = 4,
    ) -> None:
        """`places`: ordinary ones, and those for guests."""
        service = Service("decode", DecodeConfig(hand_overs=hand_overs), "decode-0")
        self.sent = service.bus = NotedBus()
        service.fleet._state.observe(make_heartbeat("prefill", "prefill-0"))

        def load() -> Engine:
            return make_engine(
                llm_dir,
                kv_blocks=kv_blocks,
                max_batch_tokens=max_batch_tokens,
                prefix_cache=prefix_cache,
                max_sequences=places[0],
                guest_sequences=places[1],
            )

        super().__init__(service, load, PlayedReceiver.make, PlayedSender.make, PrefixMirror())

    @property
    def played(self) -> PlayedReceiver:
        return cast(PlayedReceiver, self._arrivals.receiver)

    async def send(self, message: Message, request_id: str = "r", epoch: int = 1) -> None:
        await self.handle(self.sent.asked(message, request_id, epoch))

    async def reserve(
        self,
        request_id: str = "r",
        epoch: int = 1,
        speculator: str = "",
        grammar: Grammar | None = None,
        inter_token_us: int = 0,
        max_tokens: int = 40,
        allowed_ids: tuple[int, ...] = (),
        tenant: str = "",
    ) -> None:
        how = sampling(ignore_eos=True, max_tokens=max_tokens, grammar=grammar, allowed_ids=allowed_ids)
        reserve = Reserve(
            pack_ids(PROMPT),
            len(PROMPT),
            b"",
            how,
            "gateway-0",
            "detokenizer-0",
            "prefill-0",
            speculator,
            0,
            inter_token_us,
            share=TenantShare(tenant),
            guest=tenant != "heavy",
        )
        await self.send(reserve, request_id, epoch)

    async def decode(
        self,
        request_id: str = "r",
        epoch: int = 1,
        speculator: str = "",
        inter_token_us: int = 0,
        max_tokens: int = 40,
        allowed_ids: tuple[int, ...] = (),
        tenant: str = "",
    ) -> None:
        """Place it, and let it join the batch."""
        await self.reserve(
            request_id,
            epoch,
            speculator,
            inter_token_us=inter_token_us,
            max_tokens=max_tokens,
            allowed_ids=allowed_ids,
            tenant=tenant,
        )
        await self.step()
        self.played.complete((request_id, epoch), (5,), "", 0)
        await self.step()
        assert self._book.jobs[f"{request_id}/{epoch}"].phase is JobPhase.DECODING

    async def decode_looping(self) -> None:
        """A request whose text repeats itself, at an engine that takes a row for cheap."""
        engine = self._driver.engine
        take_rows_for_cheap(engine)
        engine.limit_ngrams(4)
        await self.decode(max_tokens=LOOPING_TOKENS + 1, allowed_ids=(6,))

    def hear_pressure(self, level: int, weights: str | None = None) -> None:
        """A gateway's level is this for the model that is served here, or for one with other `weights`."""
        own = self._service.heartbeat()
        told = ModelLevel(own.model, own.weights_digest if weights is None else weights, level)
        beat = make_heartbeat("gateway", "gateway-0", model_levels=(told,))
        self._service.fleet._state.observe(beat)

    async def step(self) -> None:
        """One turn and what it began, and another one if that was no step: places or blocks given back."""
        driver = self._driver
        await self._turn_and_run()
        while (
            driver.stepping
            and not self._outbox.crowded
            and not any(report.result for report in driver._reports)
        ):
            await self._turn_and_run()

    async def _turn_and_run(self) -> None:
        await self.turn()
        await until(lambda: self._driver._step is None or self._driver._step.done())

    def decoded(self, request_id: str = "r", epoch: int = 1) -> int:
        """Tokens that the detokenizer has got."""
        return sum(
            len(ids)
            for tokens in self.sent.to("penstock.detokenizer.detokenizer-0")
            if isinstance(tokens, Tokens)
            for key, ids in zip(
                zip(tokens.request_ids, tokens.epochs, strict=True), tokens.token_ids, strict=True
            )
            if key == (request_id, epoch)
        )

    def positions(self, request_id: str = "r") -> list[int]:
        """Of the tokens that the detokenizer has got."""
        return [
            position
            for tokens in self.sent.to("penstock.detokenizer.detokenizer-0")
            if isinstance(tokens, Tokens)
            for key, position in zip(tokens.request_ids, tokens.positions, strict=True)
            if key == request_id
        ]

    def lost(self) -> list[Lost]:
        """What the gateway was told."""
        return [one for one in self.sent.to("penstock.gateway.gateway-0") if isinstance(one, Lost)]

    def kinds_held(self) -> set[str]:
        return {held.kind for held in self.held()}


@pytest.fixture
async def worker(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    worker = Worker(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def test_a_late_cancel_of_an_epoch_leaves_the_next_one_alive(worker: Worker) -> None:
    await worker.decode(epoch=2)
    await worker.send(Cancel("replaced"), epoch=1)
    assert worker.sent.to(REPLY)[-1] == CancelAck(held=False, phase="")
    before = worker.decoded(epoch=2)
    await worker.step()
    assert worker.decoded(epoch=2) > before


async def test_a_later_epoch_stops_the_tokens_of_an_earlier_one(worker: Worker) -> None:
    await worker.decode(epoch=1)
    await worker.reserve(epoch=2)
    before = worker.decoded(epoch=1)
    for _ in range(3):
        await worker.step()
    assert worker.decoded(epoch=1) == before
    assert ("r", 2) in worker.played.expected
    assert sum(held.kind == "lease" for held in worker.held()) == 1


async def test_a_cancel_in_transfer_keeps_the_blocks_until_the_abort_is_acknowledged(worker: Worker) -> None:
    await worker.reserve()
    await worker.step()
    await worker.send(Cancel("cancelled"))
    assert worker.sent.to(REPLY)[-1] == CancelAck(held=True, phase="transferring")
    await worker.step()
    assert worker.played.aborted == [("r", 1)]
    assert worker.kinds_held() == {"lease", "kv_blocks"}
    worker.played.acknowledge_abort(("r", 1))
    await worker.step()
    assert worker.kinds_held() == set()


async def test_a_suspect_gateway_keeps_its_jobs_and_a_stopped_one_loses_them(worker: Worker) -> None:
    await worker.decode()
    await worker.on_instance_lost("gateway", "gateway-0", "suspect")
    before = worker.decoded()
    await worker.step()
    assert worker.decoded() > before
    await worker.on_instance_lost("gateway", "gateway-0", "stopped")
    await worker.step()
    assert list(worker.held()) == []


async def test_a_lost_speculator_has_no_draft_and_gets_no_commit_but_the_end(worker: Worker) -> None:
    """It may be alive: then it keeps nothing until its lease ends."""
    await worker.decode(speculator="speculator-0")
    await worker.step()
    assert "draft" in worker.kinds_held()
    assert any(isinstance(message, DraftCommit) for message in worker.sent.to(SPECULATOR))
    await worker.on_instance_lost("speculator", "speculator-0", "suspect")
    told, before = len(worker.sent.to(SPECULATOR)), worker.decoded()
    for _ in range(3):
        await worker.step()
    assert "draft" not in worker.kinds_held()
    assert worker.sent.to(SPECULATOR)[told:] == [DraftClose(("r",), (1,))]
    assert worker.decoded() > before


async def test_a_draft_that_came_too_late_counts_and_the_next_one_is_asked_to_reach_further(
    worker: Worker,
) -> None:
    await worker.decode(speculator="speculator-0")
    await worker.step()
    late = worker._drafting.book.counts.late
    worker._driver._reports.append(StepReport((), (), [DraftUse("r/1", 2, 3)], None, worker._driver.snapshot))
    await worker.take_steps()
    assert worker._drafting.book.counts.late == late + 3
    assert worker._drafting.book._sessions["r/1"].lag >= 2


# ---- drafts from a request's own text ----


async def test_what_was_looked_up_is_counted_as_that(worker: Worker) -> None:
    counted = [value(f"penstock_draft_{what}_total", source="lookup") for what in ("proposed", "accepted")]
    drafted = value("penstock_draft_proposed_total", source="speculator")
    await worker.decode_looping()
    while worker.decoded() < LOOPING_TOKENS:
        await worker.step()
    proposed, accepted = (
        value(f"penstock_draft_{what}_total", source="lookup") - before
        for what, before in zip(("proposed", "accepted"), counted, strict=True)
    )
    assert proposed >= accepted > 0
    assert value("penstock_draft_proposed_total", source="speculator") == drafted


async def test_under_pressure_half_as_much_is_looked_up_and_then_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    engine = worker._driver.engine
    monkeypatch.setattr(engine, "limit_ngrams", told.append)
    monkeypatch.setattr(engine, "config", replace(engine.config, ngram_tokens=8))
    await worker.decode()
    for level, weights in ((1, None), (1, None), (2, None), (7, None), (7, "another model's")):
        worker.hear_pressure(level, weights)
        await worker.on_tick()
        await worker.step()
    assert told == [4, 0, 0, 8]


# ---- grammars ----


async def test_a_batch_decodes_on_while_the_grammar_of_another_is_compiled(worker: Worker) -> None:
    with held_compiler(SLOW) as held:
        await worker.decode("beside")
        await worker.reserve("constrained", grammar=SLOW)
        await worker.step()
        worker.played.complete(("constrained", 1), (5,), "", 0)
        await asyncio.to_thread(held.begun.wait)
        before = worker.decoded("beside")
        for _ in range(3):
            await worker.step()
        assert worker.decoded("beside") >= before + 2
        assert worker.decoded("constrained") == 0
        held.go_on.set()

        async def joined() -> bool:
            await worker.step()
            return worker.decoded("constrained") > 0

        await until(joined)


async def test_how_a_grammar_was_tried_is_told_to_who_computes_its_prompt(worker: Worker) -> None:
    """Also for one that is compiled already, and for one that cannot be used."""
    bad = Grammar("regex", "(ab")
    for request_id, grammar in (("one", SLOW), ("two", SLOW), ("bad", bad), ("none", None)):
        await worker.reserve(request_id, grammar=grammar)

    async def told() -> bool:
        await worker.step()
        return len(worker.sent.to("penstock.prefill.prefill-0")) == 3

    await until(told)
    said = [
        (sent.envelope.request_id, sent.message)
        for sent in worker.sent.noted.sent
        if isinstance(sent.message, GrammarTried)
    ]
    tried = dict(said)
    assert len(said) == len(tried) == 3
    assert tried["one"] == tried["two"]
    assert (tried["one"].refusal, tried["one"].took_us > 0) == ("", True)
    assert "(ab" in tried["bad"].refusal or "regex" in tried["bad"].refusal


async def test_a_cancel_while_its_grammar_is_compiled_gives_everything_back(worker: Worker) -> None:
    with held_compiler(SLOW) as held:
        await worker.reserve(grammar=SLOW)
        await worker.step()
        worker.played.complete(("r", 1), (5,), "", 0)
        await asyncio.to_thread(held.begun.wait)
        await worker.send(Cancel("cancelled"))
        assert worker.sent.to(REPLY)[-1] == CancelAck(held=True, phase="ready")
        await worker.step()
        assert worker.kinds_held() == set()


async def test_a_bad_grammar_ends_the_transfer_and_is_told_to_the_gateway(worker: Worker) -> None:
    await worker.reserve(grammar=Grammar("regex", "(ab"))

    async def told() -> bool:
        await worker.step()
        return any(one.code == "invalid_request" for one in worker.lost()) or any(
            isinstance(one, Failure) and one.code == "invalid_request" for one in worker.sent.to(REPLY)
        )

    await until(told)
    for key in worker.played.aborted:
        worker.played.acknowledge_abort(key)
    await worker.step()
    assert worker.kinds_held() == set()


async def test_a_grammar_is_tried_no_longer_than_its_request_has_time_or_is_wanted(worker: Worker) -> None:
    """The trial would go on by itself for a second of CPU time."""
    await worker.reserve(grammar=PATTERNS_TOGETHER)
    await worker.step()
    trial = worker._grammar_compiler._waiting[PATTERNS_TOGETHER].trial
    worker._book.jobs["r/1"].deadline = Deadline(0.0)
    await worker.step()
    assert [one.code for one in worker.lost()] == ["expired"]
    assert trial._stopped
    await worker.reserve("cancelled", grammar=PATTERNS_TOGETHER)
    trial = worker._grammar_compiler._waiting[PATTERNS_TOGETHER].trial
    await worker.send(Cancel("cancelled"), "cancelled")
    assert trial._stopped


# ---- masks ----


async def test_a_grammar_that_becomes_too_complex_is_told_by_name_and_gives_everything_back(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_row, "MAX_MASKS_S", 0.0)
    await worker.decode("beside", max_tokens=240)
    await worker.reserve(grammar=SLOW)
    await worker.step()
    worker.played.complete(("r", 1), (40,), "", 0)

    async def told() -> bool:
        await worker.step()
        return bool(worker.lost())

    await until(told)
    assert [one.code for one in worker.lost()] == ["invalid_request"]
    assert "the grammar (regex) is too complex" in worker.lost()[0].message
    assert list(worker._book.jobs) == ["beside/1"]
    decoded = worker.decoded("beside")
    await worker.step()
    assert worker.decoded("beside") > decoded
    assert list(worker._driver.engine.held()) == ["beside/1"]


async def test_a_job_that_waits_for_its_mask_is_counted_and_its_neighbour_goes_on(worker: Worker) -> None:
    before = value("penstock_mask_waits_total")
    await worker.decode("beside", max_tokens=240)
    with held_masks(SLOW) as held:
        held.hold()
        await worker.reserve(grammar=SLOW)
        await worker.step()
        worker.played.complete(("r", 1), (40,), "", 0)

        async def waits() -> bool:
            await worker.step()
            return bool(worker._driver.engine.waiting_for_masks)

        await until(waits)
        decoded = worker.decoded("beside")
        await worker.step()
        await worker.step()
        assert worker.decoded("beside") > decoded
        assert (worker.decoded("r"), value("penstock_mask_waits_total")) == (0, before + 1)
        await worker.send(Cancel("cancelled"))
        await worker.step()
        assert list(worker._driver.engine.held()) == ["beside/1"]


def test_a_step_in_which_all_wait_for_masks_says_nothing_of_the_time_that_steps_take() -> None:
    pace = DecodePace(512)
    pace.observe_step(replace(NO_STEP, batch_tokens=4, num_decode=4, step_us=20_000))
    for _ in range(20):
        pace.observe_step(NO_STEP)
    assert (pace.plain_step_us, pace.step_s) == (20_000, 0.02)


def test_where_streams_rest_in_turn_the_time_from_token_to_token_is_longer_than_a_step() -> None:
    pace = DecodePace(512)
    pace.observe_step(replace(NO_STEP, batch_tokens=4, num_decode=4, num_resting=2, step_us=20_000))
    assert (pace.plain_step_us, pace.step_s) == (20_000, 0.03)


@pytest.fixture
async def crowded(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """Two streams of a tenant have both places; there are as many for guests."""
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    worker = Worker(llm_dir, places=(2, 2))
    await worker.on_start()
    for name in ("heavy-0", "heavy-1"):
        await worker.decode(name, tenant="heavy", max_tokens=240)
    yield worker
    await worker.on_stop()


async def test_a_guest_has_a_row_in_every_step_and_the_others_rest_for_it_in_turn(crowded: Worker) -> None:
    await crowded.decode("light", tenant="light", max_tokens=240)
    names, rests = ("light", "heavy-0", "heavy-1"), value("penstock_rests_total")
    before = {name: crowded.decoded(name) for name in names}
    for _ in range(10):
        await crowded.step()
    drawn = [crowded.decoded(name) - before[name] for name in names]
    assert value("penstock_rests_total") - rests == drawn[0] == drawn[1] + drawn[2]
    assert abs(drawn[1] - drawn[2]) <= 1


async def test_a_guest_is_let_in_up_to_the_limit_that_gateways_hear_of(crowded: Worker) -> None:
    assert (crowded.status().capacity, crowded.status().decode.guests) == (2, 2)
    for tenant in ("heavy", "light", "third", "fourth"):
        await crowded.reserve(tenant, tenant=tenant)
        await crowded.step()
    assert ("light", 1) in crowded.played.expected
    assert ("third", 1) in crowded.played.expected
    assert [each.jobs for each in crowded.status().decode.tenants] == [2, 1, 1]
    refusals = [one for one in crowded.sent.to(REPLY) if isinstance(one, Failure)]
    assert ["all 2 sequences are taken" in one.message for one in refusals] == [True, True]


# ---- the deadline from token to token ----

SECOND_US = 1_000_000


async def test_a_job_whose_next_token_does_not_come_in_time_expires(worker: Worker) -> None:
    await worker.decode(inter_token_us=SECOND_US)
    clock = worker._book._clock = FakeClock(time.monotonic())
    await worker.step()
    assert worker.lost() == []
    clock.advance(60.0)
    await worker.step()
    (lost,) = worker.lost()
    assert (lost.code, lost.hop) == ("expired", "decode")
    assert "inter-token deadline while decode was decoding" in lost.message
    await worker.step()
    assert worker.kinds_held() == set()


async def test_a_job_without_that_deadline_waits(worker: Worker) -> None:
    await worker.decode()
    clock = worker._book._clock = FakeClock(time.monotonic())
    clock.advance(3600.0)
    await worker.step()
    assert worker.lost() == []


async def test_a_transfer_that_takes_longer_than_the_next_token_may_expires(worker: Worker) -> None:
    await worker.reserve(inter_token_us=SECOND_US)
    await worker.step()
    clock = worker._book._clock = FakeClock(time.monotonic())
    clock.advance(60.0)
    await worker.on_tick()
    await worker.step()
    assert worker.lost() == []  # its first token has not been drawn, as far as is known here
    worker.played.drawn_s = clock.monotonic_s() - 1.0
    await worker.on_tick()
    await worker.step()
    (lost,) = worker.lost()
    assert "inter-token deadline while decode was transferring" in lost.message


async def test_steps_that_take_too_long_for_a_job_refuse_it_while_they_last(worker: Worker) -> None:
    await worker.decode("beside")
    await worker.step()
    assert worker._pace.step_s > 0
    worker._pace._step_time.observe(1000 * SECOND_US)
    await worker.reserve("fast", inter_token_us=SECOND_US)
    (refusal,) = [one for one in worker.sent.to(REPLY) if isinstance(one, Failure)]
    assert (refusal.code, refusal.hop) == ("overloaded", "decode")
    assert refusal.retry_after_ms > 0
    await worker.reserve("any")
    await worker.send(Cancel("cancelled"), "beside")
    await worker.send(Cancel("cancelled"), "any")
    for _ in range(3):
        await worker.step()
    await worker.reserve("fast", inter_token_us=SECOND_US)
    await worker.step()
    assert ("fast", 1) in worker.played.expected


# ---- who asks whether it is held ----


async def test_the_free_blocks_that_are_told_shrink_as_a_job_grows(worker: Worker) -> None:
    await worker.decode(max_tokens=200)
    while worker.decoded() < 40:
        await worker.step()
    tokens = len(PROMPT) + 1 + worker.decoded()
    left = len(PROMPT) + 200 - tokens
    assert worker.worker_load().kv_blocks_free == 64 - blocks_ahead(tokens, left)


async def test_jobs_that_outgrow_the_pool_together_all_come_to_their_end(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    worker = Worker(llm_dir, kv_blocks=20)
    await worker.on_start()
    before = value("penstock_preemptions_total")
    await worker.decode("a", max_tokens=240)
    await worker.decode("b", max_tokens=240)
    while worker._book.jobs:
        await worker.step()
    assert (worker.decoded("a"), worker.decoded("b")) == (239, 239)  # and the one that prefill drew
    assert value("penstock_preemptions_total") > before
    await worker.step()
    assert worker.worker_load().kv_blocks_free == worker._driver.snapshot.free_blocks == 20
    await worker.on_stop()


async def test_decode_says_whether_it_holds_a_request_at_an_epoch(worker: Worker) -> None:
    await worker.reserve()
    await worker.step()

    async def holds(epoch: int) -> Message:
        await worker.send(LivenessCheck(), epoch=epoch)
        return worker.sent.to(REPLY)[-1]

    assert await holds(1) == HoldReport(held=True)
    assert await holds(2) == HoldReport(held=False)
    worker.played.complete(("r", 1), (5,), "length", 0)  # the first token was the last
    assert await holds(1) == HoldReport(held=False)


# ---- a bus that takes nothing ----


async def test_decoding_goes_on_while_the_bus_has_no_room_and_what_it_brought_follows(worker: Worker) -> None:
    await worker.decode()
    await worker.step()
    worker.sent.noted.has_room = False
    before, steps = worker.decoded(), worker._driver.steps
    for _ in range(3):
        await worker.step()
    assert (worker.decoded(), worker._driver.steps) == (before, steps + 3)
    worker.sent.noted.has_room = True
    await worker.step()
    assert worker.decoded() == before + 4


async def test_decoding_pauses_where_too_much_waits_for_the_bus_and_loses_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.worker.outbox.OUTBOX_LIMIT", 4)
    await worker.decode("r")
    await worker.decode("other")
    worker.sent.noted.has_room = False
    for _ in range(3):
        await worker.step()
    steps = worker._driver.steps
    await worker.step()
    assert worker._driver.steps == steps
    await worker.send(Cancel("cancelled"), "other")
    worker.sent.noted.has_room = True
    await until(lambda: worker.sent.to(REPLY)[-1] == CancelAck(held=True, phase="decoding"))
    await worker.step()
    await worker.step()
    assert worker._driver.steps > steps
    told = worker.positions()
    assert told == list(range(len(PROMPT) + 1, len(PROMPT) + 1 + len(told)))


async def test_a_worker_whose_actor_has_ended_takes_nothing_new(llm_dir: Path) -> None:
    worker = Worker(llm_dir)
    worker._ended = True
    assert worker.status().state == "draining"
