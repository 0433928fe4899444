"""Fixtures for every test: a real nats-server of its own per test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from shared.bus.nats_server import NatsServer

# A loaded machine makes single examples slow; whether tests hang is for pytest's timeout to say.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


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
