"""What becomes of a prefix that is to be warmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shared.deadline import Deadline
from shared.errors import InvalidRequest, Overloaded, ProtocolError
from shared.messages import WARM_EPOCH, Envelope, Warm, pack_hashes, pack_ids
from shared.worker.warming.warm_part import WarmPart, WarmPrefix
from shared.worker.warming.warming import MAX_PATIENT, Warming, read_warm
from tests.support.clock import FakeClock
from tests.support.metric import value

BLOCK = 16
SECONDS = 5.0
OWN = Envelope("r", WARM_EPOCH)
COUNTER = "penstock_warmed_prefixes_total"
HASHES = tuple(bytes([number]) * BLOCK for number in range(4))


def prefix(
    request_id: str = "r",
    gateway: str = "gateway-0",
    clock: FakeClock | None = None,
    *,
    patient: bool = False,
    seconds: float = SECONDS,
) -> WarmPrefix:
    deadline = Deadline.after(seconds, clock or FakeClock())
    ids = tuple(range(4 * BLOCK))
    return WarmPrefix(request_id, gateway, deadline, ids, HASHES, patient=patient)


@contextmanager
def ending(result: str) -> Iterator[None]:
    """Exactly one ends so."""
    before = value(COUNTER, result=result)
    yield
    assert value(COUNTER, result=result) == before + 1


def test_a_busy_worker_takes_none() -> None:
    warming = Warming(FakeClock())
    with ending("skipped"):
        assert not warming.offer(prefix(), busy=True)
    assert warming.next_start(0, busy=False) is None


def test_a_second_request_does_not_wait_behind_the_first() -> None:
    warming = Warming(FakeClock())
    first = prefix("first")
    assert warming.offer(first, busy=False)
    with ending("skipped"):
        assert not warming.offer(prefix("second"), busy=False)
    assert warming.prefix is first


def test_a_later_prefix_of_a_request_takes_the_place_of_the_earlier_one() -> None:
    warming = Warming(FakeClock())
    later = prefix()
    warming.offer(prefix(), busy=False)
    warming.next_start(2 * BLOCK, busy=False)
    with ending("replaced"):
        assert warming.offer(later, busy=False)
    assert warming.prefix is later
    assert warming.next_start(BLOCK, busy=False) == BLOCK  # it begins differently


def test_it_goes_on_behind_what_is_known_until_all_of_it_is() -> None:
    warming = Warming(FakeClock())
    warming.offer(prefix(), busy=False)
    assert [warming.next_start(known, busy=False) for known in (0, BLOCK, 3 * BLOCK)] == [0, BLOCK, 3 * BLOCK]
    with ending("done"):
        assert warming.next_start(4 * BLOCK, busy=False) is None
    assert warming.prefix is None


def test_it_is_given_up_for_anything_else() -> None:
    warming = Warming(FakeClock())
    warming.offer(prefix(), busy=False)
    assert warming.next_start(0, busy=False) == 0
    with ending("given_up"):
        assert warming.next_start(BLOCK, busy=True) is None


def test_it_ends_with_its_deadline() -> None:
    clock = FakeClock()
    warming = Warming(clock)
    warming.offer(prefix(clock=clock), busy=False)
    clock.advance(SECONDS - 0.1)
    assert warming.next_start(0, busy=False) == 0
    clock.advance(0.1)
    with ending("expired"):
        assert warming.next_start(BLOCK, busy=False) is None


@pytest.mark.parametrize("known", [0, BLOCK])
def test_what_is_not_there_after_its_part_is_not_computed_again(known: int) -> None:
    warming = Warming(FakeClock())
    warming.offer(prefix(), busy=False)
    assert warming.next_start(BLOCK, busy=False) == BLOCK
    with ending("evicted"):
        assert warming.next_start(known, busy=False) is None


def test_what_the_engine_refuses_is_over() -> None:
    warming = Warming(FakeClock())
    offered = prefix()
    warming.offer(offered, busy=False)
    with ending("refused"):
        assert not warming.record_part(WarmPart(offered, error=Overloaded("full")))
    assert warming.prefix is None


def test_a_part_of_one_that_is_over_says_nothing_of_the_next() -> None:
    warming = Warming(FakeClock())
    now = prefix("now")
    warming.offer(now, busy=False)
    assert not warming.record_part(WarmPart(prefix("before"), error=Overloaded("full")))
    assert warming.prefix is now


@pytest.mark.parametrize(("sender", "ends"), [("gateway-0", True), ("", True), ("gateway-1", False)])
def test_only_its_gateway_cancels_it(sender: str, ends: bool) -> None:
    warming = Warming(FakeClock())
    warming.offer(prefix(), busy=False)
    assert not warming.cancel("another", sender)
    assert warming.cancel("r", sender) is ends
    assert (warming.prefix is None) is ends


@pytest.mark.parametrize(("gateway", "ends"), [("gateway-0", True), ("gateway-1", False)])
def test_it_ends_with_its_gateway(gateway: str, ends: bool) -> None:
    warming = Warming(FakeClock())
    warming.offer(prefix(), busy=False)
    warming.cancel_of(gateway)
    assert (warming.prefix is None) is ends


# ---- patient ones ----


def test_a_patient_prefix_waits_while_there_is_anything_else_and_goes_on_then() -> None:
    warming = Warming(FakeClock())
    offered = prefix(patient=True)
    assert warming.offer(offered, busy=True)
    assert warming.choose(busy=True) is None
    assert warming.choose(busy=False) is offered
    assert warming.next_start(BLOCK, busy=False) == BLOCK
    assert warming.choose(busy=True) is None
    assert (warming.choose(busy=False), list(warming.known)) == (offered, [offered])
    with ending("done"):
        assert warming.next_start(4 * BLOCK, busy=False) is None


def test_what_is_needed_first_goes_first_and_what_nobody_needs_any_more_does_not() -> None:
    clock = FakeClock()
    warming = Warming(clock)
    for name, seconds in (("late", 30.0), ("gone", 1.0), ("soon", 5.0)):
        warming.offer(prefix(name, clock=clock, patient=True, seconds=seconds), busy=True)
    clock.advance(1.0)
    with ending("expired"):
        chosen = warming.choose(busy=False)
    assert chosen is not None
    assert chosen.request_id == "soon"


def test_a_prompt_that_is_asked_for_goes_before_one_that_is_patient() -> None:
    warming = Warming(FakeClock())
    patient, asked = prefix("patient", patient=True), prefix("asked")
    warming.offer(patient, busy=False)
    warming.choose(busy=False)
    assert warming.offer(asked, busy=False)
    assert warming.choose(busy=False) is asked
    warming.cancel("asked")
    assert warming.choose(busy=False) is patient


def test_so_many_wait_and_those_that_are_late_make_room() -> None:
    clock = FakeClock()
    warming = Warming(clock)
    for number in range(MAX_PATIENT):
        assert warming.offer(prefix(str(number), clock=clock, patient=True), busy=True)
    with ending("skipped"):
        assert not warming.offer(prefix("more", clock=clock, patient=True), busy=True)
    clock.advance(SECONDS)
    assert warming.offer(prefix("more", clock=clock, patient=True), busy=True)
    assert [each.request_id for each in warming.known] == ["more"]


def test_what_waits_is_replaced_by_its_request_and_cancelled_by_its_gateway() -> None:
    warming = Warming(FakeClock())
    warming.offer(prefix(patient=True), busy=True)
    later = prefix(patient=True)
    with ending("replaced"):
        warming.offer(later, busy=True)
    assert (list(warming.known), warming.cancel("r", "gateway-1")) == ([later], False)
    with ending("cancelled"):
        warming.cancel_of("gateway-0")
    assert list(warming.known) == []


# ---- from the wire ----


def read(
    ids: bytes,
    hashes: bytes = b"",
    envelope: Envelope = OWN,
    seconds: float | None = 1.0,
) -> WarmPrefix:
    deadline = None if seconds is None else Deadline.after(seconds)
    warm = Warm(ids, hashes, "gateway-0")
    return read_warm(envelope, warm, deadline, adapter="a", vocab_size=100, max_model_len=64)


def test_what_is_read_is_what_was_sent() -> None:
    ids = tuple(range(20))
    found = read(pack_ids(ids), pack_hashes(HASHES[:1]))
    assert (found.request_id, found.gateway, found.token_ids) == ("r", "gateway-0", ids)
    assert (found.block_hashes, found.adapter, found.num_tokens) == (HASHES[:1], "a", BLOCK)


@pytest.mark.parametrize(
    ("ids", "hashes"),
    [
        (b"", b""),
        (pack_ids([100]), b""),
        (pack_ids([1] * 64), b""),
        (pack_ids([1] * 15), pack_hashes(HASHES[:1])),
    ],
    ids=["empty", "vocabulary", "context", "hashes"],
)
def test_what_the_model_cannot_compute_is_refused(ids: bytes, hashes: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(ids, hashes)


@pytest.mark.parametrize("garbage", [b"abc", b"abcde"])
def test_bytes_that_are_no_list_are_refused(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(garbage)
    with pytest.raises(ProtocolError):
        read(pack_ids([1]), garbage)


@pytest.mark.parametrize(
    ("envelope", "seconds"),
    [(Envelope("", WARM_EPOCH), 1.0), (Envelope("r", 1), 1.0), (Envelope("r", WARM_EPOCH), None)],
    ids=["nobody's", "placed", "for-ever"],
)
def test_an_envelope_that_cannot_be_a_warm_ones_is_refused(envelope: Envelope, seconds: float | None) -> None:
    with pytest.raises(ProtocolError):
        read(pack_ids([1]), envelope=envelope, seconds=seconds)
