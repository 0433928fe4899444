"""A client in a process of its own: what a flood costs its client is not what others wait for at theirs."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.chaos.load import Load, Metadata, Shape, narrow_channel, open_loop


@dataclass(frozen=True, slots=True)
class OwnProcess:
    _address: str
    _pool: ProcessPoolExecutor

    async def open_loop(
        self, shapes: Sequence[Shape], rate: float, seconds: float, *, metadata: Metadata, seed: int
    ) -> Load:
        """Return what `load.open_loop` there returns."""
        arguments = (self._address, shapes, rate, seconds, metadata, seed)
        return await asyncio.get_running_loop().run_in_executor(self._pool, _run_load, *arguments)


@asynccontextmanager
async def own_process(address: str) -> AsyncIterator[OwnProcess]:
    """A process that is ready to call the gateway at `address`."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_settle) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, _run_load, address, (), 1.0, 0.0, (), 0)
        yield OwnProcess(address, pool)


def _settle() -> None:
    """Go through what the imports left once and not again: it takes half a second of a core."""
    gc.collect()
    gc.freeze()


def _run_load(
    address: str, shapes: Sequence[Shape], rate: float, seconds: float, metadata: Metadata, seed: int
) -> Load:
    async def run() -> Load:
        async with narrow_channel(address) as stub:
            return await open_loop(stub, shapes, rate, seconds, metadata=metadata, seed=seed)

    return asyncio.run(run())
