"""Fixtures for every test: logging of its own, a real nats-server of its own."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog
import torch
from hypothesis import settings

from shared.bus.nats_server import NatsServer

# Without a GPU, Triton interprets kernels: to be said before anything imports it, as transformers does.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine makes single examples slow; whether tests hang is for pytest's timeout to say.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


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


@pytest.fixture
async def nats_server() -> AsyncIterator[NatsServer]:
    """A nats-server on a free port; the test may kill and start it again."""
    server = NatsServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url
