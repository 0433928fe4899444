"""What the model services share around an engine: prefix events, wire forms, the engine thread."""

from __future__ import annotations

import threading

import pytest

from shared.blocks.layer_groups import KvGroups
from shared.engine.memory.block_pool import BlockEvent
from shared.engine.results import TokenOutput
from shared.errors import InvalidRequest, ProtocolError
from shared.health import Activity
from shared.messages import pack_ids, unpack_hashes
from shared.worker.engine_thread import EngineThread
from shared.worker.gateway_leases import GatewayLeases
from shared.worker.prefix_mirror import MAX_EVENTS_PER_BEAT, PrefixMirror
from shared.worker.rate import TokenRate
from shared.worker.wire import JobOutput, SequenceSpec, read_sequence, tokens_messages
from tests.support.block_hashes import numbered_hash, numbered_hashes, packed_hashes
from tests.support.clock import FakeClock
from tests.support.sampling import sampling

# ---- prefix events ----


def events(kind: str, *hashes: int) -> list[BlockEvent]:
    return [BlockEvent(kind, numbered_hash(number)) for number in hashes]  # type: ignore[arg-type]  # the two literals


def test_a_drain_tells_every_change_once_and_counts_it() -> None:
    mirror = PrefixMirror()
    mirror.apply(events("added", 1, 2))
    mirror.drain()
    mirror.apply(events("removed", 1))
    delta = mirror.drain()
    assert (delta.event_id, unpack_hashes(delta.added), unpack_hashes(delta.removed)) == (
        3,
        [],
        numbered_hashes([1]),
    )
    assert mirror.drain().event_id == 3


def test_a_block_that_came_and_went_untold_is_no_event() -> None:
    mirror = PrefixMirror()
    mirror.apply(events("added", 1))
    mirror.apply(events("removed", 1))
    assert mirror.drain().event_id == 0


def test_a_snapshot_is_the_state_that_its_event_id_names() -> None:
    mirror = PrefixMirror()
    mirror.apply(events("added", 1, 2))
    mirror.drain()
    mirror.apply([*events("removed", 1), *events("added", 3)])
    snapshot = mirror.snapshot()
    assert (snapshot.prefix_event_id, sorted(unpack_hashes(snapshot.hashes))) == (2, numbered_hashes([1, 2]))


def test_many_events_are_spread_over_heartbeats() -> None:
    mirror = PrefixMirror()
    mirror.apply(events("added", *range(MAX_EVENTS_PER_BEAT + 1)))
    assert len(unpack_hashes(mirror.drain().added)) == MAX_EVENTS_PER_BEAT
    assert unpack_hashes(mirror.drain().added) == numbered_hashes([MAX_EVENTS_PER_BEAT])


def test_overlap_counts_leading_blocks_alone() -> None:
    mirror = PrefixMirror()
    mirror.apply(events("added", 1, 2, 4))
    assert mirror.overlap_blocks(numbered_hashes([1, 2, 3, 4])) == 2


def test_overlap_with_a_window_needs_that_alone() -> None:
    mirror = PrefixMirror()
    mirror.groups = KvGroups(0, 1, 17)
    mirror.apply(events("added", 5, 6))
    assert mirror.overlap_blocks(numbered_hashes([1, 2, 3, 4, 5, 6, 7])) == 6


def test_overlap_beside_layers_that_see_everything_needs_those_too() -> None:
    mirror = PrefixMirror()
    mirror.groups = KvGroups(1, 1, 17)
    mirror.apply(events("added", 1, 2, 3, 4, 5, 6, 7))
    assert mirror.overlap_blocks(numbered_hashes([1, 2, 3, 4, 5, 6, 7])) == 0
    mirror.apply(BlockEvent("added", mirror.groups.windowed_hash(name)) for name in numbered_hashes([5, 6]))
    assert mirror.overlap_blocks(numbered_hashes([1, 2, 3, 4, 5, 6, 7])) == 6


# ---- wire forms ----


def read(ids: list[int], prompt_len: int, hashes: tuple[int, ...] = (), **changes: float) -> SequenceSpec:
    how = sampling(max_tokens=8, **changes)
    return read_sequence(
        pack_ids(ids), prompt_len, packed_hashes(*hashes), how, vocab_size=100, max_model_len=64
    )


def test_a_placement_is_unpacked_as_sent() -> None:
    spec = read(list(range(20)), 18, (7,))
    assert (spec.token_ids, spec.prompt_len, spec.block_hashes) == (list(range(20)), 18, numbered_hashes([7]))
    assert spec.params.max_tokens == 8


@pytest.mark.parametrize(
    ("ids", "prompt_len", "hashes", "change", "word"),
    [
        ([], 0, (), {}, "prompt_len"),
        ([1, 2], 3, (), {}, "prompt_len"),
        ([1] * 64, 64, (), {}, "shorten"),
        ([1, 100], 2, (), {}, "vocabulary"),
        ([1, 2], 2, (5,), {}, "hashes"),
        ([1, 2], 2, (), {"temperature": -1.0}, "temperature"),
        ([1] * 10, 2, (), {}, "nothing is left"),
    ],
)
def test_a_placement_that_cannot_run_is_refused_with_what_is_wrong(
    ids: list[int], prompt_len: int, hashes: tuple[int, ...], change: dict[str, float], word: str
) -> None:
    with pytest.raises(InvalidRequest, match=word):
        read(ids, prompt_len, hashes, **change)


def test_ids_of_half_an_integer_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        read_sequence(b"\0\0\0", 1, b"", sampling(), vocab_size=100, max_model_len=64)


def test_a_step_becomes_one_message_per_detokenizer() -> None:
    outputs = [
        JobOutput(name, request_id, 1, TokenOutput("k", 5, (1, 2), (), reason, 0, 0), ())
        for name, request_id, reason in (("d0", "a", None), ("d1", "b", "stop"), ("d0", "c", "length"))
    ]
    (first, tokens), (second, other) = tokens_messages(outputs)
    assert (first, tokens.request_ids, tokens.finish) == ("d0", ("a", "c"), ("", "length"))
    assert (second, other.request_ids, other.token_ids) == ("d1", ("b",), ((1, 2),))


# ---- the engine thread ----


async def test_engine_calls_run_one_by_one_in_one_other_thread() -> None:
    thread = EngineThread("engine-test", Activity("engine"))
    try:
        names = [thread.start(lambda: threading.current_thread().name) for _ in range(3)]
        assert len({await name for name in names} - {threading.current_thread().name}) == 1
    finally:
        await thread.close()


async def test_an_exception_in_the_engine_reaches_the_caller() -> None:
    thread = EngineThread("engine-test", Activity("engine"))
    try:
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
    finally:
        await thread.close()


# ---- leases ----


def test_what_a_heard_gateway_holds_stays_and_what_a_silent_one_holds_expires() -> None:
    clock, heard = FakeClock(), {"g0", "g1"}
    leases = GatewayLeases(lambda gateway: gateway in heard, lease_s=10.0, clock=clock)
    leases.grant("a", "g0")
    leases.grant("b", "g1")
    clock.advance(8.0)
    assert leases.expired() == []
    heard.discard("g1")
    clock.advance(9.0)
    assert leases.expired() == []
    clock.advance(1.0)
    assert leases.expired() == ["b"]
    leases.drop("b")
    assert leases.expired() == []


def test_a_measured_rate_starts_with_the_first_step_and_follows_slowly() -> None:
    rate = TokenRate()
    assert rate.tokens_per_s == 0.0
    for _ in range(100):
        rate.observe(100, 1_000_000)
    assert rate.tokens_per_s == pytest.approx(100.0)
    rate.observe(200, 1_000_000)
    assert rate.tokens_per_s == pytest.approx(110.0, rel=1e-3)
    rate.observe(0, 1_000_000)
    assert rate.tokens_per_s == pytest.approx(110.0, rel=1e-3)


def test_a_measured_rate_weighs_steps_by_their_tokens() -> None:
    rate = TokenRate()
    rate.observe(512, 100_000)
    rate.observe(8, 5_000)  # nearly all of it is what a step costs
    assert rate.tokens_per_s == pytest.approx(4900, rel=0.01)


def test_a_rate_keeps_its_best() -> None:
    rate = TokenRate()
    rate.observe(512, 100_000)
    for _ in range(50):
        rate.observe(512, 800_000)
    assert rate.tokens_per_s == pytest.approx(640, rel=0.05)
    assert rate.best_tokens_per_s == pytest.approx(5120)


def test_steps_of_few_tokens_measure_no_rate() -> None:
    rate = TokenRate(least_tokens=64)
    rate.observe(63, 5_000)
    assert rate.tokens_per_s == 0.0
    rate.observe(64, 16_000)
    assert rate.tokens_per_s == pytest.approx(4000.0)
