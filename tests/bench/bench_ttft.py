"""Where the time to the first token goes on an idle stack, phase by phase, beside the engine in process.

    python -m tests.bench.bench_ttft [--model DIR] [--requests N] [--prompt-tokens N] [--json FILE]

Requests come one at a time. Functions on their way are stamped in every process on the host's one clock
(`stamps/sitecustomize.py`); a phase is the time between two stamps, so that the phases of a request add up to
what its client saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from pathlib import Path

from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.engine import Engine, EngineConfig, SamplingParams
from tests.support.client import connect, request
from tests.support.data import REPOSITORY
from tests.support.models import target_model
from tests.support.percentile import percentile
from tests.support.stack import Stack

MILESTONES = (
    ("client → gateway", "Generate begins"),
    ("gateway: admitted", "encode Tokenize"),
    ("bus → tokenizer", "decode Tokenize"),
    ("tokenized", "encode Tokenized"),
    ("bus → gateway", "decode Tokenized"),
    ("gateway: placed", "encode {placed}"),
    ("bus → worker", "decode {placed}"),
    ("worker: queue", "run_step begins"),
    ("worker: compute", "run_step ends"),
    ("worker: hand-over", "encode Tokens"),
    ("bus → detokenizer", "decode Tokens"),
    ("detokenized", "encode Text"),
    ("bus → gateway, text", "decode Text"),
    ("gateway: deliver", "write_text begins"),
)
"""A phase, and the stamp that ends it: the first of that name after the one before. A stamp that a request
does not have is left out, and its time counts in the next phase. The last phase is the way to the client.
`placed` is what asks for the prompt: Prefill, or Reserve where a decode worker computes it."""
LAST_PHASE = "gateway → client"
WARM_UP = 20
PAUSE_S = 0.03
"""The pause between two requests: what the last one has changed is known to all by then."""

Window = tuple[int, int]
"""The times when a request was sent and when its first token came, ns."""


class Stamps:
    """Of all processes, in order of time."""

    def __init__(self, folder: Path) -> None:
        lines = [
            line.split(" ", 1) for file in folder.glob("*.txt") for line in file.read_text().splitlines()
        ]
        noted = sorted((int(at_ns), label) for at_ns, label in lines)
        self._times = [at_ns for at_ns, _ in noted]
        self._labels = [label for _, label in noted]

    def phases(self, window: Window) -> dict[str, float]:
        """Milliseconds by phase."""
        begin, end = window
        labels = self._labels[bisect_left(self._times, begin) : bisect_right(self._times, end)]
        times = self._times[bisect_left(self._times, begin) : bisect_right(self._times, end)]
        found: dict[str, float] = {}
        last_ns, index = begin, 0
        placed = "Prefill" if "encode Prefill" in labels else "Reserve"
        for phase, label in MILESTONES:
            try:
                at = labels.index(label.format(placed=placed), index)
            except ValueError:
                continue
            found[phase] = (times[at] - last_ns) / 1e6
            last_ns, index = times[at], at
        found[LAST_PHASE] = (end - last_ns) / 1e6
        return found


class Alone:
    """The engine in this process."""

    def __init__(self, model: Path) -> None:
        self._engine = Engine(EngineConfig(model_dir=str(model), prefix_cache=False))
        self._params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

    def ttft_ms(self, prompt: Sequence[int]) -> float:
        began_s = time.perf_counter()
        self._engine.admit("bench", list(prompt), len(prompt), self._params)
        while not self._engine.step().outputs:
            pass
        return (time.perf_counter() - began_s) * 1e3


def prompt_of(number: int, length: int) -> list[int]:
    """Of its own: the prefix cache helps nobody."""
    return [(7 * number + 3 * place * (1 + number // 300)) % 360 + 20 for place in range(length)]


async def sent(stub: rpc.InferenceStub, prompt: Sequence[int], output_tokens: int) -> Window:
    began_ns, first_ns = time.monotonic_ns(), 0
    async for event in stub.Generate(request(prompt, max_tokens=output_tokens, ignore_eos=True)):
        if event.text.token_ids and not first_ns:
            first_ns = time.monotonic_ns()
    return began_ns, first_ns


async def measured(stack: Stack, options: argparse.Namespace) -> tuple[list[Window], list[float]]:
    """Windows of the requests, and what the engine alone took for the same prompts, in turns."""
    alone = Alone(Path(options.model))
    windows, alone_ms = [], []
    async with connect(stack.grpc) as stub:
        for number in range(-WARM_UP, options.requests):
            prompt = prompt_of(number % 100_000, options.prompt_tokens)
            window = await sent(stub, prompt, options.output_tokens)
            took_ms = alone.ttft_ms(prompt)
            await asyncio.sleep(PAUSE_S)
            if number >= 0:
                windows.append(window)
                alone_ms.append(took_ms)
    return windows, alone_ms


def percentiles(values: Collection[float]) -> dict[str, float]:
    return {f"p{percent}": round(percentile(values, percent / 100), 3) for percent in (10, 50, 99)}


def table(
    windows: Sequence[Window], alone_ms: Sequence[float], stamps: Stamps
) -> dict[str, dict[str, float]]:
    """By phase, then of the whole."""
    rows: dict[str, list[float]] = {phase: [] for phase in (*dict(MILESTONES), LAST_PHASE)}
    for window in windows:
        for phase, took_ms in stamps.phases(window).items():
            rows[phase].append(took_ms)
    seen_ms = [(end - begin) / 1e6 for begin, end in windows]
    added = [seen - alone for seen, alone in zip(seen_ms, alone_ms, strict=True)]
    whole = {"client's TTFT": seen_ms, "engine in process": alone_ms, "added": added}
    return {name: percentiles(values) for name, values in (rows | whole).items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="checkpoint directory; the tests' small one by default")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--stack-options", default="", help="more options for `penstock up`, space separated")
    parser.add_argument("--json", default="", help="also write the table there")
    options = parser.parse_args()
    options.model = options.model or str(target_model(Path("/tmp/penstock-bench")))
    up = ("--model", options.model, "--corpus", "none", "--retriever", "0", "--draft", "none")
    with tempfile.TemporaryDirectory(prefix="penstock-stamps-") as folder:
        environ = {"PENSTOCK_STAMPS": folder, "PYTHONPATH": str(REPOSITORY / "tests/bench/stamps")}
        with Stack(*up, *options.stack_options.split(), environ=environ) as stack:
            windows, alone_ms = asyncio.run(measured(stack, options))
        rows = table(windows, alone_ms, Stamps(Path(folder)))
    print(f"{'ms':<24} {'p10':>8} {'p50':>8} {'p99':>8}")
    for name, values in rows.items():
        print(f"{name:<24} {values['p10']:8.3f} {values['p50']:8.3f} {values['p99']:8.3f}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
