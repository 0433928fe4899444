"""A worker's adapters follow the file: what is loaded, what is said of it, and what jobs get."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shared.engine import AdapterInfo, Engine
from shared.errors import Overloaded
from shared.files.adapter_file import WantedAdapter, put_adapters, remove_adapter
from shared.messages import MAX_REPORTED_CHARS, NO_ADAPTER, AdapterId, AdapterReport
from shared.worker.adapters import WorkerAdapters
from tests.support import metric
from tests.support.adapters import save_adapter
from tests.support.engine import make_engine, save_random_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return make_engine(save_random_model(tmp_path_factory.mktemp("model")), backend="torch", max_adapters=3)


@pytest.fixture
def file(engine: Engine, tmp_path: Path) -> Path:
    for info in engine.adapters:
        engine.unload_adapter(info.name)
    return tmp_path / "adapters.toml"


@pytest.fixture(scope="module")
def folders(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    made = tmp_path_factory.mktemp("adapters")
    return [str(save_adapter(made / str(seed), engine.model_config, seed=seed)) for seed in range(3)]


def put(file: Path, **directories: str) -> int:
    """The version of these entries over the model `m`."""
    return put_adapters(
        file, [WantedAdapter("m", name, directory) for name, directory in directories.items()]
    )[0].version


def empty(file: Path) -> None:
    file.write_text("")


def take_out(file: Path, tenant: str) -> None:
    file.write_text(file.read_text().replace(f', "{tenant}"', ""))


def report(adapters: WorkerAdapters) -> AdapterReport:
    (only,) = adapters.reports()
    return only


async def following(file: Path, engine: Engine, most: int = 2) -> WorkerAdapters:
    adapters = WorkerAdapters(file, "m", most=most)
    await adapters.follow(engine)
    return adapters


async def test_what_the_file_says_over_its_model_is_loaded_and_told(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    version = put(file, sql=folders[0])
    put_adapters(file, [WantedAdapter("other", "chat", folders[1])])
    adapters = await following(file, engine)
    (info,) = engine.adapters
    told = report(adapters)
    assert told == AdapterReport("sql", version, info.digest, info.rank, "")
    assert adapters.engine_name(AdapterId("sql", told.digest)) == info.name
    assert metric.value("penstock_adapters") == 1


async def test_a_change_of_tenants_is_told_at_once_and_loads_nothing(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    (entry,) = put_adapters(file, [WantedAdapter("m", "sql", folders[0], ("acme", "rival"))])
    adapters = await following(file, engine)
    assert report(adapters).tenants == ("acme", "rival")
    loaded = engine.adapters
    take_out(file, "rival")
    await adapters.follow(engine)
    assert (report(adapters).tenants, report(adapters).version) == (("acme",), entry.version)
    assert engine.adapters == loaded


async def test_tenants_of_a_version_that_cannot_be_loaded_count_for_the_one_before(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put_adapters(file, [WantedAdapter("m", "sql", folders[0])])
    adapters = await following(file, engine)
    put_adapters(file, [WantedAdapter("m", "sql", "/nowhere", ("acme",))])
    await adapters.follow(engine)
    told = report(adapters)
    assert (bool(told.digest), bool(told.error), told.tenants) == (True, True, ("acme",))


@pytest.mark.usefixtures("file")  # it empties the engine
async def test_what_comes_with_a_model_is_there_without_a_file(engine: Engine, folders: list[str]) -> None:
    adapters = WorkerAdapters(base="m", shipped=(("answers", Path(folders[0])),), most=1)
    await adapters.follow(engine)
    loaded = engine.adapters
    assert report(adapters) == AdapterReport("answers", 0, loaded[-1].digest, loaded[-1].rank, "")
    await adapters.follow(engine)
    assert engine.adapters == loaded


async def test_an_entry_of_the_file_takes_the_place_of_what_comes_with_a_model(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    adapters = WorkerAdapters(file, "m", shipped=(("answers", Path(folders[0])),), most=2)
    await adapters.follow(engine)
    shipped = report(adapters).digest
    version = put(file, answers=folders[1])
    await adapters.follow(engine)
    assert report(adapters).version == version
    assert report(adapters).digest != shipped
    empty(file)
    await adapters.follow(engine)
    assert report(adapters).digest == shipped


async def test_without_a_file_there_are_none_and_the_model_alone_is_there(engine: Engine) -> None:
    adapters = WorkerAdapters()
    await adapters.follow(engine)
    await adapters.watch_file(engine, set)  # returns
    assert adapters.reports() == ()
    assert adapters.engine_name(NO_ADAPTER) == ""


@pytest.mark.parametrize("wanted", [AdapterId("sql", "0" * 32), AdapterId("chat", "0" * 32)])
async def test_another_digest_or_name_is_for_another_worker(
    engine: Engine, file: Path, folders: list[str], wanted: AdapterId
) -> None:
    put(file, sql=folders[0])
    adapters = await following(file, engine)
    with pytest.raises(Overloaded, match="is not loaded here as it was asked for") as refused:
        adapters.engine_name(wanted)
    assert refused.value.retry_after_ms > 0


async def test_a_draft_is_made_without_an_adapter_that_is_not_here(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, sql=folders[0])
    adapters = await following(file, engine)
    assert adapters.name_for_draft("sql") == engine.adapters[0].name
    assert adapters.name_for_draft("chat") == adapters.name_for_draft("") == ""


async def test_what_cannot_be_loaded_is_said_and_leaves_the_others_as_they_are(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, missing=str(file.parent / "nothing"), sql=folders[0])
    adapters = await following(file, engine)
    missing, sql = adapters.reports()
    assert (missing.digest, "does not exist" in missing.error) == ("", True)
    assert (len(sql.digest), sql.error) == (32, "")


async def test_a_long_sentence_is_cut(engine: Engine, file: Path) -> None:
    put(file, sql=str(file.parent / ("x" * 2 * MAX_REPORTED_CHARS) / "y"))
    told = report(await following(file, engine))
    assert len(told.error) == MAX_REPORTED_CHARS
    assert told.error.endswith("…")


async def test_a_new_version_is_there_before_the_one_in_use_goes(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, sql=folders[0])
    adapters = await following(file, engine)
    first = report(adapters)
    used = adapters.engine_name(AdapterId("sql", first.digest))
    version = put(file, sql=folders[1])
    await adapters.follow(engine)
    second = report(adapters)
    assert (second.version, second.error) == (version, "")
    assert second.digest != first.digest
    adapters._unload_retired(engine, {used})
    assert used in [info.name for info in engine.adapters]
    adapters._unload_retired(engine, set())
    assert [info.digest for info in engine.adapters] == [second.digest]


async def test_a_new_version_that_cannot_be_loaded_leaves_the_one_before_in_use(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, sql=folders[0])
    adapters = await following(file, engine)
    first = report(adapters)
    version = put(file, sql=str(file.parent / "nothing"))
    await adapters.follow(engine)
    told = report(adapters)
    assert (told.version, told.digest) == (version, first.digest)
    assert "does not exist" in told.error
    assert adapters.engine_name(AdapterId("sql", first.digest))


async def test_what_is_taken_out_of_the_file_goes_when_nothing_uses_it(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, sql=folders[0])
    adapters = await following(file, engine)
    remove_adapter(file, "m", "sql")
    await adapters.follow(engine)
    assert adapters.reports() == ()
    (info,) = engine.adapters
    adapters._unload_retired(engine, {info.name})
    assert engine.adapters
    adapters._unload_retired(engine, set())
    assert engine.adapters == ()


async def test_so_many_are_loaded_and_no_more_until_one_goes(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, a=folders[0], b=folders[1], c=folders[2])
    adapters = await following(file, engine, most=2)
    a, b, c = adapters.reports()
    assert a.digest
    assert b.digest
    assert (c.digest, c.error) == ("", "2 adapters are all that max_adapters lets be here: raise it")
    remove_adapter(file, "m", "a")
    await adapters.follow(engine)
    assert [bool(each.digest) for each in adapters.reports()] == [True, True]


async def test_one_that_found_no_room_beside_versions_in_use_is_loaded_when_they_go(
    engine: Engine, file: Path, folders: list[str]
) -> None:
    put(file, a=folders[0], b=folders[1])
    adapters = await following(file, engine, most=2)
    used = [info.name for info in engine.adapters]
    put(file, a=folders[1], b=folders[2])
    await adapters.follow(engine)  # the engine has room for one more than there may be
    assert [bool(each.error) for each in adapters.reports()] == [False, True]
    adapters._unload_retired(engine, used[1:])
    await adapters.follow(engine)
    assert [bool(each.error) for each in adapters.reports()] == [False, False]


@pytest.mark.parametrize("spoil", [lambda file: file.write_text("[[adapter"), Path.unlink])
async def test_a_file_that_cannot_be_used_changes_nothing(
    engine: Engine, file: Path, folders: list[str], spoil: object
) -> None:
    put(file, sql=folders[0])
    adapters = await following(file, engine)
    before = adapters.reports()
    assert callable(spoil)
    spoil(file)
    await adapters.follow(engine)
    assert adapters.reports() == before
    assert metric.value("penstock_adapters_stale") == 1
    empty(file)
    put(file, sql=folders[1])
    await adapters.follow(engine)
    assert report(adapters).digest != before[0].digest
    assert metric.value("penstock_adapters_stale") == 0


class BrokenEngine:
    """Its loads fail as nobody expects, in whatever thread."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def load_adapter(self, name: str, directory: str, /) -> AdapterInfo:
        self.thread = threading.current_thread()
        raise RuntimeError(f"{name} {directory}")

    def unload_adapter(self, name: str, /) -> None:
        raise AssertionError(name)


async def test_a_fault_while_loading_is_told_and_not_the_worker_s(file: Path) -> None:
    put(file, sql="/sql")
    engine, adapters = BrokenEngine(), WorkerAdapters(file, "m", most=1)
    await adapters.follow(engine)
    assert report(adapters).error == "it cannot be loaded (RuntimeError); the worker's log has the cause"


async def test_an_adapter_is_loaded_away_from_the_event_loop(file: Path) -> None:
    put(file, sql="/sql")
    engine = BrokenEngine()
    await WorkerAdapters(file, "m", most=1).follow(engine)
    assert engine.thread not in (None, threading.current_thread())
