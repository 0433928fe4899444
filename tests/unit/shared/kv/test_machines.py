"""The two state machines of a transfer, against each other and against bad peers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from shared.deadline import Deadline
from shared.errors import ChecksumMismatch, InternalError, InvalidRequest, ProtocolError, Unavailable
from shared.kv import limits
from shared.kv.cells import Run
from shared.kv.chunk import ChunkHeader
from shared.kv.receiving.credit import CreditPool
from shared.kv.receiving.incoming import IncomingTransfer
from shared.kv.request_blocks import RequestBlocks
from shared.kv.sending.outgoing import OutgoingPhase, OutgoingTransfer
from shared.kv.transports import NATS
from shared.messages import KvDone, KvGrant, KvReady

CELL = 1000
LAYERS = 3
FAR = Deadline(1e9)


def make_outgoing(blocks: int = 10, first: int = 0) -> OutgoingTransfer:
    ids = [*[-1] * first, *range(first, blocks)]
    return OutgoingTransfer("r", 1, "gateway-0", "decode-0", one_group(ids, first), FAR, 0.0)


def one_group(ids: Sequence[int], first: int) -> RequestBlocks:
    return RequestBlocks((tuple(ids),), (first,), (0,) * LAYERS)


def grant(blocks: int = 10, first: int = 0, transport: str = "nats", credit: int = 4 * CELL) -> KvGrant:
    return KvGrant(1, "layout", (first,), blocks, transport, "penstock.kv.decode-0.1", credit)


def make_incoming(
    blocks: int = 10, window: int = 4 * CELL, transfer: int = 1, filled_tokens: int | None = None
) -> IncomingTransfer:
    incoming = IncomingTransfer(
        "r",
        1,
        transfer,
        origin="gateway-0",
        prefill="prefill-0",
        incarnation=1,
        blocks=one_group(range(blocks), 0),
        deadline=FAR,
        cell_bytes=CELL,
        now_s=0.0,
        filled_tokens=filled_tokens,
    )
    incoming.grant(NATS, window, 0.0)
    return incoming


def header(offset: int, run: Run) -> ChunkHeader:
    return ChunkHeader(1, 1, offset, run.layer, run.first, run.count, run.count * CELL)


@pytest.mark.parametrize("seed", range(30))
def test_everything_arrives_whatever_is_lost_late_or_doubled(seed: int) -> None:
    """A lossy wire between the two machines, with time passing; the incoming one checks the credit."""
    rng = random.Random(seed)
    outgoing, incoming = make_outgoing(), make_incoming()
    outgoing.take_grant(grant(), 0.0)
    late_layers = [(layer, block) for layer in range(LAYERS) for block in range(10)]
    rng.shuffle(late_layers)
    now, finished = 0.0, False
    for _ in range(3000):
        now += rng.choice((0.0, 0.01, 0.6))
        if late_layers:
            layer, block = late_layers.pop()
            outgoing.layer_ready(layer, block, block + 1)
        elif not finished:
            finished = True
            outgoing.set_tokens([4], "", now)
        taken = outgoing.take_run(CELL, rng.randint(1, 3), now)
        if taken is not None and rng.random() < 0.8:
            offset, run = taken
            for _ in range(rng.choice((1, 1, 2))):
                checked, _ = incoming.accept(header(offset, run), run.count * CELL)
                incoming.saw(header(offset, run))
                incoming.verified(checked, now)
        if outgoing.take_done(now):
            incoming.take_done(KvDone(1, (4,), "", 0), now)
        credit = incoming.take_credit(now)
        if credit is not None and rng.random() < 0.8:
            outgoing.acknowledge(credit, 4 * CELL, now)
        outgoing.go_back(now)
        outgoing.send_again(incoming._cells.indices(0, 5) if rng.random() < 0.1 else ())
        if incoming.complete:
            break
    assert incoming.complete


def test_a_sender_stops_at_its_credit_and_goes_on_with_more() -> None:
    outgoing = make_outgoing()
    outgoing.take_grant(grant(), 0.0)
    outgoing.layer_ready(0, 0, 10)
    assert outgoing.take_run(CELL, 100, 0.0) == (0, Run(0, 0, 4))
    assert outgoing.take_run(CELL, 100, 0.0) is None
    outgoing.acknowledge(2 * CELL, 6 * CELL, 0.1)
    assert outgoing.take_run(CELL, 100, 0.1) == (4 * CELL, Run(0, 4, 8))


def test_only_granted_blocks_are_sent_and_each_once() -> None:
    outgoing = make_outgoing()
    outgoing.layer_ready(1, 0, 6)
    outgoing.take_grant(grant(first=4, credit=100 * CELL), 0.0)
    outgoing.layer_ready(1, 0, 10)
    outgoing.layer_ready(1, 3, 10)
    assert outgoing.take_run(CELL, 100, 0.0) == (0, Run(1, 4, 6))
    assert outgoing.take_run(CELL, 100, 0.0) == (2 * CELL, Run(1, 6, 10))
    assert not outgoing.has_work(CELL)


def test_what_is_behind_the_window_is_never_sent() -> None:
    outgoing = make_outgoing(first=6)
    outgoing.layer_ready(0, 0, 8)
    outgoing.take_grant(grant(first=6, credit=100 * CELL), 0.0)
    outgoing.layer_ready(1, 0, 5)
    outgoing.layer_ready(1, 4, 10)
    assert outgoing.take_run(CELL, 100, 0.0) == (0, Run(0, 6, 8))
    assert outgoing.take_run(CELL, 100, 0.0) == (2 * CELL, Run(1, 6, 10))
    assert not outgoing.has_work(CELL)


def test_a_grant_of_blocks_behind_the_window_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"\(5,\) to 10 are granted"):
        make_outgoing(first=6).take_grant(grant(first=5), 0.0)
    make_outgoing(first=6).take_grant(grant(first=10), 0.0)  # all of them are there already


def test_silence_counts_from_the_first_unacknowledged_byte() -> None:
    outgoing = make_outgoing()
    outgoing.take_grant(grant(), 0.0)
    assert outgoing.failure(100.0) is None
    outgoing.layer_ready(0, 0, 2)
    outgoing.take_run(CELL, 2, 100.0)
    assert outgoing.failure(100.0 + limits.PEER_SILENCE_S - 0.1) is None
    assert isinstance(outgoing.failure(100.0 + limits.PEER_SILENCE_S + 0.1), Unavailable)


def test_going_back_again_and_again_does_not_hide_the_silence() -> None:
    outgoing = make_outgoing()
    outgoing.take_grant(grant(), 0.0)
    outgoing.layer_ready(0, 0, 2)
    now = 0.0
    while outgoing.failure(now) is None:
        outgoing.take_run(CELL, 2, now)
        outgoing.go_back(now)
        now += 0.3
    assert now < limits.PEER_SILENCE_S + 1


@pytest.mark.parametrize(
    "bad",
    [
        grant(11),
        KvGrant(1, "layout", (-1,), 1, "nats", "s", 1),
        KvGrant(1, "layout", (5,), 3, "nats", "s", 1),
        KvGrant(1, "layout", (0, 0), 10, "nats", "s", 1),
        KvGrant(1, "layout", (), 10, "nats", "s", 1),
        grant(credit=0),
    ],
)
def test_a_grant_that_does_not_fit_is_a_protocol_error(bad: KvGrant) -> None:
    with pytest.raises(ProtocolError):
        make_outgoing().take_grant(bad, 0.0)


def test_a_repeated_grant_changes_nothing_and_another_one_is_refused() -> None:
    outgoing = make_outgoing()
    outgoing.take_grant(grant(), 0.0)
    outgoing.layer_ready(0, 0, 2)
    outgoing.take_run(CELL, 2, 0.0)
    outgoing.take_grant(grant(), 1.0)
    assert not outgoing.has_work(CELL)
    other = KvGrant(2, "layout", (0,), 10, "nats", "s", CELL)
    with pytest.raises(ProtocolError):
        outgoing.take_grant(other, 1.0)


def test_more_acknowledged_than_ever_sent_is_a_protocol_error() -> None:
    outgoing = make_outgoing()
    outgoing.take_grant(grant(), 0.0)
    with pytest.raises(ProtocolError):
        outgoing.acknowledge(5 * CELL, 4 * CELL, 0.0)


def test_over_shm_layers_with_the_same_blocks_go_out_together() -> None:
    outgoing = make_outgoing()
    for layer in range(LAYERS):
        outgoing.layer_ready(layer, 0, 10)
    outgoing.take_grant(grant(transport="shm", credit=0), 0.0)
    taken = outgoing.take_run(CELL, 100, 0.0)
    assert taken == (0, Run(0, 0, 10))
    assert outgoing.take_next_layer(taken[1]) == Run(1, 0, 10)
    assert outgoing.take_next_layer(Run(1, 0, 10)) == Run(2, 0, 10)
    outgoing.set_tokens([1], "", 0.0)
    assert outgoing.take_done(0.0)
    assert outgoing.phase is OutgoingPhase.DONE


@pytest.mark.parametrize(
    ("chunk", "body_bytes"),
    [
        (ChunkHeader(1, 1, 0, 3, 0, 1, CELL), CELL),
        (ChunkHeader(1, 1, 0, 0, 9, 2, 2 * CELL), 2 * CELL),
        (ChunkHeader(1, 1, 0, 0, 0, 0, 0), 0),
        (ChunkHeader(1, 1, 0, 0, 0, 1, CELL), CELL - 1),
        (ChunkHeader(1, 1, 0, 0, 0, 2, CELL), CELL),
        (ChunkHeader(1, 1, 3 * CELL, 0, 0, 2, 2 * CELL), 2 * CELL),
        (ChunkHeader(1, 1, 1 << 60, 0, 0, 1, CELL), CELL),
    ],
)
def test_chunks_outside_of_the_transfer_or_its_credit_are_refused(
    chunk: ChunkHeader, body_bytes: int
) -> None:
    with pytest.raises(ProtocolError):
        make_incoming().accept(chunk, body_bytes)


@pytest.mark.parametrize(
    "ready",
    [
        KvReady(1, 0, 4, 0, (1,), (1, 2, 3, 4)),
        KvReady(1, 1, 1, 0, (1,), ()),
        KvReady(1, 0, 1, 9, (1, 2), (1,)),
        KvReady(1, 0, 2, 0, (1,), (1,)),
        KvReady(1, 0, 1, 0, (), (1,)),
        KvReady(1, -1, 1, 0, (1,), (1, 2)),
    ],
)
def test_announcements_that_do_not_fit_are_refused(ready: KvReady) -> None:
    with pytest.raises(ProtocolError):
        make_incoming().take_ready(ready)


def test_announcements_repeated_without_end_are_refused() -> None:
    incoming = make_incoming()
    ready = KvReady(1, 0, 1, 0, (1,), (1,))
    for _ in range(2 * LAYERS * 10):
        incoming.take_ready(ready)
    with pytest.raises(ProtocolError):
        incoming.take_ready(ready)


@pytest.mark.parametrize("waited_us", [-1, round(limits.MAX_WAITED_S * 1e6) + 1, 2**63])
def test_a_wait_that_cannot_have_been_is_refused_and_not_measured(waited_us: int) -> None:
    incoming = make_incoming()
    with pytest.raises(ProtocolError, match="waited"):
        incoming.take_done(KvDone(1, (4,), "", waited_us), 10.0)
    assert incoming.done is None
    incoming.take_done(KvDone(1, (4,), "", round(limits.MAX_WAITED_S * 1e6)), 10.0)
    assert incoming.exposed_us(10.0) == round(limits.MAX_WAITED_S * 1e6)


def test_missing_cells_are_asked_for_twice_and_then_it_fails() -> None:
    incoming = make_incoming()
    assert incoming.take_missing(10.0) == ()
    incoming.take_done(KvDone(1, (4,), "", 0), 10.0)
    incoming.verified(Run(0, 0, 10), 10.0)
    assert incoming.take_missing(10.0 + limits.NO_PROGRESS_S) == tuple(range(10, 30))
    assert incoming.take_missing(10.1 + limits.NO_PROGRESS_S) == ()
    assert incoming.take_missing(10.0 + 2 * limits.NO_PROGRESS_S)
    assert incoming.failure(10.0 + 2.5 * limits.NO_PROGRESS_S) is None
    assert isinstance(incoming.failure(10.1 + 3 * limits.NO_PROGRESS_S), Unavailable)


def test_progress_makes_the_requests_count_anew() -> None:
    incoming = make_incoming()
    incoming.take_done(KvDone(1, (4,), "", 0), 0.0)
    for turn in range(1, 9):
        assert incoming.take_missing(float(turn))
        assert incoming.failure(turn + 0.1) is None
        incoming.verified(Run(0, turn, turn + 1), turn + 0.2)


def test_too_many_bad_chunks_are_a_checksum_failure() -> None:
    incoming = make_incoming()
    for _ in range(limits.MAX_BAD_CHUNKS):
        assert incoming.failed_checksum(Run(1, 2, 4)) == (12, 13)
    with pytest.raises(ChecksumMismatch):
        incoming.failed_checksum(Run(1, 2, 4))


def test_the_exposed_time_runs_from_the_token_to_now() -> None:
    incoming = make_incoming()
    incoming.take_done(KvDone(1, (4,), "", 1500), 2.0)
    assert incoming.exposed_us(2.002) == 3500


def test_a_window_grows_only_out_of_what_is_not_reserved() -> None:
    pool = CreditPool(limits.RESERVED_WINDOW_BYTES + limits.WINDOW_BYTES)
    first, second = (make_incoming(100_000, transfer=number) for number in (1, 2))
    for incoming in (first, second):
        pool.request(incoming)
    assert pool.take() == (first, limits.FIRST_WINDOW_BYTES)
    assert pool.take() == (second, limits.FIRST_WINDOW_BYTES)
    assert pool.grow(first) == limits.FIRST_WINDOW_BYTES
    pool.release(second)
    assert pool.grow(first) == limits.WINDOW_BYTES
    pool.release(first)
    assert pool.free_bytes == limits.RESERVED_WINDOW_BYTES + limits.WINDOW_BYTES


def test_a_transfer_waits_while_no_first_window_is_free_and_may_leave_the_queue() -> None:
    pool = CreditPool(limits.FIRST_WINDOW_BYTES)
    first, second, third = (make_incoming(100_000, transfer=number) for number in (1, 2, 3))
    for incoming in (first, second, third):
        pool.request(incoming)
    assert pool.take() == (first, limits.FIRST_WINDOW_BYTES)
    assert pool.take() is None
    pool.release(second)
    pool.release(first)
    assert pool.take() == (third, limits.FIRST_WINDOW_BYTES)
    pool.check()


def test_credit_that_is_neither_free_nor_held_is_noticed() -> None:
    pool = CreditPool(limits.FIRST_WINDOW_BYTES)
    pool.free_bytes -= 1
    with pytest.raises(InternalError, match="of credit are free"):
        pool.check()


# ---- a request that goes on at its sender ----


def growing(blocks: int) -> OutgoingTransfer:
    outgoing = OutgoingTransfer(
        "r", 1, "gateway-0", "decode-1", one_group(range(blocks), 0), FAR, 0.0, grows=True
    )
    for layer in range(LAYERS):
        outgoing.layer_ready(layer, 0, blocks)
    return outgoing


def send_all(outgoing: OutgoingTransfer) -> int:
    """The cells that are ready, over a transport without credit."""
    count = 0
    while (taken := outgoing.take_run(CELL, 4, 0.0)) is not None:
        count += taken[1].count
    return count


def test_a_transfer_that_grows_sends_what_there_is_and_says_each_time_when_all_is_sent() -> None:
    outgoing = growing(2)
    outgoing.take_grant(grant(10, transport="shm", credit=0), 0.0)
    assert not outgoing.take_sent()
    assert send_all(outgoing) == 2 * LAYERS
    assert (outgoing.take_sent(), outgoing.take_sent()) == (True, False)
    outgoing.grow([range(4)])
    for layer in range(LAYERS):
        outgoing.layer_ready(layer, 2, 4)
    assert send_all(outgoing) == 2 * LAYERS
    assert outgoing.take_sent()
    outgoing.set_tokens([7], "", 1.0)
    assert outgoing.take_done(1.0)
    assert not outgoing.take_sent()


def test_a_transfer_that_does_not_grow_is_granted_no_more_than_it_has() -> None:
    with pytest.raises(ProtocolError, match="blocks"):
        make_outgoing(10).take_grant(grant(11), 0.0)
    with pytest.raises(InvalidRequest, match="cannot become"):
        make_outgoing(10).grow([range(11)])


@pytest.mark.parametrize("firsts", [0, limits.MAX_TRANSFER_BLOCKS + 1])
def test_no_grant_makes_a_transfer_that_grows_larger_than_any_may_be(firsts: int) -> None:
    outgoing = growing(2)
    with pytest.raises(ProtocolError, match="blocks"):
        outgoing.take_grant(grant(limits.MAX_TRANSFER_BLOCKS + 1, firsts), 0.0)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(0, 2), (1, 2), (2, 3), (18, 4)])
def test_only_the_blocks_that_the_last_tokens_fill_are_waited_for(num_tokens: int, blocks: int) -> None:
    """KV of 31 tokens comes at least: two blocks."""
    incoming = make_incoming(4, filled_tokens=31)
    for layer in range(LAYERS):
        incoming.verified(Run(layer, 0, blocks), 1.0)
    incoming.take_done(KvDone(1, tuple(range(num_tokens)), "", 0), 2.0)
    assert incoming.complete


def test_a_block_that_the_last_tokens_fill_is_waited_for() -> None:
    incoming = make_incoming(4, filled_tokens=31)
    incoming.take_done(KvDone(1, (5, 6), "", 0), 2.0)
    for layer in range(LAYERS):
        incoming.verified(Run(layer, 0, 2), 1.0)
    assert not incoming.complete
    for layer in range(LAYERS):
        incoming.verified(Run(layer, 2, 3), 1.0)
    assert incoming.complete


def test_more_tokens_than_there_is_room_for_are_refused() -> None:
    incoming = make_incoming(4, filled_tokens=31)
    with pytest.raises(ProtocolError, match="more than was room for"):
        incoming.take_done(KvDone(1, tuple(range(34)), "", 0), 2.0)
