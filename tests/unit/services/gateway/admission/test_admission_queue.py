"""Who gets the next slot at decode, and how long the others are expected to wait."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from operator import eq

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.admission.admission_queue import WAIT_DOUBT, AdmissionQueue
from services.gateway.admission.agent_sessions import MAX_WAITED_S
from services.gateway.admission.length_sketch import LengthEstimate, LengthSketch
from services.gateway.admission.running_answers import RunningAnswer
from services.gateway.admission.ticket import AGING_S, CLASSES, STARTED_CLASS, Ticket
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.tenant_jobs import TenantStanding
from shared.deadline import Deadline
from shared.errors import Overloaded
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.messages import AdapterId
from shared.tasks import Tasks
from tests.support.clock import FakeClock
from tests.support.wait import until

LOW, NORMAL, HIGH = (CLASSES[p] for p in (pb.PRIORITY_LOW, pb.PRIORITY_NORMAL, pb.PRIORITY_HIGH))


MODEL = ModelIdentity("m")


class House:
    """Seats that a test frees, and what got one, in order."""

    def __init__(self) -> None:
        self.slots: int | None = 0
        self.clock = FakeClock()
        self.tasks = Tasks()
        self.compared = 0
        self.queue = AdmissionQueue(
            lambda _model, _blocks: self.slots,
            self.contends,
            self.tasks.start,
            self.clock,
        )
        self.admitted: list[str] = []

    def contends(self, ahead: ModelIdentity, behind: ModelIdentity) -> bool:
        self.compared += 1
        return ahead.base == behind.base

    def ticket(
        self,
        priority_class: int = NORMAL,
        deadline_s: float = 60.0,
        model: str = MODEL.name,
        blocks: int = 1,
        share: TenantShare = OPEN_SHARE,
        tokens: int = 100,
        waited_s: float = 0.0,
    ) -> Ticket:
        """`deadline_s` from now."""
        now_s = self.clock.monotonic_s()
        return Ticket(
            ModelIdentity(model),
            priority_class,
            Deadline(now_s + deadline_s),
            blocks=blocks,
            arrived_s=now_s,
            meter=self.queue.meter(share),
            tokens=tokens,
            waited_s=waited_s,
        )

    def come(self, name: str, ticket: Ticket) -> None:
        async def sit() -> None:
            async with self.queue.turn(ticket):
                self.admitted.append(name)
                if self.slots:
                    self.slots -= 1

        self.tasks.start(name, sit())

    async def free(self, slots: int) -> None:
        """So many slots are free now; returns when they are taken."""
        wanted = len(self.admitted) + slots
        self.slots = slots
        await until(lambda: len(self.admitted) == wanted)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.tasks.finish(0.0)


async def waiting(house: House, count: int) -> None:
    await until(lambda: len(house.queue) == count)


async def test_who_comes_while_there_is_a_slot_has_it_at_once(house: House) -> None:
    house.slots = 1
    async with house.queue.turn(house.ticket()):
        assert len(house.queue) == 0


async def test_a_newcomer_is_compared_with_the_models_of_those_that_are_placed_and_not_with_each(
    house: House,
) -> None:
    """Each comparison may look at every worker of the fleet."""
    house.slots = 40
    async with AsyncExitStack() as placed:
        for _ in range(20):
            await placed.enter_async_context(house.queue.turn(house.ticket()))
        house.compared = 0
        async with house.queue.turn(house.ticket()):
            assert house.compared == 1


async def test_what_other_calls_of_its_job_have_waited_counts_for_a_call_as_if_it_had(house: House) -> None:
    house.come("low", house.ticket(LOW))
    house.come("normal", house.ticket(NORMAL, deadline_s=50.0))
    house.come("third call of a job", house.ticket(NORMAL, deadline_s=60.0, waited_s=AGING_S - 0.1))
    house.come("low, of a job that waits", house.ticket(LOW, deadline_s=60.0, waited_s=2 * AGING_S))
    await waiting(house, 4)
    await house.free(4)
    assert house.admitted == ["low, of a job that waits", "normal", "third call of a job", "low"]


async def test_a_call_that_waits_is_overtaken_by_no_job_for_ever(house: House) -> None:
    house.come("waits", house.ticket(deadline_s=10.0))
    await waiting(house, 1)
    house.clock.advance(AGING_S)
    house.come("of a job", house.ticket(deadline_s=10.0 + MAX_WAITED_S, waited_s=MAX_WAITED_S))
    await waiting(house, 2)
    await house.free(2)
    assert house.admitted == ["waits", "of a job"]


async def test_where_nobody_can_tell_the_slots_nobody_waits(house: House) -> None:
    house.slots = None
    async with house.queue.turn(house.ticket()):
        assert len(house.queue) == 0


async def test_a_turn_that_is_being_used_is_a_slot_that_is_taken(house: House) -> None:
    house.slots = 1
    async with house.queue.turn(house.ticket()):
        house.come("second", house.ticket())
        await waiting(house, 1)
    await until(lambda: house.admitted == ["second"])


async def test_seats_go_by_class_then_deadline_then_arrival(house: House) -> None:
    house.come("low", house.ticket(LOW, 1.0))
    house.come("normal, late", house.ticket(NORMAL, 60.0))
    house.come("normal, soon", house.ticket(NORMAL, 10.0))
    house.come("normal, late too", house.ticket(NORMAL, 60.0))
    house.come("high", house.ticket(HIGH, 60.0))
    house.come("started", house.ticket(STARTED_CLASS, 99.0))
    await waiting(house, 6)
    for _ in range(6):
        await house.free(1)
    assert house.admitted == ["started", "high", "normal, soon", "normal, late", "normal, late too", "low"]


async def test_the_shortest_of_a_class_has_the_turn_for_as_many_tokens_as_the_most_urgent(
    house: House,
) -> None:
    house.come("urgent", house.ticket(deadline_s=10.0, tokens=60))
    for number in range(4):
        house.come(f"short {number}", house.ticket(deadline_s=30.0 + number, tokens=20))
    house.come("high", house.ticket(HIGH, tokens=500))
    await waiting(house, 6)
    for _ in range(6):
        await house.free(1)
    assert house.admitted == ["high", "short 0", "urgent", "short 1", "short 2", "short 3"]


async def test_nothing_is_remembered_of_the_line_of_a_tenant_that_waits_no_more(house: House) -> None:
    house.come("one", house.ticket(share=TenantShare("one")))
    await waiting(house, 1)
    house.queue.remaining_wait_s(house.ticket(share=TenantShare("other")))
    await house.free(1)
    assert house.queue._lines._turns == {}


async def test_a_newcomer_does_not_overtake_by_coming_when_a_slot_is_free(house: House) -> None:
    house.come("first", house.ticket())
    await waiting(house, 1)
    house.slots = 1
    house.come("second", house.ticket())
    await until(lambda: house.admitted == ["first"])
    await waiting(house, 1)


async def test_who_waits_long_rises_but_never_above_what_has_started(house: House) -> None:
    house.come("low", house.ticket(LOW, 99.0))
    await waiting(house, 1)
    house.clock.advance(2 * AGING_S)
    house.come("high", house.ticket(HIGH, 100.0))
    house.come("started", house.ticket(STARTED_CLASS, 200.0))
    await waiting(house, 3)
    for _ in range(3):
        await house.free(1)
    assert house.admitted == ["started", "low", "high"]


async def test_another_model_does_not_wait_behind_a_full_one(house: House) -> None:
    queue = AdmissionQueue(lambda model, _: 0 if model.name == "full" else 1, eq, house.tasks.start)
    turns = asyncio.ensure_future(anext(queue.turn(house.ticket(model="full")).gen))
    await until(lambda: len(queue) == 1)
    async with queue.turn(house.ticket(model="other")):
        assert len(queue) == 1
    turns.cancel()
    await asyncio.gather(turns, return_exceptions=True)
    assert len(queue) == 0


async def test_who_contends_for_the_same_slots_has_no_turn_before_those_ahead(house: House) -> None:
    house.come("model", house.ticket())
    await waiting(house, 1)
    ticket = dataclasses.replace(
        house.ticket(), model=dataclasses.replace(MODEL, adapter=AdapterId("a", "d"))
    )
    assert house.queue.remaining_wait_s(ticket) == house.queue.seconds_per_end()
    house.come("adapter", ticket)
    await waiting(house, 2)
    await house.free(1)
    assert house.admitted == ["model"]
    await house.free(1)
    assert house.admitted == ["model", "adapter"]


async def test_who_gives_up_leaves_the_queue_and_holds_no_slot(house: House) -> None:
    async def sit() -> None:
        async with house.queue.turn(house.ticket()):
            raise AssertionError("it has given up")

    gone = asyncio.create_task(sit())
    await waiting(house, 1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert len(house.queue) == 0
    house.come("next", house.ticket())
    await house.free(1)
    assert house.admitted == ["next"]


async def test_the_expected_wait_is_that_of_the_queue_that_is_there(house: House) -> None:
    house.come("low", house.ticket(LOW))
    await waiting(house, 1)
    assert house.queue.expected_wait_s(MODEL, NORMAL) == 0.0  # nothing has ended yet: nobody can tell
    for _ in range(4):
        house.clock.advance(1.5)
        house.queue.record_end()
    assert house.queue.seconds_per_end() == pytest.approx(1.5)
    house.come("normal", house.ticket(NORMAL))
    await waiting(house, 2)
    assert house.queue.expected_wait_s(MODEL, HIGH) == pytest.approx(1.5)
    assert house.queue.expected_wait_s(MODEL, NORMAL) == pytest.approx(3.0)
    assert house.queue.expected_wait_s(MODEL, LOW) == pytest.approx(4.5)
    assert house.queue.expected_wait_s(ModelIdentity("other"), LOW) == pytest.approx(1.5)


async def test_a_fleet_that_stopped_is_not_as_fast_as_it_was(house: House) -> None:
    house.come("first", house.ticket())
    await waiting(house, 1)
    for _ in range(3):
        house.clock.advance(1.0)
        house.queue.record_end()
    house.clock.advance(9.0)
    assert house.queue.seconds_per_end() == pytest.approx(3.0)


async def test_an_hour_in_which_nobody_waited_does_not_make_the_next_one_wait_long(house: House) -> None:
    house.come("first", house.ticket())
    await waiting(house, 1)
    house.clock.advance(1.0)
    house.queue.record_end()
    await house.free(1)
    for _ in range(3):
        house.clock.advance(1200.0)
        house.queue.record_end()
    house.slots = 0
    assert house.queue.expected_wait_s(MODEL, NORMAL) == pytest.approx(1.0)


async def test_nobody_is_expected_to_wait_while_there_are_slots(house: House) -> None:
    house.come("first", house.ticket())
    await waiting(house, 1)
    for _ in range(4):
        house.clock.advance(2.0)
        house.queue.record_end()
    await house.free(1)
    house.slots = 2
    assert house.queue.expected_wait_s(MODEL, NORMAL) == 0.0


SECONDS_PER_END = 2.0


async def busy(house: House) -> None:
    """The house is full, one waits for ever, and slots come free every SECONDS_PER_END."""
    house.come("patient", house.ticket(STARTED_CLASS, deadline_s=1e6))
    await waiting(house, 1)
    for _ in range(32):
        house.clock.advance(SECONDS_PER_END)
        house.queue.record_end()


async def sent_away(house: House, ticket: Ticket) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        async with house.queue.turn(ticket):
            pass
    return caught.value


async def test_who_is_overtaken_until_its_time_will_not_do_is_sent_away_with_a_hint(house: House) -> None:
    await busy(house)
    deadline_s = 2.5 * SECONDS_PER_END  # enough for a place behind the patient one
    low = asyncio.ensure_future(sent_away(house, house.ticket(LOW, deadline_s)))
    await waiting(house, 2)
    for number in range(2):
        house.come(f"high {number}", house.ticket(HIGH, deadline_s=1e6))
    error = await low
    assert error.reason == "wait"
    assert error.retry_after_ms == round((4 * SECONDS_PER_END - deadline_s) * 1000)
    assert len(house.queue) == 3


@pytest.mark.parametrize(("slack_s", "stays"), [(0.01, True), (-0.01, False)])
async def test_who_waits_is_given_the_benefit_of_the_doubt_and_no_more(
    house: House, slack_s: float, stays: bool
) -> None:
    await busy(house)
    late_s = 2 * SECONDS_PER_END / WAIT_DOUBT
    house.come("late", house.ticket(NORMAL, late_s + slack_s))
    for _ in range(2):  # the first time it has come, the second time the queue has been looked through
        await sent_away(house, house.ticket(LOW, deadline_s=0.01))
    assert len(house.queue) == (2 if stays else 1)


async def test_a_request_that_its_client_has_tokens_of_is_not_sent_away(house: House) -> None:
    await busy(house)
    house.come("started", house.ticket(STARTED_CLASS, deadline_s=0.1))
    await waiting(house, 2)
    await house.free(2)
    assert house.admitted == ["started", "patient"]


HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


async def test_a_tenant_with_one_request_does_not_stand_behind_all_of_another(house: House) -> None:
    for number in range(20):
        house.come(f"heavy {number}", house.ticket(HIGH, share=HEAVY))
    await waiting(house, 20)
    await house.free(2)
    house.come("light", house.ticket(LOW, deadline_s=900.0, share=LIGHT))
    await waiting(house, 19)
    await house.free(1)
    assert house.admitted == ["heavy 0", "heavy 1", "light"]


async def test_a_tenants_class_and_deadline_order_only_its_own_requests(house: House) -> None:
    house.come("a low", house.ticket(LOW, share=HEAVY))
    house.come("a high", house.ticket(HIGH, share=HEAVY))
    house.come("b late", house.ticket(NORMAL, 90.0, share=LIGHT))
    house.come("b soon", house.ticket(NORMAL, 10.0, share=LIGHT))
    house.come("b started", house.ticket(STARTED_CLASS, 99.0, share=LIGHT))
    await waiting(house, 5)
    for _ in range(5):
        await house.free(1)
    assert house.admitted[0] == "b started"
    assert [name for name in house.admitted if name.startswith("a")] == ["a high", "a low"]
    assert [name for name in house.admitted[1:] if name.startswith("b")] == ["b soon", "b late"]
    assert {name[0] for name in house.admitted[1:3]} == {"a", "b"}


async def test_the_wait_that_a_tenant_is_told_is_not_that_of_anothers_line(house: House) -> None:
    await busy(house)
    for number in range(20):
        house.come(f"heavy {number}", house.ticket(share=HEAVY, deadline_s=1e6))
    await waiting(house, 21)
    heavy_s = house.queue.expected_wait_s(MODEL, NORMAL, HEAVY)
    assert heavy_s == pytest.approx(22 * SECONDS_PER_END)
    light_s = house.queue.expected_wait_s(MODEL, NORMAL, LIGHT)
    assert light_s == pytest.approx(3 * SECONDS_PER_END)  # the patient one's, a heavy one's, its own
    assert house.queue.expected_wait_s(MODEL, NORMAL) == heavy_s  # whoever goes behind all
    third = house.queue.expected_wait_s(MODEL, NORMAL, TenantShare("third", weight=2))
    assert third == pytest.approx(light_s)


async def test_who_is_cancelled_as_slots_are_counted_does_not_end_the_turns_of_others(house: House) -> None:
    leaving: list[asyncio.Task[None]] = []

    def count(_model: ModelIdentity, _blocks: int) -> int:
        if leaving:
            leaving.pop().cancel()
        return house.slots or 0

    queue = AdmissionQueue(count, eq, house.tasks.start, house.clock)
    came: list[str] = []

    async def sit(name: str) -> None:
        async with queue.turn(dataclasses.replace(house.ticket(), meter=queue.meter())):
            came.append(name)

    first, second, third = (asyncio.create_task(sit(name)) for name in ("first", "second", "third"))
    await until(lambda: len(queue) == 3)
    leaving.append(second)  # at the look at the first one's slot: the second's turn is next
    house.slots = 3
    await asyncio.gather(first, third)
    await asyncio.gather(second, return_exceptions=True)
    assert came == ["first", "third"]


class GuestHouse(House):
    """All 8 slots are the heavy tenant's, and `room` more are there for guests."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = 0
        self.room = 2
        self.queue = AdmissionQueue(
            lambda _model, _blocks: self.slots,
            eq,
            self.tasks.start,
            self.clock,
            guest_room=lambda _model, blocks: self.room // blocks,
            standing=lambda _model, share: (
                TenantStanding(0, 0.0) if share == HEAVY else TenantStanding(0, 8.0)
            ),
        )

    def come(self, name: str, ticket: Ticket) -> None:
        async def sit() -> None:
            async with self.queue.turn(ticket) as turn:
                assert turn.guest
                self.admitted.append(f"{name} waited" if turn.waited else name)
                self.room -= ticket.blocks

        self.tasks.start(name, sit())


@pytest.fixture
async def guests() -> AsyncIterator[GuestHouse]:
    house = GuestHouse()
    yield house
    await house.tasks.finish(0.0)


async def test_who_has_less_than_another_is_a_guest_at_once_whoever_waits(guests: GuestHouse) -> None:
    guests.come("heavy", guests.ticket(share=HEAVY))
    await waiting(guests, 1)
    guests.come("light", guests.ticket(share=LIGHT))
    await until(lambda: guests.admitted == ["light"])
    assert len(guests.queue) == 1


async def test_nobody_waits_before_a_guest_where_the_line_is_empty(guests: GuestHouse) -> None:
    guests.come("light", guests.ticket(share=LIGHT))
    await until(lambda: guests.admitted == ["light"])


async def test_who_has_as_much_as_another_waits_however_many_guests_there_may_be(
    guests: GuestHouse,
) -> None:
    guests.room = 99
    guests.come("heavy", guests.ticket(share=HEAVY))
    for number in range(9):
        guests.come(str(number), guests.ticket(share=LIGHT))
    await until(lambda: len(guests.admitted) == 8)
    await waiting(guests, 2)
    guests.queue._pass_through(whole=True)
    assert len(guests.queue) == 2


@pytest.mark.parametrize("whole", [True, False])
async def test_a_guest_that_found_no_room_has_the_next_and_passes_those_that_are_none(
    guests: GuestHouse, whole: bool
) -> None:
    guests.room = 0
    for number in range(3):
        guests.come(f"heavy {number}", guests.ticket(share=HEAVY, deadline_s=1.0))
    await waiting(guests, 3)
    guests.come("light", guests.ticket(share=LIGHT))
    await waiting(guests, 4)
    guests.queue._counters.charge(LIGHT, 1e5)  # so that it is behind the others in turn
    guests.queue._pass_through(whole=whole)
    assert len(guests.queue) == 4
    guests.room = 1
    guests.queue._pass_through(whole=whole)
    await until(lambda: guests.admitted == ["light waited"])


async def test_a_large_guest_is_not_overtaken_by_small_ones_of_its_tenant(guests: GuestHouse) -> None:
    guests.come("large", guests.ticket(share=LIGHT, blocks=3, deadline_s=10.0))
    await waiting(guests, 1)
    guests.come("small", guests.ticket(share=LIGHT, blocks=1, deadline_s=20.0))
    await waiting(guests, 2)
    guests.queue._pass_through(whole=True)
    assert len(guests.queue) == 2
    guests.room = 4
    await until(lambda: guests.admitted == ["large waited", "small waited"])


async def test_a_tenant_that_may_be_a_guest_is_not_expected_to_wait(guests: GuestHouse) -> None:
    for number in range(3):
        guests.come(f"heavy {number}", guests.ticket(share=HEAVY))
    await waiting(guests, 3)
    guests.clock.advance(1.0)
    guests.queue.record_end()
    assert guests.queue.expected_wait_s(MODEL, NORMAL, LIGHT) == 0.0
    assert guests.queue.remaining_wait_s(guests.ticket(share=LIGHT)) == 0.0
    assert guests.queue.expected_wait_s(MODEL, NORMAL, HEAVY) == 4.0
    guests.room = 0
    assert guests.queue.expected_wait_s(MODEL, NORMAL, LIGHT) > 0.0


async def test_who_has_most_is_told_that_it_is_no_guest(guests: GuestHouse) -> None:
    guests.slots = 1
    async with guests.queue.turn(guests.ticket(share=HEAVY)) as turn:
        assert not turn.guest
        assert not turn.waited


async def test_the_wait_is_predicted_from_the_answers_that_run_where_their_lengths_are_known(
    house: House,
) -> None:
    sketch = LengthSketch()
    for _ in range(20):
        sketch.add(512, cut=False)
    running = [house.ticket() for _ in range(2)]
    house.slots = 2
    for ticket in running:
        ticket.meter.expect_answer(RunningAnswer(MODEL, LengthEstimate.of(sketch), 4096))
        async with house.queue.turn(ticket):
            ticket.meter.draw(1)
    house.slots = 0
    assert house.queue.expected_wait_s(MODEL, NORMAL) == 0.0  # nobody knows how fast tokens come
    house.clock.advance(2.56)
    for ticket in running:
        ticket.meter.draw(255)
    assert 1.7 < house.queue.expected_wait_s(MODEL, NORMAL) < 3.2
    for ticket in running:
        ticket.meter.end()
    house.clock.advance(1.0)
    assert house.queue.expected_wait_s(MODEL, NORMAL) == 0.0
