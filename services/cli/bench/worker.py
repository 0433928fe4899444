"""`python -m services.cli.bench.worker`: one process of several that make a load, as a line on stdin says.

Each call that ends is a line of JSON on stdout, the last line says how the process itself fared. Where stdin
ends before the load does, the load is cut.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict

from services.cli.bench.measured_load import run_load
from services.cli.bench.plan.prose import Prose
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.load_parts import LoadPart
from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args
from services.cli.bench.targets.probe import TargetTraits
from services.cli.exit_codes import EXIT_FAILED
from shared.errors import PenstockError
from shared.tasks import cancel_until_done


def main() -> None:
    part = LoadPart(**json.loads(sys.stdin.readline()))
    args = checked_serve_args(build_bench_serve_parser(), part.argv)
    try:
        result = asyncio.run(_run(args, part))
    except PenstockError as error:
        print(f"penstock bench: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    print(json.dumps({"generator": asdict(result.generator), "cut_calls": result.cut_calls}), flush=True)


async def _run(args: argparse.Namespace, part: LoadPart) -> LoadResult:
    """Raises InvalidRequest, Unavailable."""
    traits = TargetTraits(part.model, part.chars_per_token, counted=True)
    prose = Prose.of(args.text)
    place = (part.index, part.parts)
    cut = asyncio.Event()
    told = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    watching = asyncio.create_task(told.read())
    watching.add_done_callback(lambda _: cut.set())
    try:
        return await run_load(args, prose, traits, part.rate, part.start_s, _tell, place, cut)
    finally:
        await cancel_until_done(watching)
        pipe.close()


def _tell(record: CallRecord) -> None:
    print(json.dumps(record.as_json()), flush=True)


if __name__ == "__main__":
    main()
