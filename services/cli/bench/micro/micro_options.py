"""The options of `penstock bench micro`."""

from __future__ import annotations

import argparse
from pathlib import Path

from services.cli.arguments import seconds

PARTS = {
    "bus": "a request over the bus, over a raw TCP echo and stock nats-py",
    "kv": "KV over nats and shm, over raw TCP, nats-server alone and memcpy",
    "events": "the gateway's CPU for a token over gRPC and over SSE, over servers that only write",
    "edges": "an answer of both edges over a new connection, a resumed TLS session and a kept connection",
    "stack": "cold start to ready of a small stack, and a cancel until nothing is held",
}
DEFAULT_SECONDS = 5.0


def build_bench_micro_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench micro",
        description="Measure what each hop costs on this machine, over its floor in the same run. Exit code "
        "1 when something does not answer, 2 for bad input.",
        epilog="\n".join(f"{name:6} {summary}" for name, summary in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", choices=tuple(PARTS), action="append", help="this part alone; may be given several times"
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="of each part, at least one round of it; default %(default)g",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="all readings, the machine and the versions"
    )
    return parser
