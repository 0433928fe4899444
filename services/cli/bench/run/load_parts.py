"""One load by several processes: each makes the same plan, and runs its part of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.loop_watch import GeneratorLoad, worst_of
from services.cli.launcher_process import ROOT
from shared.errors import InternalError

WORKER = "services.cli.bench.worker"
MAX_RECORD_BYTES = 64 << 20
"""The longest line of a part: one call, with the time of each piece."""


@dataclass(frozen=True, slots=True)
class LoadPart:
    """The part of a process: the command's own arguments, its share of the dialogues, when all begin on the
    machine's monotonic clock, and what the first process found out. `rate` 0: as the arguments say."""

    argv: Sequence[str]
    index: int
    parts: int
    start_s: float
    model: str
    chars_per_token: float
    rate: float = 0.0


async def run_parts(parts: Sequence[LoadPart], ended: Callable[[CallRecord], None]) -> LoadResult:
    """Run each in a process of its own, and put together what they tell. Raises InternalError."""
    results = await asyncio.gather(*(_run(part, ended) for part in parts))
    records = [record for result in results for record in result.records]
    return LoadResult(records, worst_of([result.generator for result in results]))


async def _run(part: LoadPart, ended: Callable[[CallRecord], None]) -> LoadResult:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        limit=MAX_RECORD_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    records: list[CallRecord] = []
    generator: GeneratorLoad | None = None
    try:
        process.stdin.write(json.dumps(asdict(part)).encode())
        process.stdin.close()
        async for line in process.stdout:
            told: dict[str, Any] = json.loads(line)
            if "generator" in told:
                generator = GeneratorLoad(**told["generator"])
            else:
                records.append(CallRecord.of_json(told))
                ended(records[-1])
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code or generator is None:
        raise InternalError(f"part {part.index} of the load ended with code {code}; see above")
    return LoadResult(records, generator)
