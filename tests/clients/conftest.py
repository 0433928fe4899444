"""One stack for all programs, as `penstock up` starts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.served import Served
from tests.support.stack import RERANKING, Stack


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    with Stack("--speculator", "0", environ=RERANKING) as stack:
        yield stack


@pytest.fixture(scope="package")
def served(stack: Stack) -> Served:
    return Served.at(f"http://{stack.http}")
