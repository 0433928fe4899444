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
from shared.tasks import cancel_until_done

WORKER = "services.cli.bench.worker"
MAX_RECORD_BYTES = 64 << 20
"""The longest line of a part: one call, with the time of each piece."""
CUT_DEADLINE_S = 20.0
"""The time in which a part that is told of a cut has to end."""


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


async def run_parts(
    parts: Sequence[LoadPart], ended: Callable[[CallRecord], None], cut: asyncio.Event | None = None
) -> LoadResult:
    """Run each in a process of its own, and put together what they tell. Once `cut` is set they are told to
    end at once. Raises InternalError."""
    cut = cut or asyncio.Event()
    results = await asyncio.gather(*(_run(part, ended, cut) for part in parts))
    records = [record for result in results for record in result.records]
    cut_calls = sum(result.cut_calls or 0 for result in results) if cut.is_set() else None
    return LoadResult(records, worst_of([result.generator for result in results]), cut_calls)


async def _run(part: LoadPart, ended: Callable[[CallRecord], None], cut: asyncio.Event) -> LoadResult:
    """Tell a process its part, and by the end of its input that the load is cut: Ctrl-C does not reach it."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        limit=MAX_RECORD_BYTES,
        process_group=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    reading = asyncio.create_task(read_part(process.stdout, ended))
    cutting = asyncio.create_task(cut.wait())
    try:
        process.stdin.write(json.dumps(asdict(part)).encode() + b"\n")
        await asyncio.wait((reading, cutting), return_when=asyncio.FIRST_COMPLETED)
        process.stdin.close()
        await asyncio.wait((reading,), timeout=CUT_DEADLINE_S)
        result = None
        if reading.done():
            result = reading.result()
            await process.wait()
    finally:
        await cancel_until_done(reading, cutting)
        if process.returncode is None:
            process.kill()
        code = await process.wait()
    if code or result is None:
        raise InternalError(f"part {part.index} of the load ended with code {code}; see above")
    return result


async def read_part(told: asyncio.StreamReader, ended: Callable[[CallRecord], None]) -> LoadResult | None:
    """Return what a part tells, line by line; None where it broke before its last line.

    Raises InternalError for a call that is longer than a line may be.
    """
    records: list[CallRecord] = []
    result: LoadResult | None = None
    while line := await _line(told):
        row: dict[str, Any] = json.loads(line)
        if "generator" in row:
            result = LoadResult(records, GeneratorLoad(**row["generator"]), row["cut_calls"])
        else:
            records.append(CallRecord.of_json(row))
            ended(records[-1])
    return result


async def _line(told: asyncio.StreamReader) -> bytes:
    try:
        return await told.readline()
    except ValueError as error:
        raise InternalError(
            f"a process of the load told a call that is longer than {MAX_RECORD_BYTES} bytes: ask for "
            "shorter answers, or leave out --processes"
        ) from error
