"""`python -m services.cli.bench.worker`: one process of several that make a load; told what to do on stdin.

Each call that ends is a line of JSON on stdout, the last line says how the process itself fared.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from services.cli.bench.measured_load import run_load
from services.cli.bench.plan.prose import Prose
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.load_parts import LoadPart
from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args
from services.cli.bench.targets.probe import TargetTraits
from services.cli.exit_codes import EXIT_FAILED
from shared.errors import PenstockError


def main() -> None:
    part = LoadPart(**json.load(sys.stdin))
    args = checked_serve_args(build_bench_serve_parser(), part.argv)
    traits = TargetTraits(part.model, part.chars_per_token, counted=True)
    prose = Prose.of(args.text)
    place = (part.index, part.parts)
    try:
        result = asyncio.run(run_load(args, prose, traits, part.rate, part.start_s, _tell, place))
    except PenstockError as error:
        print(f"penstock bench: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    print(json.dumps({"generator": asdict(result.generator)}), flush=True)


def _tell(record: CallRecord) -> None:
    print(json.dumps(record.as_json()), flush=True)


if __name__ == "__main__":
    main()
