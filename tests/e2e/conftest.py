"""Stacks shared by all tests that do not break them: one per set of options, started when first asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.engine import load_model_config
from tests.support.adapters import save_adapter
from tests.support.models import draft_of, target_model
from tests.support.oracle import Oracle
from tests.support.stack import RERANKING, Stack

GetStack = Callable[..., Stack]
WITH_RETRIEVER = (3, True, "nats")
"""The one stack that has a retriever, of no documents: it embeds. It begins with an adapter, too, and with
one that cannot be loaded."""
DISAGGREGATED = {"PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0"}
"""Every prompt is computed by a prefill worker: in the stacks of these transports, which are to be tested."""
ALWAYS_TRANSFERRING = ("shm", "auto")


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
    model_dir: Path, draft_dir: Path, adapter_dir: Path, broken_adapter_dir: Path
) -> Iterator[GetStack]:
    """get_stack(decode=3, drafts=True, transport="nats") → a running stack, kept until the last test."""
    running: dict[tuple[int, bool, str], Stack] = {}
    with ExitStack() as stacks:

        def get(decode: int = 1, drafts: bool = False, transport: str = "nats") -> Stack:
            key = (decode, drafts, transport)
            if key not in running:
                chosen = options(model_dir, draft_dir if drafts else None, decode, transport)
                retriever = ("--retriever", str(int(key == WITH_RETRIEVER)))
                adapters = ["--adapter", f"first={adapter_dir}", "--adapter", f"broken={broken_adapter_dir}"]
                adapters = adapters if key == WITH_RETRIEVER else []
                environ = DISAGGREGATED if transport in ALWAYS_TRANSFERRING else {}
                running[key] = stacks.enter_context(Stack(*chosen, *retriever, *adapters, environ=environ))
            return running[key]

        yield get
        for stack in running.values():  # all at once: each takes seconds to end
            stack.process.terminate()


@pytest.fixture(scope="package")
def documented_stack() -> Iterator[Stack]:
    """The small model that ships, which answers from Penstock's own documents and reranks them."""
    with Stack("--decode", "2", environ=RERANKING) as stack:
        yield stack


def options(model: Path, draft: Path | None, decode: int, transport: str) -> tuple[str, ...]:
    chosen = ["--model", str(model), "--draft", str(draft or "none"), "--corpus", "none", "--retriever", "0"]
    chosen += ["--decode", str(decode), "--kv-transport", transport]
    return tuple(chosen if draft else [*chosen, "--speculator", "0"])
