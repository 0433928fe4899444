"""One stack for all programs, as `penstock up` starts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.served import Served
from tests.support.stack import Stack


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    with Stack("--speculator", "0") as stack:
        yield Served.at(f"http://{stack.http}")
