"""Real retrievers that stop and die in mid-question: a request loses its share for retrieval at most."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from shared.bus import Delivery
from shared.bus.subjects import inbox
from shared.messages import Retrieve
from tests.integration.gateway_peers import Fleet, Running, ask, fleet, gateway
from tests.support.client import Answer, generate
from tests.support.forked import ForkedProcess, start_forked
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer")
START_TIMEOUT_S = 100.0
TTFT_MS = 60_000
SHARE = 0.1


class Retrievers:
    """Processes by name, and which of them the gateway has asked."""

    def __init__(self, processes: dict[str, ForkedProcess], peers: Fleet, running: Running) -> None:
        self.processes = processes
        self.peers = peers
        self.running = running
        self.asked: list[str] = []

    def note(self, name: str, delivery: Delivery) -> None:
        if isinstance(delivery.message, Retrieve):
            self.asked.append(name)

    async def answer(self, call: asyncio.Task[Answer]) -> Answer:
        """Of the request, when workers have computed it."""
        envelope, prefill = await self.peers.placed()
        await self.peers.text(envelope.request_id, len(prefill.token_ids) // 4, "a", finish="stop")
        return await call

    def begin(self) -> asyncio.Task[Answer]:
        message = ask("Which port does the gate have?")
        message.retrieval.enabled, message.ttft_deadline_ms = True, TTFT_MS
        return asyncio.create_task(generate(self.running.stub, message))

    async def first_asked(self) -> str:
        return str(await until(lambda: next(iter(self.asked), "")))


@asynccontextmanager
async def retrievers(nats_url: str, folder: Path, count: int) -> AsyncIterator[Retrievers]:
    """So many over one corpus; nothing is left of them."""
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "gate.md").write_text("# Port\nThe port of the gate is 50051.\n")
    names = [f"retriever-{number}" for number in range(count)]
    processes = {name: process(nats_url, name, corpus, folder) for name in names}
    try:
        async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, retrieve_share=SHARE) as running:
            for role in ROLES:
                await running.knows(role, 1)
            await until(lambda: len(running.fleet.instances("retriever")) == count, timeout_s=START_TIMEOUT_S)
            found = Retrievers(processes, peers, running)
            for name in names:
                await peers.bus.serve(inbox("retriever", name), partial(found.note, name))
            yield found
    finally:
        for each in processes.values():
            each.kill()  # also what is stopped
            each.wait(timeout=60)


def process(nats_url: str, name: str, corpus: Path, folder: Path) -> ForkedProcess:
    environ = {
        "PENSTOCK_NATS_URL": nats_url,
        "PENSTOCK_INSTANCE": name,
        "PENSTOCK_RETRIEVER_CORPUS": str(corpus),
        "PENSTOCK_RETRIEVER_STATE_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    return start_forked("services.retriever", {**os.environ, **environ}, folder / f"{name}.log")


def sources(answer: Answer) -> list[str]:
    assert answer.prompt is not None
    return [passage.source for passage in answer.prompt.passages]


@pytest.mark.thorough(but="19")
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_when_a_retriever_stops_or_dies_in_mid_question_another_one_finds_the_passages(
    nats_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    async with retrievers(nats_url, tmp_path, 2) as running:
        for each in running.processes.values():
            each.send_signal(signal.SIGSTOP)
        call = running.begin()
        first = await running.first_asked()
        running.processes[first].send_signal(how)
        (other,) = set(running.processes) - {first}
        running.processes[other].send_signal(signal.SIGCONT)
        answer = await running.answer(call)
        assert running.asked == [first, other]
    assert sources(answer) == ["gate.md § Port"]  # within the share: else there would be none


@pytest.mark.thorough(but="9")
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_the_only_retriever_that_stops_or_dies_in_mid_question_costs_its_share_at_most(
    nats_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    async with retrievers(nats_url, tmp_path, 1) as running:
        running.processes["retriever-0"].send_signal(signal.SIGSTOP)
        call = running.begin()
        await running.first_asked()
        running.processes["retriever-0"].send_signal(how)
        answer = await running.answer(call)
    assert sources(answer) == []
    assert answer.prompt is not None
    assert (answer.prompt.degraded, answer.outcome) == ("retrieval", "finished")
