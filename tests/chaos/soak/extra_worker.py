"""An instance that something else than the launcher starts beside its own, and ends again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.support.data import REPOSITORY

END_TIMEOUT_S = 60.0


@asynccontextmanager
async def extra_worker(
    role: str, instance: str, environ: Mapping[str, str], *, firmly: bool
) -> AsyncIterator[None]:
    """A process of the role; at the end it drains or, `firmly`, is killed. AssertionError where it hangs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"services.{role}"),
        cwd=REPOSITORY,
        env={**environ, "PYTHONPATH": str(REPOSITORY), "PENSTOCK_INSTANCE": instance},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL if firmly else signal.SIGTERM)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise AssertionError(
                f"{instance} has not ended {END_TIMEOUT_S:g} s after it was told to"
            ) from None
