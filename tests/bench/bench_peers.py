"""One server under the loads that all of them get, by `penstock bench serve`; the table of those measured.

    python -m tests.bench.bench_peers penstock  --model FILE.gguf --folder DIR
    python -m tests.bench.bench_peers llama.cpp --model FILE.gguf --folder DIR --server llama-server
    python -m tests.bench.bench_peers vllm      --model DIR       --folder DIR --venv DIR
    python -m tests.bench.bench_peers dynamo    --model DIR       --folder DIR --venv DIR
    python -m tests.bench.bench_peers openvino  --model DIR       --folder DIR --venv DIR
    python -m tests.bench.bench_peers table     --folder DIR

Each is started alone with all cores of the machine, and asked over HTTP. Loads: chats of MT-Bench (`--chats`)
by one client and by four, both turns; a slice of Mooncake's trace (`--trace`) at 1 a second, its lengths
times 0.03, and at 4, which is over what two cores serve; four agents at once, whose calls share their tools
and grow by what tools say; questions at 0.6 a second, a quarter of them behind 2,500 tokens of text. A round
has texts of its own, so that caches know what a call repeats alone. Answers have all their tokens. Goodput
counts calls with the first token within 1 s and the others within 50 ms; none waits for over 20 s.
`--loads` takes some of these, `--share` a part of their questions and seconds, `--name` is that of the rows
in the table. `peers/README.md` says how to get each server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import nan
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.serve_contenders import Contender, dynamo, llama_cpp, openvino, penstock, vllm
from tests.support.data import REPOSITORY

SERVERS = ("penstock", "llama.cpp", "vllm", "openvino", "dynamo")
LOADS = ("chat-1", "chat-4", "mooncake", "overload", "agents", "long")
ROUND_CHATS = {"chat-1": (10, 1), "chat-4": (30, 4)}
"""Questions of a round and the clients that ask them, one question after another."""
OUTPUT_TOKENS = 64
TRACE_RATES, TRACE_S, LENGTH_SCALE = {"mooncake": 1.0, "overload": 4.0}, 20.0, 0.03
LONG_TOKENS, LONG_RATE, LONG_S = 2500, 0.6, 30.0
DEADLINE_S = 20.0
AGENTS, AGENT_CALLS, AGENT_BLOCK_TOKENS, AGENT_TOOL_BLOCKS, AGENT_PAUSE_S = 4, 6, 64, 12, 0.3
OBJECTIVES = ("ttft_p99<1s", "itl_p99<50ms")
MISSED = 1
"""The end of `bench serve` where an objective is missed."""
COLUMNS = ("ttft p50", "ttft p99", "itl p50", "itl p99", "job p50", "goodput", "tokens/s", "CPU s", "cached")


def loads(options: argparse.Namespace, number: int, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the loads of a round by name; their texts are the same whichever of them are wanted."""
    questions = options.chats.read_text("utf-8").splitlines()
    begin = number * sum(count for count, _ in ROUND_CHATS.values())
    for name, (count, clients) in ROUND_CHATS.items():
        asked = max(1, round(count * options.share))
        part = folder / f"{name}.jsonl"
        part.write_text("\n".join(questions[begin : begin + asked]) + "\n", "utf-8")
        begin += count
        lengths = ["--requests", str(asked), "--output-tokens", str(OUTPUT_TOKENS)]
        yield name, ["--source", f"prompts:{part}", "--concurrency", str(clients), *lengths]
    lengths = ["--length-scale", str(LENGTH_SCALE), "--duration", str(TRACE_S * options.share)]
    for place, (name, rate) in enumerate(TRACE_RATES.items()):
        texts = ["--text-seed", f"{number * len(TRACE_RATES) + place}"]
        yield name, ["--source", f"mooncake:{options.trace}", "--rate", str(rate), *lengths, *texts]
    sessions = folder / "agents.jsonl"
    sessions.write_text("".join(json.dumps(each) + "\n" for each in agent_sessions(number)))
    at_once = ["--concurrency", str(AGENTS), "--requests", str(AGENTS)]
    yield "agents", ["--source", f"agents:{sessions}", *at_once]
    chats = folder / "chat-4.jsonl"
    mixed = ["--source", f"3*prompts:{chats}", "--source", "1*synthetic", "--input-tokens", str(LONG_TOKENS)]
    pace = ["--rate", str(LONG_RATE), "--duration", str(LONG_S * options.share)]
    answers = ["--output-tokens", str(OUTPUT_TOKENS)]
    yield "long", [*mixed, *pace, *answers, "--cache-bust", "--text-seed", str(number)]


def agent_sessions(number: int) -> list[dict[str, Any]]:
    """Return the sessions of a round, in the form of AgentX: all begin with the tools of that round."""
    tools = [number * 1_000_000 + block for block in range(AGENT_TOOL_BLOCKS)]
    sessions: list[dict[str, Any]] = []
    for agent in range(AGENTS):
        blocks, calls = list(tools), []
        for call in range(AGENT_CALLS):
            first = tools[0] + (agent + 1) * 1000 + call * 10
            blocks += range(first, first + 2 + (agent + call) % 3)
            length = len(blocks) * AGENT_BLOCK_TOKENS
            at_s = call * (1.0 + AGENT_PAUSE_S)
            calls.append({"t": at_s, "api_time": 1.0, "in": length, "out": 48, "hash_ids": list(blocks)})
        scope = {"block_size": AGENT_BLOCK_TOKENS, "hash_id_scope": "global"}
        sessions.append({"id": f"{number}-{agent}", **scope, "requests": calls})
    return sessions


def measure(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    with started(options) as contender, TemporaryDirectory(prefix="penstock-peers-") as folder:
        warm = ["--requests", "4", "--seed", "99", "--output-tokens", "16"]
        _bench(contender, Path(folder) / "warm.json", warm)
        for number in range(options.first_round, options.first_round + options.rounds):
            for name, words in loads(options, number, Path(folder)):
                if name not in options.loads:
                    continue
                spent_s = contender.cpu_s()
                report = _bench(contender, Path(folder) / f"{name}.json", words)
                report["server"] = {"cpu_s": contender.cpu_s() - spent_s, "pss_mb": contender.pss_mb()}
                out = options.folder / f"{options.name or options.what}-{name}-{number}.json"
                out.write_text(json.dumps(report, indent=1) + "\n")
                print(f"{options.what}, round {number}, {name}", file=sys.stderr, flush=True)


@contextmanager
def started(options: argparse.Namespace) -> Iterator[Contender]:
    """The server that was asked for, drafts off."""
    log = options.folder / f"{options.what}.log"
    servers: dict[str, Any] = {
        "penstock": lambda: penstock(options.model, ["--speculator", "0"]),
        "openvino": lambda: openvino(options.model, options.venv, log),
        "llama.cpp": lambda: llama_cpp(options.model, options.server, log),
        "vllm": lambda: vllm(options.model, options.venv, log, caches_prefixes=True),
        "dynamo": lambda: dynamo(options.model, options.venv, options.folder),
    }
    server: AbstractContextManager[list[Contender]] = servers[options.what]()
    with server as contenders:
        yield contenders[-1]


def _bench(contender: Contender, report: Path, words: list[str]) -> dict[str, Any]:
    where = ["--url", f"http://{contender.address}", "--interface", "chat", "--ignore-eos"]
    where += ["--deadline", str(DEADLINE_S)]
    slos = [word for objective in OBJECTIVES for word in ("--slo", objective)]
    asked = ("bench", "serve", *where, *words, *slos, "--json", str(report))
    command = [sys.executable, "-m", "services.cli", *asked]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, MISSED) or not report.exists():
        raise SystemExit(f"{words} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def row(report: dict[str, Any]) -> dict[str, float]:
    summary, origins = report["summary"], report["summary"]["token_origins"]
    latencies = summary["latencies_ms"]
    prompt = origins["prompt_computed"] + (origins["prompt_cached"] or 0)

    def quantile(quantity: str, name: str) -> float:
        return float(latencies[quantity][name]["value"] or nan)  # where no call was finished

    return {
        "ttft p50": quantile("ttft", "p50"),
        "ttft p99": quantile("ttft", "p99"),
        "itl p50": quantile("itl", "p50"),
        "itl p99": quantile("itl", "p99"),
        "job p50": quantile("job", "p50"),
        "goodput": summary["rates"]["goodput"],
        "tokens/s": summary["rates"]["output_tokens_per_s"],
        "CPU s": report["server"]["cpu_s"] / max(1, summary["calls"]),
        "cached": (origins["prompt_cached"] or 0) / max(1, prompt),
    }


def table(folder: Path) -> str:
    """Return a row for each load and server, the mean of its rounds."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for path in sorted(folder.glob("*-*-*.json")):
        server, _, rest = path.stem.partition("-")
        name = rest.rpartition("-")[0]
        found.setdefault((name, server), []).append(row(json.loads(path.read_text())))
    lines = [f"| load | server | {' | '.join(COLUMNS)} | rounds |", "|---" * (len(COLUMNS) + 3) + "|"]
    for (name, server), rows in sorted(found.items()):
        values = [f"{mean(one[column] for one in rows):.3g}".replace("nan", "-") for column in COLUMNS]
        lines.append(f"| {name} | {server} | {' | '.join(values)} | {len(rows)} |")
    return "\n".join(lines)


def _load_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(LOADS):
        raise argparse.ArgumentTypeError(f"no such load: {', '.join(sorted(unknown))}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=(*SERVERS, "table"))
    parser.add_argument("--folder", type=Path, required=True, help="where reports are")
    parser.add_argument("--model", type=Path, help="weights that the server reads")
    parser.add_argument("--server", type=Path, help="llama.cpp's llama-server")
    parser.add_argument("--venv", type=Path, help="the environment of vLLM, OpenVINO or Dynamo")
    parser.add_argument("--chats", type=Path, help="MT-Bench's questions, a JSON object a line")
    parser.add_argument("--trace", type=Path, help="Mooncake's trace")
    parser.add_argument("--rounds", type=int, default=1, help="there are questions for two")
    parser.add_argument("--first-round", type=int, default=0, metavar="N")
    parser.add_argument("--loads", type=_load_names, default=LOADS, metavar="NAME,…", help=", ".join(LOADS))
    parser.add_argument("--share", type=float, default=1.0, help="of questions and seconds; 0.5 is half")
    parser.add_argument("--name", default="", help="in the table, without a hyphen; default: the server's")
    options = parser.parse_args()
    if "-" in options.name:
        parser.error("--name has a hyphen, which reports' names are cut at")
    if options.what == "table":
        print(table(options.folder))
    else:
        measure(options)


if __name__ == "__main__":
    main()
