"""Cohere's own clients, unchanged, rerank with a whole stack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.clients.environments import INSTALL_TIMEOUT_S, ClientEnvironment
from tests.clients.served import Served

pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S)
ORDER = [2, 1, 0]
"""The order of the program's texts: the question itself, its answer, and what is about something else."""

Call = Callable[[str], Awaitable[Any]]


@pytest.fixture
def call(served: Served) -> Call:
    return partial(ClientEnvironment("cohere").call, "cohere_calls.py", served)


def check_scores(scores: list[float]) -> None:
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)


async def test_the_client_of_version_1_gets_documents_and_scores(call: Call) -> None:
    found = await call("rerank_v1")
    assert (found["indices"], found["version"]) == (ORDER, "1")
    assert found["texts"][1] == "A block holds 16 tokens."
    check_scores(found["scores"])


async def test_the_client_of_version_2_gets_the_best_alone(call: Call) -> None:
    found = await call("rerank_v2")
    assert (found["indices"], found["version"]) == (ORDER[:2], "2")
    assert found["tokens"] > len(ORDER)
    check_scores(found["scores"])


async def test_the_asynchronous_client_gets_the_same_order(call: Call) -> None:
    assert (await call("rerank_asynchronously"))["indices"] == ORDER


async def test_an_error_is_one_that_the_client_knows(call: Call) -> None:
    found = await call("refuse")
    assert (found["kind"], found["status"]) == ("BadRequestError", 400)
    assert found["body"]["error"]["param"] == "documents"
