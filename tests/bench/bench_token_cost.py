"""What a token costs: CPU seconds of every service per token that a client got, and gRPC's own beside them.

    python -m tests.bench.bench_token_cost [--model DIR] [--streams N] [--output-tokens N] [--seconds S]

Streams in a closed loop through the whole stack with the tests' 260 k-parameter model, then through a server
that has every answer ready (`event_floors`). CPU is read from /proc for the time in which the client
(`grpc_load`, a process of its own on the same cores) counts tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from services.cli.bench.micro import event_floors
from services.cli.bench.run.server_watch import children_of
from tests.bench.process_cost import cpu_s
from tests.support.data import REPOSITORY
from tests.support.models import target_model
from tests.support.stack import Stack

END_TIMEOUT_S = 10


def programs_below(pid: int) -> dict[int, str]:
    """Children by pid, with the name of the program."""
    return {child: Path(f"/proc/{child}/comm").read_text().strip() for child in children_of(pid)}


def under_load(address: str, processes: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """The client's readings, and what each process took meanwhile."""
    command = [sys.executable, "-m", "tests.bench.grpc_load", "--address", address]
    for name in ("streams", "connections", "prompt_tokens", "output_tokens", "warm_s", "seconds"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        if client.stdout.readline().strip() != "measuring":
            raise SystemExit("the client ended before it measured; its error stands above")
        processes = {**processes, "client": client.pid}
        before = {name: cpu_s(pid) for name, pid in processes.items()}
        line = client.stdout.readline()
        after = {name: cpu_s(pid) for name, pid in processes.items() if name != "client"}
        after["client"] = cpu_s(client.pid)
        client.wait(END_TIMEOUT_S)
    if not line:
        raise SystemExit("the client failed; its error stands above")
    readings: dict[str, Any] = json.loads(line)
    tokens = readings.pop("tokens")
    us = {name: 1e6 * (after[name] - before[name]) / tokens for name in processes}
    readings["client_us_per_token"] = us.pop("client")
    readings["us_per_token"] = {**us, "all": sum(us.values())}
    return readings


def stack_processes(stack: Stack) -> dict[str, int]:
    services = {instance.id: instance.pid for instance in stack.instances()}
    named = set(services.values())
    servers = {name: pid for pid, name in programs_below(stack.process.pid).items() if pid not in named}
    return {**services, **servers}


def floor(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", event_floors.__name__, kind]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,  # it ends with that
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            return under_load(server.stdout.readline().strip(), {"grpc": server.pid}, options)
        finally:
            server.terminate()


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="checkpoint directory; the tests' small one by default")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--warm-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--stack-options", default="", help="more options for `penstock up`, space separated")
    parser.add_argument("--no-floor", action="store_true", help="leave gRPC's own cost out")
    options = parser.parse_args()
    model = options.model or str(target_model(Path("/tmp/penstock-bench")))
    up = ("--model", model, "--corpus", "none", "--retriever", "0", "--draft", "none")
    with Stack(*up, *options.stack_options.split()) as stack:
        result = {"pipeline": under_load(stack.grpc, stack_processes(stack), options)}
    if not options.no_floor:
        result["grpc_floor"] = floor(event_floors.GRPC, options)
        result["http2_floor"] = floor(event_floors.HTTP2, options)
    print(json.dumps(rounded(result), indent=2))


if __name__ == "__main__":
    main()
