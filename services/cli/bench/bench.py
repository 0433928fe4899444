"""`penstock bench WHAT …`: measures one part of Penstock by itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from services.cli.exit_codes import EXIT_USAGE

SUBJECTS = {
    "engine": "prefill, decode and memory of the engine in process, without a bus",
    "serve": "a server under load: Penstock, or any with OpenAI's interfaces",
    "ab": "two servers under the same load in turns: which one is faster",
    "micro": "each hop on this machine, over its floor",
}
MODULES = {
    "engine": "services.cli.bench.engine",
    "serve": "services.cli.bench.serve",
    "ab": "services.cli.bench.ab",
    "micro": "services.cli.bench.micro.micro",
}
"""The module of each; its `main` is called."""


def main(argv: Sequence[str]) -> int:
    """The exit code of the benchmark; 2 for a subject that does not exist."""
    if not argv or argv[0] in ("-h", "--help"):
        print(bench_usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else EXIT_USAGE
    name, *rest = argv
    if name not in SUBJECTS:
        print(
            f"penstock bench: there is nothing to measure called {name!r}\n\n{bench_usage()}", file=sys.stderr
        )
        return EXIT_USAGE
    subject = importlib.import_module(MODULES[name])
    code: int = subject.main(rest)
    return code


def bench_usage() -> str:
    lines = [f"  {name:8} {summary}" for name, summary in SUBJECTS.items()]
    return "\n".join(["usage: penstock bench WHAT [options]", "", *lines])
