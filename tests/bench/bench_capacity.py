"""How far `penstock capacity` is from what `penstock bench serve` measures, over mixes of instances.

    python -m tests.bench.bench_capacity measure --model FILE --folder DIR --rates 2,5,8 [--transport shm]
    python -m tests.bench.bench_capacity table --folder DIR --rates 2,5,8 [--transport shm]

`measure` starts a stack of each mix of prefill and decode workers and puts a Poisson load of each rate on it.
The profile is made of the first mix alone, with other loads: prompts one at a time, with KV that moves and
without, and answers of one to eight clients behind short prompts. What lies in the folder is not measured
again, so that a long table can be made in pieces (`--budget`). `table` plays the very arrivals of every point
on that profile, and sets what that predicts beside what was measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.measured_comparison import MeasuredFile
from services.cli.capacity.pipeline.pipeline import REQUEST_PARTS
from services.cli.capacity.prediction import Prediction, predict_finite
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts
from services.cli.capacity.profile_file import read_profile
from services.cli.capacity.workload import Workload
from shared.process.cores import usable_cores
from tests.bench.process_cost import cpu_s
from tests.support.data import REPOSITORY
from tests.support.stack import Stack

INPUT_TOKENS = 128
OUTPUT_TOKENS = 32
SHORT_PROMPT_TOKENS = 16
LONG_ANSWER_TOKENS = 64
FIT_CLIENTS = (1, 2, 4, 8)
FIT_S = 4.0
POINT_S = 10.0
OBJECTIVES = ("ttft_p99<500ms", "itl_p99<40ms")
"""The bounds of goodput, which counts calls that keep both."""
WITHIN = {
    "ttft_p50": 0.10,
    "ttft_p99": 0.20,
    "itl_p50": 0.10,
    "itl_p99": 0.20,
    "e2e_p50": 0.10,
    "goodput": 0.10,
}
"""The figures that are compared, and how far off a prediction is to be at most."""
RANKED = {"ttft_p50": 1, "e2e_p50": 1, "goodput": -1}
"""The figures by which mixes are ranked, predicted and measured; -1: more is better."""
SETTINGS = {
    "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
    "PENSTOCK_DECODE_NGRAM_TOKENS": "0",
}
"""Settings that turn off what a prediction leaves out: prompts on decode workers, drafts."""
TEXTS = itertools.count(1)
"""Each load has texts of its own: else their KV would be found."""


@dataclass(frozen=True, slots=True)
class Mix:
    prefill: int
    decode: int

    @property
    def name(self) -> str:
        return f"{self.prefill}x{self.decode}"

    @classmethod
    def read(cls, text: str) -> Mix:
        prefill, _, decode = text.partition("x")
        return cls(int(prefill), int(decode))


def measure(options: argparse.Namespace) -> None:
    """Measure what is missing until the budget is spent; exit code 3 where something is left."""
    ends_s = time.monotonic() + options.budget
    options.folder.mkdir(parents=True, exist_ok=True)
    for number, mix in enumerate(options.mixes):
        points = [_point_file(options, mix, rate) for rate in options.rates]
        fit = number == 0 and not _profile_file(options).exists()
        if not fit and all(point.exists() for point in points):
            continue
        if time.monotonic() > ends_s:
            raise SystemExit(3)
        with _stack(options, mix) as stack:
            _load(stack, "--concurrency", "1", "--duration", "3", "--input-tokens", str(INPUT_TOKENS))
            if fit:
                _profile_file(options).write_text(json.dumps(_fitted(stack, options.folder), indent=1))
            for rate, point in zip(options.rates, points, strict=True):
                if not point.exists() and time.monotonic() < ends_s:
                    _load(stack, *_point_load(rate), "--json", str(point))
                    print(f"{options.transport} {mix.name} {rate:g}/s measured", file=sys.stderr)


def _stack(options: argparse.Namespace, mix: Mix) -> Stack:
    roles = (
        "--prefill",
        str(mix.prefill),
        "--decode",
        str(mix.decode),
        "--retriever",
        "0",
        "--speculator",
        "0",
    )
    up = ("--model", str(options.model), "--draft", "none", "--corpus", "none", *roles)
    return Stack(*up, "--kv-transport", options.transport, environ=SETTINGS)


def _point_load(rate: float) -> tuple[str, ...]:
    lengths = ("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS))
    slos = [word for objective in OBJECTIVES for word in ("--slo", objective)]
    return ("--rate", str(rate), "--duration", str(POINT_S), *lengths, *slos)


def _load(stack: Stack, *words: str) -> None:
    """Put a load on the stack by the command that users have."""
    options = ("--interface", "completions", "--ignore-eos", "--grpc", stack.grpc)
    _penstock("bench", "serve", *options, "--text-seed", str(next(TEXTS)), *words)


def _penstock(*words: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "services.cli", *words]
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def _fitted(stack: Stack, folder: Path) -> dict[str, Any]:
    """Return a profile of three watches: prompts alone, prompts whose KV moves, and answers alone of 1 to 8
    clients."""
    lengths = ("--input-tokens", str(INPUT_TOKENS), "--output-tokens", "1")
    prompts = _watched(stack, folder / "prompts.json", [("--concurrency", "1", *lengths)])
    lengths = ("--input-tokens", str(INPUT_TOKENS), "--output-tokens", "2")
    moved = _watched(stack, folder / "moved.json", [("--concurrency", "1", *lengths)])
    lengths = ("--input-tokens", str(SHORT_PROMPT_TOKENS), "--output-tokens", str(LONG_ANSWER_TOKENS))
    loads = [("--concurrency", str(clients), *lengths) for clients in FIT_CLIENTS]
    answers = _watched(stack, folder / "answers.json", loads)
    return {"prompts": prompts, "moved": moved, "answers": answers}


def _watched(stack: Stack, out: Path, loads: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return a profile of the stack under these loads, one after another, and what they cost."""
    watch_s = len(loads) * (FIT_S + 3.0)
    command = ("capacity", "profile", "--out", str(out), "--watch", str(watch_s))
    watching = subprocess.Popen(
        [sys.executable, "-m", "services.cli", *command, "--state-dir", str(stack.state_dir)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(2.0)  # it collects the fleet first
    before = dict(_costs(stack))
    reports = []
    for number, load in enumerate(loads):
        report = out.with_suffix(f".{number}.json")
        _load(stack, *load, "--duration", str(FIT_S), "--json", str(report))
        reports.append(json.loads(report.read_text()))
    after = dict(_costs(stack))
    watching.communicate()
    summaries = [report["summary"] for report in reports]
    calls = sum(summary["calls"] for summary in summaries)
    client_s = sum(summary["generator"]["cpu_share"] * summary["seconds"] for summary in summaries)
    return {
        "profile": json.loads(out.read_text()),
        "loads": [
            {
                "options": list(load),
                "calls": summary["calls"],
                "seconds": summary["seconds"],
                "output_tokens_per_s": summary["rates"]["output_tokens_per_s"],
                "ttft_p50": summary["latencies_ms"]["ttft"]["p50"]["value"],
                "itl_p50": summary["latencies_ms"]["itl"]["p50"]["value"],
                "phases": {name: found["p50"]["value"] for name, found in summary["phases_ms"].items()},
            }
            for load, summary in zip(loads, summaries, strict=True)
        ],
        "calls": calls,
        "output_tokens": sum(s["rates"]["output_tokens_per_s"] * s["seconds"] for s in summaries),
        "cpu_ms": {name: (after[name] - spent) * 1e3 for name, spent in before.items()},
        "client_cpu_ms": client_s * 1e3,
    }


def _costs(stack: Stack) -> Iterator[tuple[str, float]]:
    """Yield the CPU of each service so far; of workers that of their loop and of all their threads."""
    for instance in stack.instances():
        yield instance.id, cpu_s(instance.pid)
        yield f"{instance.id}/loop", _thread_cpu_s(instance.pid, instance.pid)
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid,comm"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        pid, parent, name = line.split(maxsplit=2)
        if name.startswith("nats-server") and parent == str(stack.process.pid):
            yield "nats", cpu_s(int(pid))


def _thread_cpu_s(pid: int, thread: int) -> float:
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fitted_profile(fit: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a profile from all watches: what a request costs and what a token does are told
    apart by answers of one token and of many, what KV costs on its way by answers of one token and of two."""
    prompts, answers = fit["prompts"], fit["answers"]
    front = ("gateway-0", "tokenizer-0", "detokenizer-0")
    cpu_ms, token_cpu_ms = _split_costs(
        prompts, answers, lambda watch: sum(watch["cpu_ms"][one] for one in front)
    )
    beside_ms, token_beside_ms = _split_costs(prompts, answers, _beside_ms)
    tables: dict[str, Any] = {**answers["profile"], "prefill": prompts["profile"]["prefill"]}
    (load,) = prompts["loads"]
    way_ms = load["ttft_p50"] - load["phases"]["prefill.compute"]
    front_ms = min(cpu_ms, max(0.0, way_ms - token_cpu_ms))  # the rest is spent behind the first token
    tables["gateway"] = {
        "cpu_ms": front_ms,
        "token_cpu_ms": token_cpu_ms,
        "overhead_ms": max(0.0, way_ms - front_ms - token_cpu_ms),
    }
    moved = fit.get("moved", prompts)  # a prefill worker sends KV while it computes
    prompt_ms = moved["loads"][0]["phases"]["prefill.compute"]
    request_ms = beside_ms + cpu_ms - front_ms
    held_up_ms = request_ms / REQUEST_PARTS  # a played prompt waits for that, as the watched one has done
    tables["prefill"]["tokens_per_s"] = 1e3 * INPUT_TOKENS / max(1.0, prompt_ms - held_up_ms)
    tables["prefill"]["cores"] = _computing_cores(moved, "prefill", moved["calls"] * prompt_ms)
    tables["decode"]["cores"] = _computing_cores(answers, "decode", sum(map(_stepping_ms, answers["loads"])))
    alone = answers["loads"][0]["phases"]  # of one client: others would wait for the step that runs
    tables["decode"]["transfer_ms"] = alone["kv.transfer"] + alone["decode.queue"]
    tables["host"] |= {"request_cpu_ms": request_ms, "token_cpu_ms": token_beside_ms}
    if "moved" in fit:
        tables["host"]["kv_token_cpu_ms"] = _kv_token_ms(prompts, moved, token_beside_ms + token_cpu_ms)
    return tables


def _computing_cores(watch: dict[str, Any], role: str, busy_ms: float) -> float:
    """Return the cores that a worker keeps busy while it computes: not all of its threads do all the time."""
    costs: dict[str, float] = watch["cpu_ms"]
    return min(float(usable_cores()), (costs[f"{role}-0"] - costs[f"{role}-0/loop"]) / busy_ms)


def _kv_token_ms(prompts: dict[str, Any], moved: dict[str, Any], token_ms: float) -> float:
    """Return what the KV of a prompt's token costs beside the threads that compute it: both loads differ by
    it and by one token."""
    short, long = (
        (_beside_ms(watch) + watch["cpu_ms"]["decode-0"] - watch["cpu_ms"]["decode-0/loop"]) / watch["calls"]
        for watch in (prompts, moved)
    )
    beside_ms: float = max(0.0, long - short - token_ms)
    return beside_ms / INPUT_TOKENS


def _stepping_ms(load: dict[str, Any]) -> float:
    """Return how long a decode worker stepped for a closed load, whose clients share its steps."""
    clients = int(load["options"][1])
    return float(load["calls"] * load["phases"]["decode"] / clients)


def _split_costs(
    prompts: dict[str, Any], answers: dict[str, Any], cost: Callable[[dict[str, Any]], float]
) -> tuple[float, float]:
    """Return the cost of a request, and of a token of its answer."""
    short, long = cost(prompts) / prompts["calls"], cost(answers) / answers["calls"]
    tokens = answers["output_tokens"] / answers["calls"]
    token = max(0.0, (long - short) / (tokens - 1.0))
    return max(0.0, short - token), token


def _beside_ms(watch: dict[str, Any]) -> float:
    """Return the CPU of the bus, of the client and of the loops of workers."""
    costs: dict[str, float] = watch["cpu_ms"]
    found: float = costs["nats"] + costs["prefill-0/loop"] + costs["decode-0/loop"] + watch["client_cpu_ms"]
    return found


def table(options: argparse.Namespace) -> None:
    """Print predicted beside measured, how many are within their goals, and what the best mix would be."""
    profile_file = options.folder / f"profile-{options.transport}.json"
    fit = json.loads(_profile_file(options).read_text())
    profile_file.write_text(json.dumps(fitted_profile(fit), indent=1))
    profile = read_profile(profile_file)
    print("| prefill x decode | rate/s | calls | " + " | ".join(WITHIN) + " |")
    print("|---" * (len(WITHIN) + 3) + "|")
    errors: dict[str, list[float]] = {figure: [] for figure in WITHIN}
    ranked: dict[tuple[float, str], list[tuple[float, float, str]]] = {}
    for rate, mix in itertools.product(options.rates, options.mixes):
        point = _point_file(options, mix, rate)
        if not point.exists():
            continue
        summary = json.loads(point.read_text())["summary"]
        prediction = _predicted(profile, MeasuredFile.read(point).times_s, mix)
        cells = []
        for figure in WITHIN:
            measured, predicted = _figures(figure, summary, prediction)
            errors[figure].append(predicted / measured - 1 if measured else math.inf)
            cells.append(f"{predicted:.3g} / {measured:.3g} ({errors[figure][-1]:+.0%})")
            if figure in RANKED:
                ranked.setdefault((rate, figure), []).append((predicted, measured, mix.name))
        print(f"| {mix.name} | {summary['calls'] / POINT_S:.1f} | {summary['calls']} | {' | '.join(cells)} |")
    within = [
        f"{sum(abs(one) <= WITHIN[figure] for one in found)} of {len(found)} within {WITHIN[figure]:.0%}, "
        f"median {median(map(abs, found)):.0%}"
        for figure, found in errors.items()
    ]
    print("| all | | | " + " | ".join(within) + " |\n")
    for (rate, figure), rows in ranked.items():
        sign, unit = RANKED[figure], "/s" if figure == "goodput" else " ms"
        chosen = min(rows, key=lambda row: sign * row[0])
        best = min(rows, key=lambda row: sign * row[1])
        print(
            f"at {rate:g}/s by {figure}: {chosen[2]} is recommended, {best[2]} was best; "
            f"measured {chosen[1]:.3g} and {best[1]:.3g}{unit} ({chosen[1] / best[1] - 1:+.0%})"
        )


def _figures(figure: str, summary: dict[str, Any], prediction: Prediction) -> tuple[float, float]:
    """Return it measured and predicted."""
    if figure == "goodput":
        return summary["rates"][figure], prediction.rates[figure]
    quantity, share = figure.split("_")
    measured = summary["latencies_ms"][quantity][share]["value"]
    return measured, prediction.latencies[quantity].quantiles[share].value


def _predicted(profile: DeploymentProfile, times_s: Sequence[float], mix: Mix) -> Prediction:
    lengths = (TokenLengths(INPUT_TOKENS, INPUT_TOKENS), TokenLengths(OUTPUT_TOKENS, OUTPUT_TOKENS))
    workload = Workload.of_lengths(1.0, 1.0, *lengths)
    levels = [ServiceLevel.read(objective) for objective in OBJECTIVES]
    counts = InstanceCounts(1, mix.prefill, mix.decode)
    return predict_finite(profile, workload, counts, times_s, levels, hosts=1)


def _profile_file(options: argparse.Namespace) -> Path:
    return Path(options.folder / f"fit-{options.transport}.json")


def _point_file(options: argparse.Namespace, mix: Mix, rate: float) -> Path:
    return Path(options.folder / f"point-{options.transport}-{mix.name}-{rate:g}.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--transport", choices=("shm", "nats"), default="shm")
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")])
    every = [Mix(prefill, decode) for prefill in (1, 2, 3) for decode in (1, 2, 3)]
    parser.add_argument(
        "--mixes", type=lambda text: [Mix.read(one) for one in text.split(",")], default=every
    )
    parser.add_argument("--budget", type=float, default=380.0, metavar="S", help="begin nothing later")
    options = parser.parse_args()
    if options.what == "measure":
        measure(options)
    else:
        table(options)


if __name__ == "__main__":
    main()
