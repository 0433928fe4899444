"""What workers do when things go wrong: cancels, deadlines, full workers, dead peers, garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.bus.subjects import CANCEL_ALL, NOBODY, inbox, subject_of
from shared.deadline import Deadline
from shared.errors import Cancelled, DeadlineExpired, InvalidRequest, Overloaded, StaleEpoch, UnknownMessage
from shared.messages import WARM_EPOCH, Cancel, Drain, Retrieve, Warm, pack_ids
from tests.integration.workers_harness import GATEWAY, START_TIMEOUT_S, WAIT_S, Edge, Workers, edge_of
from tests.support.block_hashes import hashes_of
from tests.support.sampling import sampling
from tests.support.wait import until

PREFILL, DECODE, DOOMED = "prefill-0", "decode-0", "prefill-doomed"
ALL = (PREFILL, DECODE)
MAX_QUEUED = 1
PROMPT = list(range(10, 60))
pytestmark = pytest.mark.timeout(300)  # the first test waits for the processes, on whatever machine
LONG = sampling(max_tokens=440, ignore_eos=True)


@pytest.fixture(scope="module")
def workers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    running = Workers(tmp_path_factory.mktemp("logs"))
    try:
        running.start("prefill", PREFILL, model=model, max_sequences=1, max_queued=MAX_QUEUED)
        running.start("prefill", DOOMED, model=model)
        running.start("decode", DECODE, model=model, max_sequences=4, kv_blocks=96)
        yield running
    finally:
        running.stop()


@pytest.fixture
async def edge(workers: Workers, model: Path) -> AsyncIterator[Edge]:
    async with edge_of(workers.nats_url, model.name) as edge:
        await edge.ready(*ALL)
        yield edge
        await edge.until_idle(*ALL)


async def is_queued(edge: Edge, request_id: str) -> bool:
    return any(held.request_id == request_id and held.kind == "queued" for held in await edge.held(PREFILL))


# ---- cancel, phase by phase ----


async def test_a_cancel_of_a_queued_prompt_removes_it(edge: Edge) -> None:
    blocking, queued = edge.new_id(), edge.new_id()
    await edge.prefill(blocking, PROMPT, decode=DECODE)
    await until(lambda: edge.streams[blocking, 1].ids, timeout_s=WAIT_S)
    await edge.prefill(queued, PROMPT, decode=DECODE)
    await until(lambda: is_queued(edge, queued), timeout_s=WAIT_S)
    ack = await edge.cancel("prefill", PREFILL, queued)
    assert (ack.held, ack.phase) == (True, "queued")
    ack = await edge.cancel("prefill", PREFILL, blocking)
    assert (ack.held, ack.phase) == (True, "transferring")
    assert not edge.streams[queued, 1].ids


async def test_a_cancel_right_after_placement_leaves_nothing(edge: Edge) -> None:
    """Whichever phase it meets."""
    for _ in range(5):
        request_id = edge.new_id()
        await asyncio.gather(
            edge.prefill(request_id, PROMPT, decode=DECODE), edge.reserve(request_id, PROMPT, decode=DECODE)
        )
        await asyncio.gather(
            edge.cancel("prefill", PREFILL, request_id), edge.cancel("decode", DECODE, request_id)
        )
    await edge.until_idle(*ALL)


async def test_a_cancel_of_a_reservation_frees_it_at_both_ends(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.reserve(request_id, PROMPT, decode=DECODE)
    ack = await edge.cancel("decode", DECODE, request_id)
    assert (ack.held, ack.phase) == (True, "transferring")
    await edge.until_idle(*ALL)


async def test_a_cancel_of_a_decoding_request_stops_its_tokens(edge: Edge) -> None:
    request_id = edge.new_id()
    stream = edge.streams[request_id, 1]
    await asyncio.gather(
        edge.prefill(request_id, PROMPT, decode=DECODE, how=LONG),
        edge.reserve(request_id, PROMPT, decode=DECODE, how=LONG),
    )
    await until(lambda: len(stream.ids) > 3, timeout_s=WAIT_S)
    ack = await edge.cancel("decode", DECODE, request_id)
    assert (ack.held, ack.phase) == (True, "decoding")
    await edge.until_idle(*ALL)
    assert stream.finish == ""
    assert len(stream.ids) < 440


async def test_a_broadcast_cancel_reaches_every_holder(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.prefill(request_id, PROMPT, decode=DECODE)
    await edge.bus.publish(CANCEL_ALL, Cancel("cancelled"), edge.bus.envelope(request_id, 1))
    await edge.until_idle(*ALL)


async def test_a_cancel_that_overtakes_its_request_still_wins(edge: Edge) -> None:
    request_id = edge.new_id()
    for role, instance in (("prefill", PREFILL), ("decode", DECODE)):
        ack = await edge.cancel(role, instance, request_id, epoch=2)
        assert (ack.held, ack.phase) == (False, "")
    with pytest.raises(Cancelled):
        await edge.prefill(request_id, PROMPT, decode=DECODE, epoch=2)
    with pytest.raises(Cancelled):
        await edge.reserve(request_id, PROMPT, decode=DECODE, epoch=1)


async def test_a_later_epoch_replaces_an_earlier_one(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.prefill(request_id, PROMPT, decode=DECODE, epoch=1)
    await edge.reserve(request_id, PROMPT, decode=DECODE, epoch=1)
    await asyncio.gather(
        edge.prefill(request_id, PROMPT, decode=DECODE, epoch=2),
        edge.reserve(request_id, PROMPT, decode=DECODE, epoch=2),
    )
    await until(lambda: edge.streams[request_id, 2].finish, timeout_s=WAIT_S)
    assert edge.streams[request_id, 2].token_ids


async def test_an_earlier_epoch_is_refused_while_a_later_one_is_here(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.prefill(request_id, PROMPT, decode=DECODE, epoch=2)
    with pytest.raises(StaleEpoch):
        await edge.prefill(request_id, PROMPT, decode=DECODE, epoch=1)
    await edge.cancel("prefill", PREFILL, request_id, epoch=2)


# ---- deadlines ----


async def test_kv_that_nobody_takes_in_time_expires_at_prefill(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.prefill(request_id, PROMPT, decode=DECODE, seconds=0.4)
    lost = await edge.lost(request_id)
    assert (lost.code, lost.hop) == ("expired", "prefill")


async def test_a_prompt_that_waits_too_long_expires_in_the_queue(edge: Edge) -> None:
    blocking, queued = edge.new_id(), edge.new_id()
    await edge.prefill(blocking, PROMPT, decode=DECODE)
    await until(lambda: edge.streams[blocking, 1].ids, timeout_s=WAIT_S)
    await edge.prefill(queued, PROMPT, decode=DECODE, seconds=0.4)
    lost = await edge.lost(queued)
    assert (lost.code, lost.hop) == ("expired", "prefill")
    assert "queue" in lost.message
    await edge.cancel("prefill", PREFILL, blocking)


async def test_a_reservation_without_kv_expires_at_decode(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.reserve(request_id, PROMPT, decode=DECODE, seconds=0.4)
    lost = await edge.lost(request_id)
    assert (lost.code, lost.hop) == ("expired", "decode")


async def test_a_running_request_expires_between_two_steps(edge: Edge) -> None:
    seconds = 1.0
    for _ in range(
        20
    ):  # how long this machine takes for the first and the last of 440 tokens is found by trying
        request_id = edge.new_id()
        stream = edge.streams[request_id, 1]
        await edge.prefill(request_id, PROMPT, decode=DECODE, how=LONG)
        await edge.reserve(request_id, PROMPT, decode=DECODE, how=LONG, seconds=seconds)
        await edge.ended(request_id)
        if stream.lost is not None and stream.ids:
            break
        seconds *= 0.6 if stream.finish else 1.5
    assert stream.lost is not None
    assert (stream.lost.code, stream.lost.hop) == ("expired", "decode")
    assert 0 < len(stream.ids) < 440
    assert stream.finish == ""


async def test_a_request_that_comes_too_late_is_refused(edge: Edge) -> None:
    with pytest.raises(DeadlineExpired):
        await edge.prefill(edge.new_id(), PROMPT, decode=DECODE, seconds=-1.0)


# ---- admission ----


async def test_a_full_prefill_queue_refuses_with_a_hint(edge: Edge) -> None:
    """Who asks the engine for the first time has left the queue, and is put back into it above the limit."""
    ids = [edge.new_id()]
    await edge.prefill(ids[0], PROMPT, decode=DECODE)
    await until(lambda: edge.streams[ids[0], 1].ids, timeout_s=WAIT_S)

    async def send_more() -> None:
        for _ in range(MAX_QUEUED + 2):
            ids.append(edge.new_id())
            await edge.prefill(ids[-1], PROMPT, decode=DECODE)

    with pytest.raises(Overloaded) as refused:
        await send_more()
    assert refused.value.retry_after_ms > 0
    assert refused.value.hop == "prefill"
    for request_id in reversed(ids[:-1]):
        await edge.cancel("prefill", PREFILL, request_id)


async def test_a_full_decode_worker_refuses_by_sequences_and_by_blocks(edge: Edge) -> None:
    small = [edge.new_id() for _ in range(4)]
    for request_id in small:
        await edge.reserve(request_id, PROMPT, decode=DECODE)
    with pytest.raises(Overloaded, match="sequences"):
        await edge.reserve(edge.new_id(), PROMPT, decode=DECODE)
    for request_id in small:
        await edge.cancel("decode", DECODE, request_id)
    await edge.until_idle(DECODE)
    large = [edge.new_id() for _ in range(3)]  # 32 of 96 blocks each
    for request_id in large:
        await edge.reserve(request_id, [5] * 480, decode=DECODE, how=LONG)
    with pytest.raises(Overloaded, match="blocks"):
        await edge.reserve(edge.new_id(), PROMPT, decode=DECODE, how=LONG)
    for request_id in large:
        await edge.cancel("decode", DECODE, request_id)


@pytest.mark.parametrize(
    ("ids", "word"), [([1, 100_000], "vocabulary"), ([5] * 600, "shorten")], ids=["bad-id", "too-long"]
)
async def test_a_prompt_that_cannot_run_is_an_invalid_request(edge: Edge, ids: list[int], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        await edge.prefill(edge.new_id(), ids, decode=DECODE)
    with pytest.raises(InvalidRequest, match=word):
        await edge.reserve(edge.new_id(), ids, decode=DECODE)


async def test_warming_makes_the_prefix_ready(edge: Edge) -> None:
    ids = list(range(100, 180))
    await edge.until_idle(*ALL)
    warm = Warm(pack_ids(ids), edge.hashes(ids), GATEWAY)
    for role, instance in (("prefill", PREFILL), ("decode", DECODE)):
        envelope = edge.bus.envelope(edge.new_id(), WARM_EPOCH, Deadline.after(WAIT_S), GATEWAY)
        await edge.bus.publish(inbox(role, instance), warm, envelope)

    def are_warm() -> bool:
        views = (edge.fleet.get("prefill", PREFILL), edge.fleet.get("decode", DECODE))
        return all(view is not None and view.overlap(hashes_of(ids, edge.layout)) == 5 for view in views)

    await until(are_warm, timeout_s=WAIT_S)
    request_id = edge.new_id()
    assert (await edge.prefill(request_id, ids, decode=DECODE)).cached_tokens == 64
    await edge.cancel("prefill", PREFILL, request_id)
    accepted = await edge.reserve(request_id, ids, decode=DECODE, prefill="", epoch=2)
    assert accepted.cached_tokens == 64
    await edge.cancel("decode", DECODE, request_id, epoch=2)


async def tell_to_warm(edge: Edge, request_id: str, ids: list[int], seconds: float = WAIT_S) -> None:
    envelope = edge.bus.envelope(request_id, WARM_EPOCH, Deadline.after(seconds), GATEWAY)
    await edge.bus.publish(
        inbox("prefill", PREFILL), Warm(pack_ids(ids), edge.hashes(ids), GATEWAY), envelope
    )


async def test_what_is_warmed_can_be_cancelled_before_it_comes_and_after(edge: Edge) -> None:
    await edge.until_idle(*ALL)
    early, late = edge.new_id(), edge.new_id()
    ids = list(range(200, 280))
    ack = await edge.cancel("prefill", PREFILL, early, epoch=WARM_EPOCH)
    assert (ack.held, ack.phase) == (False, "")
    await tell_to_warm(edge, early, ids)
    await tell_to_warm(edge, late, list(range(100, 500)))
    await edge.cancel("prefill", PREFILL, late, epoch=WARM_EPOCH)
    await edge.until_idle(PREFILL)
    request_id = edge.new_id()
    assert (await edge.prefill(request_id, ids, decode=DECODE)).cached_tokens == 0
    await edge.cancel("prefill", PREFILL, request_id)


async def test_what_would_be_warmed_too_late_is_not(edge: Edge) -> None:
    await edge.until_idle(*ALL)
    ids = list(range(300, 380))
    await tell_to_warm(edge, edge.new_id(), ids, seconds=-1.0)
    await edge.until_idle(PREFILL)
    request_id = edge.new_id()
    assert (await edge.prefill(request_id, ids, decode=DECODE)).cached_tokens == 0
    await edge.cancel("prefill", PREFILL, request_id)


# ---- the bus ----


async def test_garbage_on_the_inbox_harms_nobody(edge: Edge, workers: Workers) -> None:
    connection = edge.bus._connection
    for role, instance in (("prefill", PREFILL), ("decode", DECODE)):
        for garbage in (b"", b"\xc1\xff garbage", b"\x98\xa7Prefill\x01", bytes(4096)):
            await connection.publish(subject_of(inbox(role, instance), "Prefill", NOBODY), garbage, "")
    stream = await edge.generate(PROMPT, decode=DECODE)
    assert stream.finish
    assert all(workers.alive(instance) for instance in ALL)


async def test_a_message_for_another_role_is_refused(edge: Edge) -> None:
    for role, instance in (("prefill", PREFILL), ("decode", DECODE)):
        with pytest.raises(UnknownMessage):
            await edge.ask(role, instance, Retrieve("q", 1, may_degrade=True))


# ---- dead peers ----


async def test_what_a_gateway_held_is_freed_when_it_ends(edge: Edge) -> None:
    request_id = edge.new_id()
    await edge.prefill(request_id, PROMPT, decode=DECODE)
    await edge.reserve(request_id, PROMPT, decode=DECODE)
    await edge.gateway.stop()
    await edge.until_idle(*ALL)


async def test_a_prefill_worker_killed_in_transfer_loses_the_request_and_frees_decode(
    edge: Edge, workers: Workers
) -> None:
    await edge.ready(DOOMED)
    request_id = edge.new_id()
    await edge.reserve(request_id, PROMPT, decode=DECODE, prefill=DOOMED)
    workers.kill(DOOMED)
    lost = await edge.lost(request_id)
    assert lost.code == "unavailable"
    await edge.until_idle(DECODE)


@pytest.mark.thorough(but="cpus-decode | offload-prefill | tensor-parallel-decode")
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tensor_parallel": 2}, "set it to 1"),
        ({"cpus": "4095"}, "4095"),
        ({"offload_disk_mb": 1}, "together"),
    ],
    ids=["tensor-parallel", "cpus", "offload"],
)
async def test_a_worker_that_cannot_be_ends_with_one_sentence(
    workers: Workers, model: Path, role: str, options: dict[str, object], fault: str
) -> None:
    name = f"{role}-impossible-{next(iter(options)).replace('_', '-')}"
    workers.start(role, name, model=model, **options)
    await until(lambda: not workers.alive(name), timeout_s=START_TIMEOUT_S)
    assert workers.processes[name].wait(WAIT_S) > 0
    said = [line for line in workers.log(name).splitlines() if line.startswith(f"penstock {role}: ")]
    assert len(said) == 1
    assert fault in said[0]
    assert "Traceback" not in workers.log(name)


async def test_a_drained_worker_takes_nothing_new_finishes_and_ends_cleanly(
    edge: Edge, workers: Workers, model: Path
) -> None:
    workers.start("prefill", "prefill-drained", model=model)
    await edge.ready("prefill-drained")
    request_id = edge.new_id()
    await edge.prefill(request_id, PROMPT, prefill="prefill-drained", decode=DECODE)
    await edge.ask("prefill", "prefill-drained", Drain())
    with pytest.raises(Overloaded, match="draining"):
        await edge.prefill(edge.new_id(), PROMPT, prefill="prefill-drained", decode=DECODE)
    await edge.reserve(request_id, PROMPT, prefill="prefill-drained", decode=DECODE)
    await until(lambda: edge.streams[request_id, 1].finish, timeout_s=WAIT_S)
    await until(lambda: not workers.alive("prefill-drained"), timeout_s=WAIT_S)
    assert workers.processes["prefill-drained"].returncode == 0


async def test_a_stream_outlives_the_sigterm_of_its_decode_worker(
    edge: Edge, workers: Workers, model: Path
) -> None:
    workers.start("decode", "decode-drained", model=model, drain_timeout_s=80)  # on a slow machine
    await edge.ready("decode-drained")
    request_id = edge.new_id()
    stream = edge.streams[request_id, 1]
    await asyncio.gather(
        edge.prefill(request_id, PROMPT, decode="decode-drained", how=LONG),
        edge.reserve(request_id, PROMPT, decode="decode-drained", how=LONG),
    )
    await until(lambda: len(stream.ids) > 3, timeout_s=WAIT_S)
    exit_code = await asyncio.to_thread(workers.terminate, "decode-drained")
    await until(lambda: stream.finish or stream.lost, timeout_s=WAIT_S)
    assert (exit_code, stream.lost, stream.finish, len(stream.token_ids)) == (0, None, "length", 440)
