"""What the integration tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.gateway.grpc import wide_server
from shared.bus import Bus
from shared.messages import Held
from tests.integration.fleet_players import Play, PlayedInstance
from tests.support.models import target_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer that workers serve, saved once for all modules of a test process."""
    return target_model(tmp_path_factory.mktemp("model"))


EARLY_END_TIMEOUT_S = 20.0
MANY_CALLS_AT_ONCE = ("test_gateway_descriptors", "test_gateway_edge", "test_gateway_intake")
"""The modules that see how many calls a gateway takes up at once."""


@pytest.fixture(autouse=True)
def few_calls_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask gRPC for 32 calls of each method is a third of what the start of a gateway takes here."""
    if request.path.stem not in MANY_CALLS_AT_ONCE:
        monkeypatch.setattr(wide_server, "CALLS_ASKED_FOR", 2)


@pytest.fixture
def early_ends(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the deadline of a call that is margin but for 0.4 s: its answer comes in time beside load."""
    margin_s = EARLY_END_TIMEOUT_S - 0.4
    monkeypatch.setattr("services.gateway.scope.budget.GRPC_MARGIN_S", margin_s)
    monkeypatch.setattr("services.gateway.scope.budget.MAX_GRPC_MARGIN_S", margin_s)
    monkeypatch.setattr("services.gateway.scope.budget.GRPC_MARGIN_SHARE", margin_s / EARLY_END_TIMEOUT_S)
    return EARLY_END_TIMEOUT_S


@pytest.fixture
async def play(nats_url: str) -> AsyncIterator[Play]:
    bus = await Bus.connect(nats_url, name="instances")
    running: list[asyncio.Task[None]] = []

    async def start(role: str, *held: Held, answers: bool = True) -> PlayedInstance:
        instance = PlayedInstance(bus, role, *held, answers=answers)
        running.append(asyncio.create_task(instance.run()))
        return instance

    yield start
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await bus.close()
