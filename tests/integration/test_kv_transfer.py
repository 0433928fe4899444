"""KV from a sender to a receiver over a real nats-server: every byte, every fault, every end."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator

import pytest
import uvloop

from shared.bus.bulk import BulkConnection
from shared.bus.nats_server import NatsServer
from shared.errors import (
    ChecksumMismatch,
    DeadlineExpired,
    InvalidRequest,
    ProtocolError,
    StaleEpoch,
    Unavailable,
)
from shared.kv import limits
from shared.kv.chunk import ChunkHeader
from shared.kv.memory.plain_pool import PlainLayout
from shared.kv.memory.shared_pool import SharedPool
from shared.messages import KvAbort, KvCredit, KvDone, KvGrant, KvMissing, KvReceived
from tests.support.clock import FakeClock
from tests.support.ended_program import ended_program
from tests.support.kv_pair import SMALL, SUBJECT, MakePair, Pair, Side, assert_same, pairs
from tests.support.wait import until

LARGE = PlainLayout(4, 64 << 10)
BLOCKS = list(range(10, 30))
TARGETS = list(range(40, 60))


@pytest.fixture
async def make_pair(nats_url: str) -> AsyncIterator[MakePair]:
    async with pairs(nats_url) as make:
        yield make


@pytest.mark.thorough(but="1-nats | 2-shm")
@pytest.mark.parametrize("share", [False, True], ids=["nats", "shm"])
@pytest.mark.parametrize("seed", range(4))
async def test_every_byte_arrives_for_random_layouts_tables_and_orders(
    make_pair: MakePair, share: bool, seed: int
) -> None:
    rng = random.Random(seed)
    layout = PlainLayout(rng.randint(1, 5), rng.choice((512, 4096, 10_240, 65_536)))
    pair = await make_pair(layout, 40, share=share)
    for number in range(6):
        count = rng.randint(1, 30)
        source, target = rng.sample(range(40), count), rng.sample(range(40), count)
        first = rng.randint(0, count - 1)
        pair.target.memory[:] = bytes(pair.target.memory.nbytes)
        request = f"gateway-0.{number}"
        if rng.random() < 0.5:
            pair.offer_transfer(request, source)
            await asyncio.sleep(rng.choice((0, 0.002)))
            pair.expect_transfer(request, target, first)
        else:
            pair.expect_transfer(request, target, first)
            await asyncio.sleep(rng.choice((0, 0.002)))
            pair.offer_transfer(request, source)
        key = (request, 1)
        cut = rng.randint(0, count)
        for layer in range(layout.num_layers):
            pair.sender.layer_ready(key, layer, 0, cut)
        await asyncio.sleep(0)
        for layer in range(layout.num_layers):
            pair.sender.layer_ready(key, layer, cut, count)
        pair.sender.finish_transfer(key, [11, number], "")
        await pair.transferred(number + 1)
        assert pair.decode.complete[-1] == (key, (11, number), "")
        assert_same(pair, source[first:], target[first:])
        untouched = set(range(40)) - set(target[first:])
        zeros = bytes(layout.num_layers * layout.layer_block_bytes)
        assert all(pair.target.cells(block) == zeros for block in untouched)
    assert pair.nothing_held()
    transports = {d.message.transport for d in pair.to_sender if isinstance(d.message, KvGrant)}
    assert transports == {"shm" if share else "nats"}


def basic(pair: Pair, request: str = "gateway-0.1", seconds: float = 60.0) -> tuple[str, int]:
    """One request of 20 blocks, offered and expected, nothing computed."""
    pair.expect_transfer(request, TARGETS, seconds=seconds)
    return pair.offer_transfer(request, BLOCKS, seconds=seconds)


async def test_transfers_run_under_uvloop_as_the_services_do(nats_url: str) -> None:
    async def scenario() -> None:
        async with pairs(nats_url) as make:
            pair = await make(LARGE)
            key = basic(pair)
            pair.compute(key, 20)
            pair.sender.finish_transfer(key, [5], "")
            await pair.transferred()
            assert_same(pair, BLOCKS, TARGETS)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario())

    await asyncio.to_thread(run)


async def test_kv_done_may_overtake_the_chunks(make_pair: MakePair) -> None:
    pair = await make_pair()
    pair.pause_chunks()
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await until(lambda: pair.heard_by_receiver(KvDone))
    assert not pair.decode.complete
    pair.resume_chunks()
    await pair.transferred()
    assert_same(pair, BLOCKS, TARGETS)


async def test_kv_done_may_follow_long_after_the_last_chunk(make_pair: MakePair) -> None:
    pair = await make_pair()
    sink = pair.fault()
    key = basic(pair)
    pair.compute(key, 20)
    await until(lambda: sink.seen == SMALL.num_layers)
    assert not pair.decode.complete
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert_same(pair, BLOCKS, TARGETS)


async def test_layers_leave_before_the_prompt_is_computed(make_pair: MakePair) -> None:
    pair = await make_pair()
    sink = pair.fault()
    key = basic(pair)
    pair.compute(key, 20, layers=1)
    await until(lambda: sink.seen == 1)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert sink.seen == SMALL.num_layers


async def test_a_lost_chunk_is_asked_for_and_comes_again(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(clock=clock)
    sink = pair.fault(drop=lambda number: number == 1)
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    # Chunks and KvDone come over two connections: what lands after the advance would count as progress.
    await until(lambda: pair.heard_by_receiver(KvDone) and sink.landed == SMALL.num_layers - 1)
    clock.advance(limits.NO_PROGRESS_S + 0.1)
    await pair.transferred()
    assert pair.heard_by_sender(KvMissing) == 1
    assert_same(pair, BLOCKS, TARGETS)


async def test_a_whole_window_lost_before_the_end_is_sent_again_unasked(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(LARGE, clock=clock)
    sink = pair.fault(drop=lambda number: number < 1)
    key = basic(pair)
    pair.compute(key, 20)
    await until(lambda: sink.seen == 1)
    clock.advance(limits.NO_PROGRESS_S + 0.1)
    await until(lambda: sink.seen > 2)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert_same(pair, BLOCKS, TARGETS)


async def test_a_changed_chunk_is_found_and_asked_for_at_once(make_pair: MakePair) -> None:
    pair = await make_pair(clock=FakeClock())
    pair.fault(corrupt=lambda number: number in (0, 2))
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert pair.heard_by_sender(KvMissing) == 2
    assert_same(pair, BLOCKS, TARGETS)


async def test_a_path_that_changes_every_chunk_fails_as_checksum(make_pair: MakePair) -> None:
    pair = await make_pair(clock=FakeClock())
    pair.fault(corrupt=lambda _number: True)
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await until(lambda: pair.decode.failed)
    assert isinstance(pair.decode.failed[0][1], ChecksumMismatch)
    await pair.freed()
    assert pair.prefill.released == pair.decode.released == [key]


async def test_cells_that_never_come_fail_after_two_requests(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(clock=clock)
    pair.fault(drop=lambda _number: True)
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await until(lambda: pair.heard_by_receiver(KvDone))
    for asked in (1, 2):
        clock.advance(limits.NO_PROGRESS_S + 0.1)
        await until(lambda asked=asked: pair.heard_by_sender(KvMissing) == asked)  # type: ignore[misc]
    clock.advance(limits.NO_PROGRESS_S + 0.1)
    await until(lambda: pair.decode.failed)
    assert isinstance(pair.decode.failed[0][1], Unavailable)
    await pair.freed()
    assert not pair.decode.complete
    assert pair.prefill.released == pair.decode.released == [key]


@pytest.mark.parametrize("share", [False, True], ids=["nats", "shm"])
@pytest.mark.parametrize("phase", ["offered", "granted", "moving", "done"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_an_abort_from_either_side_in_any_phase_frees_everything(
    make_pair: MakePair, side: str, phase: str, share: bool
) -> None:
    pair = await make_pair(share=share)
    key = ("gateway-0.1", 1)
    if phase == "done":
        pair.hold_receiver = True  # it never learns that all was sent
    if phase != "offered" or side == "decode":
        pair.expect_transfer(key[0], TARGETS)
    if phase != "offered" or side == "prefill":
        pair.offer_transfer(key[0], BLOCKS)
    if phase != "offered":
        await until(lambda: pair.heard_by_sender(KvGrant))
    if phase in ("moving", "done"):
        pair.compute(key, 20, layers=2 if phase == "moving" else 3)
        await asyncio.sleep(0)
    if phase == "done":
        pair.sender.finish_transfer(key, [5], "")
        await until(lambda: pair.heard_by_receiver(KvDone))
        pair.hold_receiver = False
    (pair.sender if side == "prefill" else pair.receiver).abort_transfer(key, "cancelled")
    await pair.freed()
    others_failed = pair.decode.failed if side == "prefill" else pair.prefill.failed
    if phase != "offered":
        assert [failed for failed, _ in others_failed] == [key]
        assert pair.prefill.released == pair.decode.released == [key]
    assert not pair.decode.complete


async def test_an_abort_that_overtakes_its_request_still_wins(make_pair: MakePair) -> None:
    pair = await make_pair()
    key = pair.expect_transfer("gateway-0.1", TARGETS)
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.receiver.abort_transfer(key, "cancelled")
    await until(lambda: pair.decode.released == [key])
    pair.offer_transfer(key[0], BLOCKS)
    assert isinstance(pair.prefill.failed[0][1], Unavailable)
    assert pair.prefill.released == [key]


async def test_chunks_that_come_after_an_abort_never_touch_the_pool(make_pair: MakePair) -> None:
    pair = await make_pair(LARGE)
    pair.pause_chunks()
    key = basic(pair)
    pair.compute(key, 20)
    await until(lambda: pair.sender._transfers[key]._sent_bytes)
    pair.receiver.abort_transfer(key, "cancelled")
    await until(lambda: pair.decode.released)
    pair.target.memory[:] = b"\x5a" * pair.target.memory.nbytes
    sink = pair.fault()
    pair.resume_chunks()
    await until(lambda: sink.seen)
    assert pair.target.memory.tobytes().strip(b"\x5a") == b""
    await pair.freed()


async def test_a_closed_receiver_writes_nothing_any_more(make_pair: MakePair) -> None:
    pair = await make_pair(LARGE)
    pair.pause_chunks()
    key = basic(pair)
    pair.compute(key, 20)
    await until(lambda: pair.sender._transfers[key]._sent_bytes)
    pair.receiver.close()
    sink = pair.fault()
    pair.resume_chunks()
    await until(lambda: sink.seen)
    assert pair.target.memory.tobytes().strip(b"\0") == b""
    assert pair.decode == Side()


async def test_ill_formed_and_foreign_chunks_are_refused_before_a_byte_lands(
    make_pair: MakePair, nats_url: str
) -> None:
    pair = await make_pair()
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    grant = next(d.message for d in pair.to_sender if isinstance(d.message, KvGrant))
    sink = pair.fault()
    stranger = await BulkConnection.connect(nats_url, name="stranger")
    cell = memoryview(b"\xff" * 4096)

    def header(body: memoryview, **changes: int) -> bytes:
        fields = {"transfer": grant.transfer, "epoch": 1, "offset": 0, "layer": 0, "block": 0, "blocks": 1}
        return ChunkHeader(**{**fields, "body_bytes": body.nbytes, **changes}).pack(body)

    good = header(cell)
    await stranger.send(SUBJECT, good[:20], [])
    await stranger.send(SUBJECT, b"\0" * 48, [cell])
    await stranger.send(SUBJECT, header(cell, transfer=grant.transfer + 1), [cell])
    await stranger.send(SUBJECT, header(cell, epoch=0), [cell])
    await until(lambda: sink.seen == 4)
    for _ in range(limits.MAX_BAD_CHUNKS):
        await stranger.send(SUBJECT, header(cell, layer=3), [cell])
    await until(lambda: sink.seen == 4 + limits.MAX_BAD_CHUNKS)
    assert not pair.decode.failed
    await stranger.send(SUBJECT, header(cell, layer=3), [cell])
    await until(lambda: pair.decode.failed)
    assert isinstance(pair.decode.failed[0][1], ProtocolError)
    assert pair.target.memory.tobytes().strip(b"\0") == b""
    await stranger.close()
    await pair.freed()
    assert pair.prefill.released == [key]


async def test_a_header_that_changed_on_its_way_ends_no_transfer(make_pair: MakePair, nats_url: str) -> None:
    """It may name another transfer than its own."""
    pair = await make_pair()
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    sink = pair.fault()
    stranger = await BulkConnection.connect(nats_url, name="stranger")
    cell = memoryview(bytes(4096))
    await stranger.send(SUBJECT, ChunkHeader(1, 1, 1 << 60, 9, 77, 1, 4096).pack(cell), [cell])
    await until(lambda: sink.seen == 1)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert_same(pair, BLOCKS, TARGETS)
    await stranger.close()


async def test_a_server_restart_in_mid_transfer_is_survived(
    make_pair: MakePair, nats_server: NatsServer
) -> None:
    pair = await make_pair(LARGE)
    key = basic(pair)
    pair.compute(key, 20, layers=2)
    await until(lambda: pair.heard_by_sender(KvCredit))
    await nats_server.kill()
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await nats_server.start()
    await until(lambda: pair.decode.complete or pair.decode.failed)
    await pair.freed()
    if pair.decode.complete:
        assert_same(pair, BLOCKS, TARGETS)
    else:
        assert isinstance(pair.decode.failed[0][1], Unavailable)


async def test_no_more_is_on_its_way_than_the_receiver_has_credited(make_pair: MakePair) -> None:
    pair = await make_pair(PlainLayout(8, 128 << 10))
    allowed = {0: 0}

    def credited() -> int:
        for delivery in pair.to_sender:
            if isinstance(delivery.message, KvGrant | KvCredit):
                received = delivery.message.received_bytes if isinstance(delivery.message, KvCredit) else 0
                allowed[0] = max(allowed[0], received + delivery.message.credit_bytes)
        return allowed[0]

    sent: list[int] = []
    original = pair.bulks[0].send

    async def send(subject: str, header: bytes, body: list[memoryview]) -> None:
        sent.append(sum(view.nbytes for view in body))
        assert sum(sent) <= credited()
        await original(subject, header, body)

    pair.bulks[0].send = send  # type: ignore[assignment,method-assign]
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert sum(sent) == 8 * 20 * (128 << 10)
    assert pair.heard_by_sender(KvCredit) > 10
    windows = [d.message.credit_bytes for d in pair.to_sender if isinstance(d.message, KvCredit)]
    assert max(windows) == limits.WINDOW_BYTES


async def test_many_transfers_share_the_receivers_window_and_all_arrive(make_pair: MakePair) -> None:
    pair = await make_pair(LARGE, blocks=180)
    keys = []
    for number in range(30):
        blocks = range(number * 6, number * 6 + 6)
        pair.expect_transfer(f"gateway-0.{number}", blocks)
        keys.append(pair.offer_transfer(f"gateway-0.{number}", blocks))
    for key in reversed(keys):
        pair.compute(key, 6)
        pair.sender.finish_transfer(key, [5], "")
    await pair.transferred(30)
    assert pair.source.memory.tobytes() == pair.target.memory.tobytes()
    assert pair.receiver._grants.credit.free_bytes == limits.RECEIVER_WINDOW_BYTES


@pytest.mark.parametrize("share", [False, True], ids=["nats", "shm"])
async def test_layers_with_a_window_send_the_blocks_that_it_reads_beside_those_that_send_all(
    make_pair: MakePair, share: bool
) -> None:
    layout = PlainLayout(5, 4096, windows=(9, 9, None, 9, None))  # two groups with a window
    pair = await make_pair(layout, 40, share=share)
    orders = (random.Random(seed).sample(range(40), 40) for seed in (7, 8))
    sources, targets = ([order[at : at + 10] for at in (0, 10, 20)] for order in orders)
    offered, wanted = [0, 4, 4], [8, 8, 6]  # layers 1 and 2 send the same blocks of two groups
    behind = [[-1] * first + blocks[first:] for blocks, first in zip(sources, offered, strict=True)]
    pair.expect_tables("gateway-0.1", targets, wanted)
    key = pair.offer_tables("gateway-0.1", behind, offered)
    pair.compute(key, 10)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    groups, size = layout.groups, layout.layer_block_bytes
    sent: set[int] = set()
    for layer, group in enumerate(groups.group_of):
        for block in range(wanted[group], 10):
            row = groups.row_of[layer] * 40
            theirs, ours = row + sources[group][block], row + targets[group][block]
            sent.add(ours)
            assert pair.target.memory[ours * size :][:size] == pair.source.memory[theirs * size :][:size]
    others = set(range(groups.block_layers * 40)) - sent
    assert not any(bytes(pair.target.memory[cell * size :][:size]).strip(b"\0") for cell in others)


async def test_tables_that_are_not_those_of_the_groups_are_refused(make_pair: MakePair) -> None:
    pair = await make_pair(PlainLayout(2, 4096, windows=(9, None)), 8)
    for tables, firsts in (([[0]], [0]), ([[0], [1, 2]], [0, 0]), ([[0], [1]], [0, 2]), ([[0], [0]], [0, 0])):
        with pytest.raises(InvalidRequest):
            pair.expect_tables("gateway-0.1", tables, firsts)
    assert pair.nothing_held()


async def test_nothing_to_send_completes_by_kv_done_alone(make_pair: MakePair) -> None:
    pair = await make_pair()
    pair.expect_transfer("gateway-0.1", TARGETS, first=20)
    key = pair.offer_transfer("gateway-0.1", BLOCKS)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5, 6], "")
    await pair.transferred()
    assert pair.decode.complete == [(key, (5, 6), "")]
    assert pair.target.memory.tobytes().strip(b"\0") == b""


async def test_a_request_that_ends_with_its_first_token_needs_no_cell(make_pair: MakePair) -> None:
    pair = await make_pair()
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.sender.finish_transfer(key, [2], "stop")
    await pair.transferred()
    assert pair.decode.complete == [(key, (2,), "stop")]


async def test_a_lost_answer_is_given_again(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(clock=clock)
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.mute_sender = True
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await until(lambda: pair.heard_by_sender(KvReceived))
    pair.mute_sender = False
    clock.advance(limits.NO_PROGRESS_S + 0.1)
    await pair.transferred()
    assert len(pair.decode.complete) == 1


async def test_a_lost_grant_is_given_again(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(clock=clock)
    pair.mute_sender = True
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant) or pair.receiver.held()[0].phase == "receiving")
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.mute_sender = False
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    clock.advance(limits.NO_PROGRESS_S + 0.1)
    await pair.transferred()
    assert_same(pair, BLOCKS, TARGETS)


async def test_blocks_of_an_unacknowledged_abort_are_kept_until_the_lease_ends(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(clock=clock)
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.mute_sender = True
    pair.receiver.abort_transfer(key, "cancelled")
    clock.advance(limits.LEASE_S - 0.5)
    await until(lambda: pair.heard_by_sender(KvAbort) >= 2)
    assert not pair.decode.released
    clock.advance(1.0)
    await until(lambda: pair.decode.released == [key])
    pair.sender.peer_lost("decode-0")
    assert pair.nothing_held()


async def test_a_passed_deadline_ends_both_sides_as_expired(make_pair: MakePair) -> None:
    clock = FakeClock()
    pair = await make_pair(clock=clock)
    key = basic(pair, seconds=2.0)
    await until(lambda: pair.heard_by_sender(KvGrant))
    clock.advance(2.1)
    await pair.freed()
    for side in (pair.prefill, pair.decode):
        assert len(side.failed) == 1
        assert isinstance(side.failed[0][1], DeadlineExpired | Unavailable)
        assert side.released == [key]
    assert any(isinstance(side.failed[0][1], DeadlineExpired) for side in (pair.prefill, pair.decode))


async def test_a_new_epoch_ends_the_old_transfer_and_completes_itself(make_pair: MakePair) -> None:
    pair = await make_pair()
    old = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.expect_transfer(old[0], TARGETS, epoch=2)
    assert [key for key, _ in pair.decode.failed] == pair.decode.released == [old]
    assert isinstance(pair.decode.failed[0][1], StaleEpoch)
    with pytest.raises(StaleEpoch):
        pair.expect_transfer(old[0], TARGETS, epoch=1)
    new = pair.offer_transfer(old[0], BLOCKS, epoch=2)
    pair.compute(old, 20)
    pair.compute(new, 20)
    pair.sender.finish_transfer(new, [5], "")
    await until(lambda: pair.decode.complete)
    await pair.freed()
    assert pair.decode.complete[0][0] == new
    assert_same(pair, BLOCKS, TARGETS)


async def test_a_lost_peer_frees_what_waits_for_it(make_pair: MakePair) -> None:
    pair = await make_pair()
    key = basic(pair)
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.receiver.peer_lost("prefill-0")
    pair.sender.peer_lost("decode-0")
    assert pair.nothing_held()
    for side in (pair.prefill, pair.decode):
        assert isinstance(side.failed[0][1], Unavailable)
        assert side.released == [key]


async def test_a_wrong_nonce_falls_back_to_nats(make_pair: MakePair) -> None:
    pair = await make_pair(share=True)
    assert pair.shared is not None
    segment = pair.shared.segment
    pair.shared.segment = type(segment)(segment.pid, segment.fd, segment.nbytes, b"\0" * 32)
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert {d.message.transport for d in pair.to_sender if isinstance(d.message, KvGrant)} == {"nats"}
    assert_same(pair, BLOCKS, TARGETS)


async def test_shm_demanded_where_it_is_impossible_fails_clearly(make_pair: MakePair) -> None:
    pair = await make_pair(share=False, transport="shm")
    key = pair.expect_transfer("gateway-0.1", TARGETS)
    await until(lambda: pair.decode.released == [key])
    error = pair.decode.failed[0][1]
    assert isinstance(error, Unavailable)
    assert "shm transport is demanded" in str(error)


async def test_nats_demanded_is_used_although_memory_is_shared(make_pair: MakePair) -> None:
    pair = await make_pair(share=True, transport="nats")
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await pair.transferred()
    assert {d.message.transport for d in pair.to_sender if isinstance(d.message, KvGrant)} == {"nats"}


async def test_shared_memory_reused_too_early_is_found_by_its_checksum(make_pair: MakePair) -> None:
    pair = await make_pair(share=True)
    pair.hold_receiver = True
    key = basic(pair)
    pair.compute(key, 20)
    pair.sender.finish_transfer(key, [5], "")
    await until(lambda: pair.heard_by_receiver(KvDone))
    start = BLOCKS[3] * SMALL.layer_block_bytes
    pair.source.memory[start] ^= 1
    pair.hold_receiver = False
    for delivery in list(pair.to_receiver):
        pair.receiver.handle_message(delivery)
    await pair.transferred()
    assert pair.heard_by_sender(KvMissing) == 1
    assert_same(pair, BLOCKS, TARGETS)


async def test_workers_with_different_layouts_refuse_each_other(make_pair: MakePair) -> None:
    pair = await make_pair()
    pair.sender._layout = "another"
    key = basic(pair)
    await until(lambda: pair.prefill.failed and pair.decode.failed)
    assert "different KV layouts" in str(pair.prefill.failed[0][1])
    await pair.freed()
    assert pair.prefill.released == pair.decode.released == [key]


async def test_impossible_blocks_are_invalid_requests(make_pair: MakePair) -> None:
    pair = await make_pair()
    for blocks in ([64], [-1], [3, 3]):
        with pytest.raises(InvalidRequest):
            pair.expect_transfer("gateway-0.1", blocks)
    with pytest.raises(InvalidRequest):
        pair.offer_transfer("gateway-0.1", [64])
    key = pair.offer_transfer("gateway-0.1", BLOCKS)
    with pytest.raises(InvalidRequest):
        pair.offer_transfer("gateway-0.1", BLOCKS)
    with pytest.raises(InvalidRequest):
        pair.sender.layer_ready(key, 3, 0, 20)
    with pytest.raises(InvalidRequest):
        pair.sender.layer_ready(key, 0, 0, 21)
    pair.sender.abort_transfer(key, "cancelled")
    assert pair.prefill.released == [key]


async def test_pools_of_two_processes_meet_in_shared_memory() -> None:
    pool = SharedPool.create(3 * 8 * 4096)
    pool.memory[:] = random.Random(3).randbytes(pool.memory.nbytes)
    program = (
        "import sys, hashlib\n"
        "from shared.kv.memory.shared_pool import PoolMapping\n"
        "from shared.messages import KvSegment\n"
        "from shared.engine.loading.layer_groups import LayerGroups\n"
        "class Layout:\n"
        "    groups = LayerGroups.of([None] * 3)\n"
        "    layer_block_bytes = 4096\n"
        "pid, fd, nbytes, nonce = sys.argv[1:]\n"
        "segment = KvSegment(int(pid), int(fd), int(nbytes), bytes.fromhex(nonce))\n"
        "mapping = PoolMapping.open(segment, Layout)\n"
        "print(bytes(mapping.memory.read(2, [7])).hex())\n"
        "mapping.close()\n"
    )
    s = pool.segment
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(s.pid), str(s.fd), str(s.nbytes), s.nonce.hex(),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    ended = await ended_program(child)
    assert bytes.fromhex(ended.out.strip()) == bytes(pool.memory[-4096:])
    pool.close()


@pytest.mark.parametrize("share", [False, True], ids=["nats", "shm"])
async def test_a_request_that_goes_on_at_its_sender_arrives_as_far_as_it_has_come(
    make_pair: MakePair, share: bool
) -> None:
    """Room was made for 20 blocks; 12 of them turn out to be filled, with what came after the first 100
    tokens."""
    pair = await make_pair(share=share)
    deadline = pair.deadline()
    pair.sender.offer_transfer("r", 1, "gateway-0", "decode-0", [BLOCKS[:6]], [0], deadline, grows=True)
    pair.receiver.expect_transfer(
        "r", 1, "gateway-0", "prefill-0", 5, [TARGETS], [0], deadline, filled_tokens=100
    )
    await until(lambda: pair.heard_by_sender(KvGrant))
    pair.sender.extend_transfer(("r", 1), [BLOCKS[:9]])
    pair.sender.extend_transfer(("r", 1), [BLOCKS[:12]])
    later = list(range(80))
    pair.sender.finish_transfer(("r", 1), later, "")
    await pair.transferred()
    assert pair.decode.complete == [(("r", 1), tuple(later), "")]
    assert_same(pair, BLOCKS[:12], TARGETS[:12])
    await pair.freed()
