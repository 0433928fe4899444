"""Stacks shared by all tests that do not break them: one per set of options, started when first asked for.

Modules that share them come first, and they end with the last one: a stack that nobody uses takes a
twentieth of a core.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from shared.engine import load_model_config
from tests.support.adapters import save_adapter
from tests.support.fresh_programs import fresh_programs
from tests.support.models import draft_of, target_model
from tests.support.oracle import Oracle
from tests.support.stack import RERANKING, Stack

GetStack = Callable[..., Stack]
WITH_RETRIEVER = (3, True, "nats")
"""The one stack that has a retriever, of no documents: it embeds. It begins with an adapter, too, and with
one that cannot be loaded. Its programs are started as a user starts them."""
DISAGGREGATED = {"PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0"}
"""Every prompt is computed by a prefill worker: in the stacks of these transports, which are to be tested."""
ALWAYS_TRANSFERRING = ("shm", "auto")
KEPT = ((1, False, "nats"), WITH_RETRIEVER)
"""The stacks that most modules have."""
OTHERS_IN = frozenset(
    f"test_{name}.py" for name in ("capacity", "closed_bus", "constraints", "exactness", "timeline")
)
"""The modules that have others: these come first, and the others end with them."""

SHARED_BY = ("get_stack", "documented_stack")
"""The fixtures that share stacks, in the order in which modules come that have them."""


class SharedStacks:
    """Those of one fixture that run, by what they were asked for with; `modules` are all that have it."""

    def __init__(self, modules: frozenset[Path]) -> None:
        self.modules = modules
        self._running: dict[Hashable, Stack] = {}

    def get(self, key: Hashable, make: Callable[[], Stack]) -> Stack:
        if key not in self._running:
            self._running[key] = make().__enter__()
        return self._running[key]

    def end(self, kept: Collection[Hashable] = ()) -> None:
        """All are told at once: each takes seconds to end."""
        ended = [self._running.pop(key) for key in [*self._running] if key not in kept]
        for stack in ended:
            stack.process.terminate()
        for stack in ended:
            stack.stop()


SHARED = pytest.StashKey[dict[str, SharedStacks]]()


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Sort what is shuffled by now: modules that share stacks come one behind the other."""
    shared = session.stash[SHARED] = {
        name: SharedStacks(
            frozenset(item.path for item in items if name in getattr(item, "fixturenames", ()))
        )
        for name in SHARED_BY
    }
    items.sort(
        key=lambda item: [
            *(item.path not in stacks.modules for stacks in shared.values()),
            item.path.name not in OTHERS_IN,
        ]
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End stacks that no module behind this one has."""
    try:
        return (yield)
    finally:
        for stacks in item.session.stash[SHARED].values():
            if nextitem is None or nextitem.path not in stacks.modules:
                stacks.end()
            elif item.path.name in OTHERS_IN and nextitem.path.name not in OTHERS_IN:
                stacks.end(KEPT)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Also where it stops before its last test."""
    for stacks in session.stash.get(SHARED, {}).values():
        stacks.end()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def draft_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draft_of(model_dir, tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="session")
def oracle(model_dir: Path) -> Oracle:
    return Oracle(model_dir)


@pytest.fixture(scope="session")
def adapter_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("adapter") / "first", load_model_config(model_dir))


@pytest.fixture(scope="session")
def broken_adapter_dir(adapter_dir: Path) -> Path:
    """Its weights are missing."""
    folder = adapter_dir.with_name("broken")
    folder.mkdir()
    shutil.copy(adapter_dir / "adapter_config.json", folder)
    return folder


@pytest.fixture(scope="package")
def get_stack(
    request: pytest.FixtureRequest,
    model_dir: Path,
    draft_dir: Path,
    adapter_dir: Path,
    broken_adapter_dir: Path,
) -> GetStack:
    """get_stack(decode=3, drafts=True, transport="nats") → a running stack, kept until the last module."""

    def get(decode: int = 1, drafts: bool = False, transport: str = "nats") -> Stack:
        key = (decode, drafts, transport)
        chosen = options(model_dir, draft_dir if drafts else None, decode, transport)
        retriever = ("--retriever", str(int(key == WITH_RETRIEVER)))
        adapters = ["--adapter", f"first={adapter_dir}", "--adapter", f"broken={broken_adapter_dir}"]
        adapters = adapters if key == WITH_RETRIEVER else []
        environ = DISAGGREGATED if transport in ALWAYS_TRANSFERRING else {}
        shared = request.session.stash[SHARED]["get_stack"]
        with fresh_programs() if key == WITH_RETRIEVER else nullcontext():
            return shared.get(key, lambda: Stack(*chosen, *retriever, *adapters, environ=environ))

    return get


@pytest.fixture
def documented_stack(request: pytest.FixtureRequest) -> Stack:
    """The small model that ships, which answers from Penstock's own documents and reranks them."""
    shared = request.session.stash[SHARED]["documented_stack"]
    return shared.get("", lambda: Stack("--decode", "2", environ=RERANKING))


def options(model: Path, draft: Path | None, decode: int, transport: str) -> tuple[str, ...]:
    chosen = ["--model", str(model), "--draft", str(draft or "none"), "--corpus", "none", "--retriever", "0"]
    chosen += ["--decode", str(decode), "--kv-transport", transport]
    return tuple(chosen if draft else [*chosen, "--speculator", "0"])
