"""Adapters at real workers: loaded and unloaded while they serve, and answers as computed in one process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.bus.subjects import inbox
from shared.engine import Engine
from shared.errors import Overloaded
from shared.files.adapter_file import WantedAdapter, put_adapters, remove_adapter
from shared.messages import (
    NO_ADAPTER,
    AdapterId,
    AdapterReport,
    DraftBlock,
    DraftClose,
    DraftCommit,
    DraftOpen,
    Message,
    pack_ids,
)
from shared.sampling.parameters import SamplingParams
from shared.worker.drafts.draft_tree import DraftTree, trees_of
from tests.integration.workers_harness import GREEDY, WAIT_S, Edge, Workers, edge_of
from tests.support.adapters import save_adapter
from tests.support.engine import drive, make_engine
from tests.support.models import draft_of
from tests.support.sampling import sampling
from tests.support.wait import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the processes, on whatever machine
PREFILL, DECODE, SPECULATOR, PLAYED = "prefill-0", "decode-nats", "speculator-0", "played-by-the-test"
WORKERS = (PREFILL, DECODE)
LONG = sampling(max_tokens=200, ignore_eos=True)
NAMES = ("first", "second")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    """What the workers should compute."""
    return make_engine(model)


@pytest.fixture(scope="module")
def folders(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = tmp_path_factory.mktemp("adapters")
    found = {
        name: str(save_adapter(made / name, engine.model_config, seed=seed))
        for seed, name in enumerate(NAMES)
    }
    for name, folder in found.items():
        engine.load_adapter(name, folder)
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wanted") / "adapters.toml"


@pytest.fixture(scope="module")
def draft(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draft_of(model, tmp_path_factory.mktemp("draft") / "draft", layers=3)


@pytest.fixture(scope="module")
def workers(
    model: Path, draft: Path, file: Path, folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    put_adapters(file, [WantedAdapter(model.name, "first", folders["first"])])  # there from the start
    running = Workers(tmp_path_factory.mktemp("logs"))
    try:
        start(running, PREFILL, model, file)
        start(running, DECODE, model, file)
        running.start("speculator", SPECULATOR, model=draft, adapter_file=file)
        yield running
    finally:
        running.stop()


def start(workers: Workers, instance: str, model: Path, file: Path) -> None:
    options = {"kv_transport": "nats"} if instance == DECODE else {}
    workers.start(instance.partition("-")[0], instance, model=model, adapter_file=file, **options)


@pytest.fixture
async def edge(workers: Workers, model: Path) -> AsyncIterator[Edge]:
    async with edge_of(workers.nats_url, model.name) as edge:
        await edge.ready(*WORKERS, SPECULATOR)
        yield edge
        await edge.until_idle(*WORKERS, SPECULATOR)


def reports(edge: Edge, instance: str) -> dict[str, AdapterReport]:
    view = edge.fleet.get(instance.partition("-")[0], instance)
    return {} if view is None else {each.name: each for each in view.heartbeat.worker.adapters}


async def loaded(edge: Edge, name: str, version: int = 0) -> AdapterId:
    """Once both workers have it, at that version where one is given."""

    def there() -> AdapterId | None:
        found = [reports(edge, instance).get(name) for instance in WORKERS]
        has = [each for each in found if each and each.digest and each.version >= version]
        return AdapterId(name, has[0].digest) if len(has) == len(WORKERS) else None

    adapter = await until(there, timeout_s=WAIT_S)
    assert isinstance(adapter, AdapterId)
    return adapter


async def load(edge: Edge, file: Path, folders: dict[str, str], *names: str) -> list[AdapterId]:
    """As the file says it, and as it is then there."""
    wanted = [WantedAdapter(edge.model_id, name, folders[name]) for name in names]
    version = put_adapters(file, wanted)[0].version
    return [await loaded(edge, name, version) for name in names]


def ids_of(number: int) -> list[int]:
    return [(7 * index + 13 * number) % 250 + 10 for index in range(40)]


def expected(engine: Engine, ids: list[int], adapter: str = "", how: SamplingParams = GREEDY) -> list[int]:
    engine.admit("alone", ids, len(ids), how, adapter=adapter)
    drawn = drive(engine, {"alone": list(ids)})["alone"]
    engine.release("alone")
    return drawn


@pytest.mark.thorough(but="disaggregated")
@pytest.mark.parametrize("prefill", [PREFILL, ""], ids=["disaggregated", "local"])
async def test_rows_of_two_adapters_and_of_none_are_what_each_is_alone(
    edge: Edge, engine: Engine, file: Path, folders: dict[str, str], prefill: str
) -> None:
    first, second = await load(edge, file, folders, *NAMES)
    ids, other = ids_of(1), ids_of(2)
    streams = await asyncio.gather(
        edge.generate(ids, prefill=prefill),
        edge.generate(ids, prefill=prefill, adapter=first),
        edge.generate(ids, prefill=prefill, adapter=second),
        edge.generate(other, prefill=prefill, adapter=first),
    )
    answers = [stream.token_ids for stream in streams]
    assert answers == [
        expected(engine, ids),
        expected(engine, ids, "first"),
        expected(engine, ids, "second"),
        expected(engine, other, "first"),
    ]
    assert len({tuple(answer) for answer in answers[:3]}) == 3


@pytest.mark.thorough(but="how1")
@pytest.mark.parametrize("how", [GREEDY, sampling(temperature=0.8, seed=3, max_tokens=40)])
async def test_drafts_change_no_answer_of_an_adapter(
    edge: Edge, engine: Engine, file: Path, folders: dict[str, str], how: SamplingParams
) -> None:
    (first,) = await load(edge, file, folders, "first")
    ids = ids_of(3)
    stream = await edge.generate(ids, adapter=first, how=how, speculator=SPECULATOR)
    assert stream.token_ids == expected(engine, ids, "first", how)


async def test_an_adapter_that_comes_and_goes_leaves_the_streams_that_run_as_they_are(
    edge: Edge, engine: Engine, file: Path, folders: dict[str, str]
) -> None:
    (first,) = await load(edge, file, folders, "first")
    ids = ids_of(4)
    running = [edge.new_id(), edge.new_id()]
    streams = [edge.streams[request_id, 1] for request_id in running]
    for request_id, adapter in zip(running, (NO_ADAPTER, first), strict=True):
        await asyncio.gather(
            edge.prefill(request_id, ids, how=LONG, adapter=adapter),
            edge.reserve(request_id, ids, how=LONG, adapter=adapter),
        )
    await until(lambda: all(stream.ids for stream in streams))
    remove_adapter(file, edge.model_id, "first")
    await until(lambda: not any("first" in reports(edge, instance) for instance in WORKERS), timeout_s=WAIT_S)
    with pytest.raises(Overloaded, match="'first' is not loaded here"):
        await edge.reserve(edge.new_id(), ids, adapter=first)
    await load(edge, file, folders, "second")
    for request_id in running:
        await edge.ended(request_id)
    assert [stream.token_ids for stream in streams] == [
        expected(engine, ids, "", LONG),
        expected(engine, ids, "first", LONG),
    ]


async def test_a_worker_that_was_killed_comes_back_with_what_the_others_have(
    edge: Edge, workers: Workers, model: Path, file: Path, folders: dict[str, str], engine: Engine
) -> None:
    (first,) = await load(edge, file, folders, "first")
    view = edge.fleet.get("prefill", PREFILL)
    assert view is not None
    before = view.heartbeat.incarnation
    workers.kill(PREFILL)
    start(workers, PREFILL, model, file)

    def back() -> bool:
        view = edge.fleet.get("prefill", PREFILL)
        return view is not None and view.ready and view.heartbeat.incarnation != before

    await until(back, timeout_s=WAIT_S)
    assert reports(edge, PREFILL)["first"].digest == first.digest  # ready is ready with it
    ids = ids_of(5)
    assert (await edge.generate(ids, adapter=first)).token_ids == expected(engine, ids, "first")


async def test_what_cannot_be_loaded_is_told_and_the_worker_goes_on(
    edge: Edge, engine: Engine, file: Path
) -> None:
    (entry,) = put_adapters(file, [WantedAdapter(edge.model_id, "missing", "/nowhere")])
    await until(lambda: all(reports(edge, instance).get("missing") for instance in WORKERS), timeout_s=WAIT_S)
    for instance in WORKERS:
        told = reports(edge, instance)["missing"]
        assert (told.version, told.digest) == (entry.version, "")
        assert "'/nowhere' does not exist" in told.error
    ids = ids_of(6)
    assert (await edge.generate(ids)).token_ids == expected(engine, ids)
    remove_adapter(file, edge.model_id, "missing")


@pytest.mark.thorough(but="prefill")
@pytest.mark.parametrize("place", ["prefill", "reserve"])
async def test_a_worker_refuses_another_digest_than_its_own(
    edge: Edge, file: Path, folders: dict[str, str], place: str
) -> None:
    (first,) = await load(edge, file, folders, "first")
    other = dataclasses.replace(first, digest="0" * 32)
    ask = edge.prefill if place == "prefill" else edge.reserve
    with pytest.raises(Overloaded, match="use another worker"):
        await ask(edge.new_id(), ids_of(7), adapter=other)


async def test_a_speculator_drafts_with_an_adapter_of_that_name_over_its_draft(
    edge: Edge, draft: Path, file: Path, tmp_path: Path
) -> None:
    """It guesses what the draft with the adapter would say; without one of that name, what the draft says."""
    own = make_engine(draft)
    folder = str(save_adapter(tmp_path / "draft", own.model_config, seed=9))
    own.load_adapter("drafted", folder)
    put_adapters(file, [WantedAdapter(draft.name, "drafted", folder)])
    await until(lambda: reports(edge, SPECULATOR).get("drafted"), timeout_s=WAIT_S)
    ids = ids_of(8)
    answers: list[Message] = []
    await edge.bus.serve(inbox("decode", PLAYED), lambda delivery: answers.append(delivery.message))
    wished = sampling(max_tokens=9, ignore_eos=True)
    for key, name, known in (("d.1", "drafted", "drafted"), ("d.2", "unknown", ""), ("d.3", "", "")):
        opened = DraftOpen(pack_ids(ids), len(ids), wished, PLAYED, name)
        await edge.tell_speculator(SPECULATOR, opened, key, 1)
        commit = DraftCommit(PLAYED, (key,), (1,), (len(ids),), ((),), (4,))
        await edge.tell_speculator(SPECULATOR, commit)
        guessed = expected(own, ids, known, wished)[:4]
        await until(lambda: answers, timeout_s=WAIT_S)
        block = answers.pop()
        assert isinstance(block, DraftBlock)
        ((request_id, _, tree, _),) = trees_of(block)
        assert (request_id, tree) == (key, DraftTree(len(ids), tuple(guessed)))
        await edge.tell_speculator(SPECULATOR, DraftClose((key,), (1,)))
    remove_adapter(file, draft.name, "drafted")
