"""What every test has: its turn on one of the cores, logging of its own, a real nats-server of its own."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Collection, Container, Iterable, Iterator
from typing import Any

# Tests share the cores by running beside each other, and their models are too small for threads. To be said
# before numpy and torch are loaded; the processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# gRPC would wake its threads in a child between fork and exec, where they end it: its files are closed there.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Each module is compiled once, not by every process that tests start: a fifth of what these compute.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests serve the small models that are shipped, whatever is installed.
os.environ.setdefault("PENSTOCK_DEFAULT_MODEL", "none")

# What services keep with the user's caches goes with the tests, whose workers inherit it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="penstock-cache-")

    def remove_cache(owner: int = os.getpid()) -> None:
        if os.getpid() == owner:  # and no process that was forked from it
            shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)

    atexit.register(remove_cache)

import pytest
import structlog
import torch
from hypothesis import settings
from structlog.dev import ConsoleRenderer, plain_traceback
from xdist.scheduler import LoadScopeScheduling

import tests.support.keep_place
import tests.support.root_logs  # noqa: F401 - what they do by being imported
from shared.bus.nats_server import NatsServer
from tests.support.forked_workers import fork_workers
from tests.support.lent_nats import LentNats
from tests.support.short_reports import shorten_reports

# What is imported and collected stays: walking over it again and again takes a seventh of that time.
gc.disable()

# As in services, which leave rich out: it takes a tenth of a second for an exception that is logged.
ConsoleRenderer.get_active().exception_formatter = plain_traceback

# Without a GPU, Triton interprets kernels: to be said before anything imports it, as transformers does.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine makes single examples slow; whether tests hang is for pytest's timeout to say.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")

OWN_STACKS = (
    *("api_keys", "corpora", "drain", "fuzz", "guests", "kept_models", "prompt_passages"),
    *("readme_configuration", "search_alone", "several_models", "shared_ports", "warming"),
)
"""Modules of `e2e/` that start stacks for themselves, and so need not wait for those that share some."""

ROWS = (
    *((f"tests/e2e/test_{module}", "own stacks") for module in OWN_STACKS),
    ("tests/e2e/", "stacks"),
    ("tests/integration/test_gateway", "gateways"),
    ("tests/integration/test_cli", "commands"),
    ("tests/integration/test_launcher", "commands"),
    ("tests/integration/", "services"),
    ("tests/chaos/", "drills"),
)
"""The places where tests start processes and wait for them, and the row in which they run one after another:
stacks would be in each other's way, and what many share is started once. The first that fits counts."""

LONG = (
    "tests/unit/fuzz/",
    "tests/unit/shared/engine/cuda/",
    "tests/unit/shared/engine/native/test_served",
    "tests/unit/shared/engine/loading/gguf/",
    "tests/unit/shared/engine/test_latent.py",
    "tests/unit/shared/retrieval/index/test_change.py",
    "tests/unit/services/cli/bench/test_engine.py",
)
"""Modules of few tests that take long: they begin early, so that none of them runs alone at the end."""


THOROUGH = (
    "thorough(but=''): holds again, for more processes, models or seeds, what others hold at less cost; "
    "`make test` leaves it out, except for the parameters that `but` names: IDs between bars."
)


class OneAfterAnother(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """With `pytest -n`: whole modules, so that each makes its fixtures once, and each row as one."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return next((row for start, row in ROWS if module.startswith(start)), module)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--brief", action="store_true", help="leave out tests that are marked as thorough")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", THOROUGH)
    config.option.loadscopereorder = False  # xdist would begin with the modules that have most tests
    # Extension modules count what is left of their objects at the end. Behind pytest's own cleanup, which
    # would walk over all of it twice to find what tests have left.
    config.add_cleanup(gc.unfreeze)
    # Stacks of one worker's tests are found by its commands alone.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    os.environ["XDG_STATE_HOME"] = f"{os.environ['XDG_CACHE_HOME']}/{worker}"
    shorten_reports(config)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With `-n auto`: three more than there are cores, since rows of tests mostly wait for processes."""
    return len(os.sched_getaffinity(0)) + 3


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if not torch.cuda.is_available():  # to ask that begins what no fork may share
        fork_workers(config, len(specs))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneAfterAnother(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort shuffled modules: rows of processes, folder by folder, then what takes long, then the rest."""
    if config.getoption("brief"):
        thorough = [(item, kept) for item in items if (kept := kept_parameters(item)) is not None]
        left_out = [item for item, kept in thorough if not is_kept(item, kept)]
        if not any("::" in argument for argument in config.args):
            check_kept(thorough, left_out)
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]
    starts = [*(start for start, _ in ROWS), *LONG]

    def turn(item: pytest.Item) -> int:
        name = item.nodeid  # which is put together each time
        return next((number for number, start in enumerate(starts) if name.startswith(start)), len(starts))

    items.sort(key=turn)


def kept_parameters(item: pytest.Item) -> list[str] | None:
    """The IDs of the parameters with which a thorough test is in `--brief`; None where it is not thorough."""
    mark = item.get_closest_marker("thorough")
    if mark is None:
        return None
    return [name.strip() for name in mark.kwargs.get("but", "").split("|") if name]


def is_kept(item: pytest.Item, kept: Container[str]) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is not None and parameters.id in kept


def check_kept(thorough: Collection[tuple[pytest.Item, list[str]]], left_out: Iterable[pytest.Item]) -> None:
    """Refuse a mark that keeps parameters by names that none has any more."""
    gone = set(map(id, left_out))
    wrong = {item.nodeid.partition("[")[0] for item, kept in thorough if kept}
    wrong -= {item.nodeid.partition("[")[0] for item, _ in thorough if id(item) not in gone}
    if wrong:
        raise pytest.UsageError(f"thorough(but=...) names no parameter of {', '.join(sorted(wrong))}")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no garbage collection need walk over it."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seed = config.getoption("randomly_seed", None)  # -q leaves it out of the header
    if seed is not None:
        terminalreporter.write_line(f"in random order: again with --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test configures of the logs ends with it: a cached logger would keep a closed stream."""
    configure, root = structlog.configure, logging.getLogger()
    handlers, level = root.handlers, root.level

    def uncached(**settings: Any) -> None:
        configure(**{**settings, "cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", uncached)
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def own_random_numbers() -> None:
    """As pytest-randomly sees to it for random and numpy: a test draws the same whatever ran before it."""
    # Where no GPU is in use torch.manual_seed writes the stack down each time, for one that may come: 0.4 ms.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch
        torch.cuda.manual_seed_all(0)


@pytest.fixture
async def nats_server() -> AsyncIterator[NatsServer]:
    """A nats-server on a free port; the test may kill and start it again."""
    server = NatsServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
def lent_servers() -> Iterator[list[LentNats]]:
    """The server that tests of this process use one after another; none before the first."""
    servers: list[LentNats] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def nats_url(request: pytest.FixtureRequest, lent_servers: list[LentNats]) -> Iterator[str]:
    """A nats-server to which nobody is connected: the test's own where it has `nats_server`, too."""
    if "nats_server" in request.fixturenames:
        yield request.getfixturevalue("nats_server").url
        return
    server = lent_servers.pop() if lent_servers else LentNats()
    yield server.url
    if server.is_left():
        lent_servers.append(server)
    else:
        server.close()
