"""Prompt → prefill → KV → decode, with and without drafts, against transformers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from shared.actor.lease import LEASE_S
from shared.bus import Delivery
from shared.bus.subjects import inbox
from shared.degradation import DegradationLevel
from shared.engine import LLM, SamplingParams
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.native.library import library, native_name
from shared.messages import (
    DraftBlock,
    DraftClose,
    DraftCommit,
    DraftOpen,
    DraftResync,
    Heartbeat,
    Message,
    ModelLevel,
    pack_ids,
)
from shared.process.cores import usable_cores
from shared.text.model_source import resolve_model
from shared.worker.drafts.draft_tree import DraftTree, trees_of
from tests.integration.workers_harness import WAIT_S, Edge, Stream, Workers, edge_of
from tests.support.heartbeats import heartbeat_with
from tests.support.models import draft_of
from tests.support.oracle import Oracle
from tests.support.sampling import sampling
from tests.support.wait import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the processes, on whatever machine
PREFILL, SPECULATOR, PLAYED = "prefill-0", "speculator-0", "played-by-the-test"
DECODES = ("decode-nats", "decode-shm")
SUSPECT = "fleet_suspect"
"""The log event of an instance that has not heard of another for too long."""
PROMPTS = (
    "O",
    "Once upon a time",
    "Lily and Tom went to the big park to play with the red ball. They were very happy",
    "The dog ran after the cat. " * 12,
)


@pytest.fixture(scope="module")
def oracle(model: Path) -> Oracle:
    torch.set_num_threads(1)
    return Oracle(model)


@pytest.fixture(scope="module")
def draft(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that is often wrong."""
    return draft_of(model, tmp_path_factory.mktemp("draft") / "draft", layers=3)


@pytest.fixture(scope="module")
def workers(model: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    running = Workers(tmp_path_factory.mktemp("logs"))
    try:
        running.start("prefill", PREFILL, model=model, max_batch_tokens=64)
        for name in DECODES:
            running.start("decode", name, model=model, kv_transport=name.partition("-")[2])
        running.start("speculator", SPECULATOR, model=draft)
        yield running
    finally:
        running.stop()


@pytest.fixture
async def edge(workers: Workers, model: Path) -> AsyncIterator[Edge]:
    async with edge_of(workers.nats_url, model.name) as edge:
        await edge.ready(PREFILL, *DECODES, SPECULATOR)
        yield edge
        await edge.until_idle(PREFILL, *DECODES, SPECULATOR)


async def test_workers_announce_the_checkpoint_that_they_have_loaded(
    edge: Edge, model: Path, draft: Path
) -> None:
    announced = {}
    for role, instance in (("prefill", PREFILL), ("decode", DECODES[0]), ("speculator", SPECULATOR)):
        view = edge.fleet.get(role, instance)
        assert view is not None
        announced[role] = (view.heartbeat.weights_digest, view.heartbeat.tokenizer_digest)
    assert announced["prefill"] == announced["decode"]
    assert announced["decode"] == (checkpoint_digest(model), resolve_model(str(model)).tokenizer_digest())
    assert announced["speculator"][0] == checkpoint_digest(draft) != checkpoint_digest(model)


def assert_greedy(oracle: Oracle, prompts: Sequence[list[int]], streams: Sequence[Stream]) -> None:
    for ids, stream in zip(prompts, streams, strict=True):
        assert stream.token_ids == oracle.greedy(ids, 40, stream.token_ids)


async def play_speculator(edge: Edge, answer: Callable[[DraftCommit], Awaitable[DraftBlock]]) -> None:
    """Answer each commit as `answer` does."""
    answers: set[asyncio.Task[None]] = set()

    async def send(commit: DraftCommit) -> None:
        await edge.bus.publish(inbox("decode", commit.decode), await answer(commit))

    def receive(delivery: Delivery) -> None:
        if isinstance(delivery.message, DraftCommit):
            task = asyncio.create_task(send(delivery.message))
            answers.add(task)
            task.add_done_callback(answers.discard)

    await edge.bus.serve(inbox("speculator", PLAYED), receive)


async def play_decode(edge: Edge) -> list[Message]:
    """What a speculator says to a decode worker."""
    answers: list[Message] = []
    await edge.bus.serve(inbox("decode", PLAYED), lambda delivery: answers.append(delivery.message))
    return answers


@pytest.mark.thorough(but="decode-nats-no-drafts | decode-shm-drafts")
@pytest.mark.parametrize("speculator", ["", SPECULATOR], ids=["no-drafts", "drafts"])
@pytest.mark.parametrize("decode", DECODES)
async def test_greedy_tokens_equal_those_of_transformers(
    edge: Edge, oracle: Oracle, decode: str, speculator: str
) -> None:
    prompts = [oracle.encode(text) for text in PROMPTS]
    streams = await asyncio.gather(
        *(edge.generate(ids, decode=decode, speculator=speculator) for ids in prompts)
    )
    assert_greedy(oracle, prompts, streams)
    assert [min(stream.ids) for stream in streams] == [len(ids) for ids in prompts]


async def test_a_prompt_cancelled_among_others_leaves_those_as_they_are(edge: Edge, oracle: Oracle) -> None:
    """Four prompts of several chunks each are computed side by side."""
    prompts = [oracle.encode(f"{name} ran after the cat. " * 30)[:280] for name in "ABCD"]
    cancelled, *others = (edge.new_id() for _ in prompts)
    await asyncio.gather(
        *(edge.prefill(name, ids) for name, ids in zip((cancelled, *others), prompts, strict=True)),
        *(edge.reserve(name, ids) for name, ids in zip((cancelled, *others), prompts, strict=True)),
    )
    await edge.cancel("prefill", PREFILL, cancelled)
    await edge.cancel("decode", "decode-nats", cancelled)
    streams = [edge.streams[name, 1] for name in others]
    await until(lambda: all(stream.finish for stream in streams), timeout_s=WAIT_S)
    assert_greedy(oracle, prompts[1:], streams)


LOCAL_CASES = {
    "greedy": sampling(max_tokens=40),
    "sampled": sampling(temperature=1.0, top_p=0.95, seed=7, max_tokens=60, ignore_eos=True),
    "penalties": sampling(
        temperature=0.8, seed=3, max_tokens=40, presence_penalty=0.5, repetition_penalty=1.3
    ),
    "one token": sampling(max_tokens=1),
    "log-probabilities": sampling(max_tokens=8, logprobs=2, prompt_logprobs=1),
}


@pytest.mark.thorough(but="penalties | log-probabilities")
@pytest.mark.parametrize("how", LOCAL_CASES.values(), ids=LOCAL_CASES)
async def test_prompts_that_decode_computes_get_the_same_tokens_as_those_of_prefill(
    edge: Edge, oracle: Oracle, how: SamplingParams
) -> None:
    """Side by side, so that chunks of some share steps with rows of others; without drafts, and with them."""
    prompts = [oracle.encode(text) for text in PROMPTS]
    apart = [await edge.generate(ids, how=how) for ids in prompts]
    for speculator in ("", SPECULATOR):
        local = await asyncio.gather(
            *(edge.generate(ids, prefill="", how=how, speculator=speculator) for ids in prompts)
        )
        assert [stream.token_ids for stream in local] == [stream.token_ids for stream in apart]
        assert [stream.finish for stream in local] == [stream.finish for stream in apart]
        assert [min(stream.ids) for stream in local] == [len(ids) for ids in prompts]


async def test_the_next_turn_of_a_chat_is_cached_where_its_answer_was_decoded(
    edge: Edge, oracle: Oracle
) -> None:
    """Prompt and answer: a prefill worker would know the prompt alone."""
    prompt = oracle.encode("Once there was a chat about a frog. " * 5)
    how = sampling(max_tokens=40, ignore_eos=True)
    answer = (await edge.generate(prompt, how=how)).token_ids
    turn = [*prompt, *answer, *oracle.encode(" And then")]
    request_id = edge.new_id()
    accepted = await edge.reserve(request_id, turn, prefill="")
    assert accepted.cached_tokens == (len(prompt) + len(answer) - 1) // 16 * 16
    assert (await edge.ended(request_id)).token_ids == oracle.greedy(turn, 40)


async def test_a_worker_that_is_killed_while_it_computes_a_prompt_is_replaced_by_another(
    edge: Edge, workers: Workers, model: Path, oracle: Oracle
) -> None:
    workers.start("decode", "decode-mortal", model=model, max_batch_tokens=64)
    await edge.ready("decode-mortal")
    prompt = oracle.encode("The dog ran after the cat. " * 40)[:400]
    request_id = edge.new_id()
    await edge.reserve(request_id, prompt, prefill="", decode="decode-mortal")
    workers.kill("decode-mortal")
    drawn = edge.streams[request_id, 1].token_ids if edge.streams[request_id, 1].ids else []
    await edge.reserve(request_id, [*prompt, *drawn], prefill="", epoch=2, prompt_len=len(prompt))
    stream = await edge.ended(request_id, epoch=2)
    assert drawn + stream.token_ids == oracle.greedy(prompt, 40, drawn + stream.token_ids)


@pytest.mark.thorough(but="drafts")
@pytest.mark.parametrize("speculator", ["", SPECULATOR], ids=["no-drafts", "drafts"])
async def test_a_request_with_nothing_left_to_draw_says_so_behind_its_tokens(
    edge: Edge, oracle: Oracle, speculator: str
) -> None:
    ids = oracle.encode("Once upon a time")
    one, other = ids[1:3]
    how = sampling(allowed_ids=(one, other), bad_words=((one, one), (other, other), (one, other, one)))
    how = dataclasses.replace(how, bad_words=(*how.bad_words, (other, one, other)))
    stream = await edge.generate(ids, how=how, speculator=speculator)
    assert stream.finish == "error"
    assert stream.token_ids in ([one, other], [other, one])


async def test_the_same_seed_gives_the_same_tokens_with_and_without_drafts(
    edge: Edge, oracle: Oracle
) -> None:
    ids = oracle.encode(PROMPTS[1])
    how = sampling(temperature=1.0, top_p=0.95, seed=7, max_tokens=60, ignore_eos=True)
    plain = await edge.generate(ids, how=how)
    drafted = await edge.generate(ids, how=how, speculator=SPECULATOR, decode="decode-shm")
    other = await edge.generate(ids, how=sampling(temperature=1.0, seed=8, max_tokens=60, ignore_eos=True))
    assert drafted.token_ids == plain.token_ids
    assert other.token_ids != plain.token_ids


async def test_accepted_drafts_make_steps_of_several_tokens(edge: Edge, oracle: Oracle) -> None:
    prompt = oracle.encode(PROMPTS[1])
    expected = oracle.greedy(prompt, 150)

    async def know_it_all(commit: DraftCommit) -> DraftBlock:
        base = commit.bases[0] + len(commit.token_ids[0])
        guess = tuple(expected[base - len(prompt) :][:60])
        return DraftBlock(commit.request_ids, commit.epochs, (base,), (guess,))

    await play_speculator(edge, know_it_all)

    async def drafts_came_in_time() -> bool:
        stream = await edge.generate(prompt, how=sampling(max_tokens=150), speculator=PLAYED)
        counts = {mark.phase: mark.duration_us for mark in stream.marks if mark.phase.startswith("count:")}
        assert stream.token_ids == expected
        assert counts["count:draft_proposed"] >= counts["count:draft_accepted"]
        assert stream.steps == len(expected) - counts["count:draft_accepted"]
        return counts["count:draft_accepted"] > 0

    await until(drafts_came_in_time, timeout_s=WAIT_S)


async def test_a_decode_worker_drafts_no_more_while_a_gateway_says_so_of_its_model(edge: Edge) -> None:
    asked: list[Message] = []
    await edge.bus.serve(inbox("speculator", PLAYED), lambda delivery: asked.append(delivery.message))
    calm, worker = edge.gateway.status(), edge.fleet.get("decode", DECODES[0])
    assert worker is not None
    served = worker.heartbeat

    def say(level: DegradationLevel, weights: str = served.weights_digest) -> None:
        told = ModelLevel(served.model, weights, int(level))
        edge.gateway.status = lambda: heartbeat_with(calm, model_levels=(told,))
        edge.gateway.changed()

    async def drafts_are(wanted: bool) -> bool:
        asked.clear()
        await edge.generate([5, 6, 7], how=sampling(max_tokens=4, ignore_eos=True), speculator=PLAYED)
        return any(isinstance(message, DraftCommit) for message in asked) is wanted

    await until(lambda: drafts_are(True), timeout_s=WAIT_S)
    say(DegradationLevel.NO_DRAFTS)
    await until(lambda: drafts_are(False), timeout_s=WAIT_S)
    say(DegradationLevel.NO_DRAFTS, weights="of another model")
    await until(lambda: drafts_are(True), timeout_s=WAIT_S)


async def test_prefill_measures_its_rate_by_chunks_and_not_by_tiny_prompts(edge: Edge) -> None:
    def beat() -> Heartbeat:
        view = edge.fleet.get("prefill", PREFILL)
        assert view is not None
        return view.heartbeat

    now_us = time.time_ns() // 1000
    await until(lambda: beat().sent_unix_us > now_us)  # it tells of all that was before
    before = beat()
    await edge.generate([5, 6, 7])
    await until(lambda: beat().steps > before.steps)
    assert beat().worker.tokens_per_s == before.worker.tokens_per_s
    await edge.generate([5, 6, 7] * 60)
    await until(lambda: beat().worker.tokens_per_s != before.worker.tokens_per_s)
    assert beat().worker.best_tokens_per_s >= beat().worker.tokens_per_s > 0


async def test_a_worker_tells_how_many_threads_it_has(edge: Edge) -> None:
    for role, instance in (("prefill", PREFILL), ("decode", DECODES[0])):
        view = edge.fleet.get(role, instance)
        assert view is not None
        most = usable_cores() if library() is not None else max(1, usable_cores() // 2)
        assert view.heartbeat.worker.most_threads == most
        assert 1 <= view.heartbeat.worker.threads <= usable_cores()


async def test_a_worker_tells_which_backend_computes(edge: Edge) -> None:
    for role, instance in (("prefill", PREFILL), ("decode", DECODES[0])):
        view = edge.fleet.get(role, instance)
        assert view is not None
        native = native_name()
        assert view.heartbeat.worker.backend == (native if library() is not None else "torch")


async def test_a_lying_speculator_changes_nothing(edge: Edge, oracle: Oracle) -> None:
    prompt = oracle.encode(PROMPTS[2])
    lies = itertools.cycle([(5, 6, 7), (10**6,), (), tuple(range(2000)), (3,) * 40])

    async def lie(commit: DraftCommit) -> DraftBlock:
        base = commit.bases[0] + len(commit.token_ids[0]) + next(offsets)
        return DraftBlock(commit.request_ids, commit.epochs, (base,), (next(lies),))

    offsets = itertools.cycle([0, 0, 0, 1, 10**9])
    await play_speculator(edge, lie)
    stream = await edge.generate(prompt, how=sampling(max_tokens=80), speculator=PLAYED)
    assert stream.token_ids == oracle.greedy(prompt, 80, stream.token_ids)


@pytest.mark.thorough
async def test_a_speculator_that_stood_still_keeps_no_draft_of_requests_that_went_on_without_it(
    edge: Edge, workers: Workers
) -> None:
    """A lease would end it much later."""
    lost, decode, how = asyncio.Event(), DECODES[0], sampling(max_tokens=440, ignore_eos=True)

    async def generate_on() -> None:
        while not lost.is_set():
            await edge.generate(list(range(10, 60)), decode=decode, speculator=SPECULATOR, how=how)

    loads = [asyncio.create_task(generate_on()) for _ in range(2)]
    await until(lambda: edge.held(SPECULATOR), timeout_s=WAIT_S)
    suspicions = workers.log(decode).count(SUSPECT)
    workers.processes[SPECULATOR].send_signal(signal.SIGSTOP)
    try:
        await until(lambda: workers.log(decode).count(SUSPECT) > suspicions, timeout_s=WAIT_S)
    finally:
        workers.processes[SPECULATOR].send_signal(signal.SIGCONT)
        lost.set()
        await asyncio.gather(*loads)

    async def keeps_nothing() -> bool:
        return not await edge.held(SPECULATOR)

    await until(keeps_nothing, timeout_s=LEASE_S / 2)


async def test_the_speculator_drafts_as_its_model_would_draw(edge: Edge, draft: Path) -> None:
    answers = await play_decode(edge)
    ids = list(range(20, 60))
    await edge.tell_speculator(SPECULATOR, DraftOpen(pack_ids(ids), 40, sampling(seed=3), PLAYED), "d.1", 1)
    await edge.tell_speculator(
        SPECULATOR, DraftCommit(PLAYED, ("d.1", "d.unknown"), (1, 1), (40, 40), ((7,), ()), (5, 5))
    )
    await until(lambda: len(answers) == 2, timeout_s=WAIT_S)
    (expected,) = LLM(draft).generate([[*ids, 7]], SamplingParams(temperature=0.0, max_tokens=5))
    assert DraftResync(("d.unknown",), (1,)) in answers
    (block,) = (answer for answer in answers if isinstance(answer, DraftBlock))
    ((request_id, epoch, tree, took_us),) = trees_of(block)
    assert (request_id, epoch, tree) == ("d.1", 1, DraftTree(41, tuple(expected.token_ids)))
    assert took_us > 0
    await edge.tell_speculator(SPECULATOR, DraftClose(("d.1",), (1,)))


async def test_a_session_the_draft_model_cannot_follow_is_dropped(edge: Edge) -> None:
    answers = await play_decode(edge)
    foreign = DraftOpen(pack_ids([5, 10**6]), 2, sampling(), PLAYED)
    commit = DraftCommit(PLAYED, ("d.2",), (1,), (2,), ((),), (4,))
    await edge.tell_speculator(SPECULATOR, foreign, "d.2", 1)

    async def unknown_again() -> bool:
        await edge.tell_speculator(SPECULATOR, commit)
        return bool(answers)

    await until(unknown_again, timeout_s=WAIT_S)
    assert answers[0] == DraftResync(("d.2",), (1,))


async def test_the_first_rows_carry_the_phases_of_their_hops(edge: Edge, oracle: Oracle) -> None:
    stream = await edge.generate(oracle.encode(PROMPTS[1]))
    phases = [mark.phase for mark in stream.marks if not mark.phase.startswith("count:")]
    assert phases == ["prefill.queue", "prefill.compute", "kv.transfer", "decode.queue"]


@pytest.mark.parametrize(
    ("how", "finish", "count"),
    [(sampling(max_tokens=1), "length", 1), (sampling(max_tokens=2), "length", 2)],
    ids=["one", "two"],
)
async def test_a_request_may_end_with_its_first_tokens(
    edge: Edge, oracle: Oracle, how: SamplingParams, finish: str, count: int
) -> None:
    ids = oracle.encode(PROMPTS[2])
    stream = await edge.generate(ids, how=how)
    assert (stream.finish, stream.token_ids) == (finish, oracle.greedy(ids, count))


async def test_the_context_limit_ends_a_request_with_length(edge: Edge, oracle: Oracle) -> None:
    ids = (oracle.encode(PROMPTS[3]) * 4)[: oracle.context_tokens - 5]
    stream = await edge.generate(ids, how=sampling(ignore_eos=True), decode="decode-shm")
    assert (stream.finish, len(stream.token_ids)) == ("length", 5)


async def test_a_continued_request_goes_on_where_its_token_log_ends(edge: Edge, oracle: Oracle) -> None:
    ids = oracle.encode(PROMPTS[1])
    expected = oracle.greedy(ids, 40)
    stream = await edge.generate(ids + expected[:13], prompt_len=len(ids), speculator=SPECULATOR)
    assert stream.token_ids == expected[13:]
    assert min(stream.ids) == len(ids) + 13


async def test_blocks_that_decode_has_are_not_sent_again(edge: Edge, oracle: Oracle) -> None:
    ids = oracle.encode("A prompt of its own that nobody else uses, to be asked for twice, in this test.")
    first = await edge.generate(ids)
    request_id = edge.new_id()
    prefilled, reserved = await asyncio.gather(edge.prefill(request_id, ids), edge.reserve(request_id, ids))
    assert prefilled.cached_tokens >= len(ids) // 16 * 16 - 16 > 0
    assert reserved.cached_tokens == len(ids) // 16 * 16
    stream = edge.streams[request_id, 1]

    await until(lambda: stream.finish, timeout_s=WAIT_S)
    assert stream.token_ids == first.token_ids


@pytest.mark.thorough(but="decode-shm")
@pytest.mark.parametrize("decode", DECODES)
async def test_requests_that_share_a_prefix_nobody_has_yet_are_all_exact(
    edge: Edge, oracle: Oracle, decode: str
) -> None:
    """One computes the prefix; the others send what they have of it."""
    prefix = oracle.encode(f"For {decode} alone the cat ran after the dog. " * 20)[:270]
    prompts = [prefix + oracle.encode(end) for end in ("One", "Then two", "At last there were three")]
    streams = await asyncio.gather(*(edge.generate(ids, decode=decode) for ids in prompts))
    assert_greedy(oracle, prompts, streams)


async def test_many_requests_at_once_are_all_exact(edge: Edge, oracle: Oracle) -> None:
    prompts = [oracle.encode(PROMPTS[2])[: 3 + index] for index in range(12)]
    streams = await asyncio.gather(
        *(
            edge.generate(ids, decode=DECODES[index % 2], speculator=SPECULATOR if index % 3 else "")
            for index, ids in enumerate(prompts)
        )
    )
    assert_greedy(oracle, prompts, streams)
