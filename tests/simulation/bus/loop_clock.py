"""The loop's time for nats-py too, which looks at a clock of its own for its pause between two attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nats.aio.client


class LoopClock:
    """The part of the module `time` that nats-py uses."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


@contextmanager
def nats_in_loop_time() -> Iterator[None]:
    """Have nats-py's clients take their time from their loop in this block."""
    client: Any = nats.aio.client
    before, client.time = client.time, LoopClock
    try:
        yield
    finally:
        client.time = before
