"""Measure what drafts bring to who reads the answers: two whole stacks, with drafts and without, in turns.

    python -m tests.bench.bench_served_drafts --model FILE [--batch 1,8] [--kinds chat,code,passages]
                                              [--prompts N] [--tokens N] [--temperature T]
                                              [--threads N] [--json]

Each stack is started as `penstock up` starts it, one with all drafts that it has for the model by itself
(look-ups, the draft head that ships), one without any, and is asked over gRPC: one stream at a time, and
eight that begin together. Prompts are those of `bench_ngram`, none of them twice: a stack remembers its
answers. While one stack answers the other is idle. Answers have to be the same.

`itl`: the mean time between the tokens of an answer, however many come at once. CPU times are of tokens: of
the decode worker, and of all processes. What drafts take is beside what they bring: the time to the first
token, and memory of the decode worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.stacks.own_stack import OwnStack, StackPlan, own_stack
from shared.text.tokenizer import TextTokenizer
from tests.bench.bench_ngram import KINDS, read_kinds
from tests.bench.process_cost import cpu_s, pss_mb
from tests.support.client import connect, request
from tests.support.data import data_dir

OFF, ON = "off", "on"
NO_DRAFTS = {"PENSTOCK_DECODE_NGRAM_TOKENS": "0", "PENSTOCK_DECODE_DRAFT_HEAD": "none"}
WARM_PROMPTS, WARM_TOKENS = 3, 48
REQUEST_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    ttft_ms: float
    itl_ms: float


@dataclass(slots=True)
class Side:
    """All answers of one stack to one kind of prompts, and the CPU time that they took."""

    answers: list[Answer] = field(default_factory=list)
    decode_cpu_s: float = 0.0
    all_cpu_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)


class Served:
    """A stack that is asked."""

    def __init__(self, stack: OwnStack, stub: rpc.InferenceStub, temperature: float) -> None:
        self._pids = stack.pids
        self._stub = stub
        self._temperature = temperature
        (self._decode_pid,) = [pid for name, pid in self._pids.items() if name.startswith("decode")]

    @property
    def decode_mb(self) -> float:
        return pss_mb(self._decode_pid)

    async def answer(self, prompts: Sequence[Sequence[int]], tokens: int, side: Side) -> list[Answer]:
        """Ask all of them at once."""
        began_s, began_decode_s = self._cpu_s(), cpu_s(self._decode_pid)
        answers = await asyncio.gather(*(self._ask(prompt, tokens) for prompt in prompts))
        side.decode_cpu_s += cpu_s(self._decode_pid) - began_decode_s
        side.all_cpu_s += self._cpu_s() - began_s
        side.answers += answers
        return answers

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids.values())

    async def _ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        sent_s = time.perf_counter()
        ids: list[int] = []
        arrived_s: list[float] = []
        message = request(prompt, max_tokens=tokens, temperature=self._temperature, seed=7)
        async with asyncio.timeout(REQUEST_DEADLINE_S):
            async for event in self._stub.Generate(message):
                if event.text.token_ids:
                    ids += event.text.token_ids
                    arrived_s.append(time.perf_counter())
        first_s, last_s = arrived_s[0], arrived_s[-1]
        return Answer(tuple(ids), 1e3 * (first_s - sent_s), 1e3 * (last_s - first_s) / max(1, len(ids) - 1))


def plan_of(options: argparse.Namespace, *, drafts: bool) -> StackPlan:
    variables = {} if drafts else dict(NO_DRAFTS)
    if options.threads:
        variables |= {f"PENSTOCK_{role}_THREADS": str(options.threads) for role in ("DECODE", "PREFILL")}
    without = ("--draft", "none", "--corpus", "none", "--retriever", "0", "--speculator", "0")
    return StackPlan(("--model", str(options.model), *without), configured=False, variables=variables)


async def compare(
    served: dict[str, Served], prompts: Sequence[Sequence[int]], batch: int, tokens: int
) -> dict[str, float]:
    """Groups of `batch` prompts, each by both, who is first in turns."""
    sides = {name: Side() for name in served}
    groups = [prompts[first : first + batch] for first in range(0, len(prompts) - batch + 1, batch)]
    for number, group in enumerate(groups):
        names = list(served) if number % 2 else list(served)[::-1]
        found = {name: await served[name].answer(group, tokens, sides[name]) for name in names}
        if [each.token_ids for each in found[ON]] != [each.token_ids for each in found[OFF]]:
            sys.exit("the answers differ")
    off, on = sides[OFF], sides[ON]
    ratios = [
        mine.itl_ms / its.itl_ms for mine, its in zip(off.answers, on.answers, strict=True) if its.itl_ms
    ]
    row: dict[str, float] = {"tokens": off.tokens}
    for name, side in sides.items():
        row |= {
            f"{name}_itl_ms": statistics.mean(answer.itl_ms for answer in side.answers),
            f"{name}_ttft_ms": statistics.median(answer.ttft_ms for answer in side.answers),
            f"{name}_decode_cpu_ms": 1e3 * side.decode_cpu_s / side.tokens,
            f"{name}_all_cpu_ms": 1e3 * side.all_cpu_s / side.tokens,
        }
    return row | {
        "itl_ratio": row["off_itl_ms"] / row["on_itl_ms"],
        "itl_ratio_median": statistics.median(ratios),
        "itl_ratio_worst": min(ratios),
        "decode_cpu_ratio": row["off_decode_cpu_ms"] / row["on_decode_cpu_ms"],
        "all_cpu_ratio": row["off_all_cpu_ms"] / row["on_all_cpu_ms"],
        "ttft_ratio": row["off_ttft_ms"] / row["on_ttft_ms"],
    }


async def measure(
    options: argparse.Namespace, kinds: dict[str, list[list[int]]]
) -> dict[str, dict[str, float]]:
    batches = [int(part) for part in options.batch.split(",")]
    random = Random(3)
    async with AsyncExitStack() as held:
        served: dict[str, Served] = {}
        for name in (OFF, ON):
            stack = await held.enter_async_context(own_stack(plan_of(options, drafts=name == ON)))
            stub = await held.enter_async_context(connect(stack.address("grpc")))
            served[name] = Served(stack, stub, options.temperature)
        for _ in range(WARM_PROMPTS):  # so that workers know what their steps take
            prompt = random.choices(range(1000, 40_000), k=32)
            for each in served.values():
                await each.answer([prompt], WARM_TOKENS, Side())
        found: dict[str, dict[str, float]] = {}
        for kind in options.kinds.split(","):
            left = kinds[kind]
            for batch in batches:
                chosen, left = left[: options.prompts], left[options.prompts :]
                found[f"{kind} b{batch}"] = await compare(served, chosen, batch, options.tokens)
                print_row(f"{kind} b{batch}", found[f"{kind} b{batch}"])
        found["memory"] = {f"{name}_decode_mb": each.decode_mb for name, each in served.items()}
    return found


def print_row(name: str, row: dict[str, float]) -> None:
    print(
        f"{name:12} {row['off_itl_ms']:8.2f} {row['on_itl_ms']:8.2f} {row['itl_ratio']:7.3f} "
        f"{row['itl_ratio_median']:7.3f} {row['itl_ratio_worst']:7.3f} {row['decode_cpu_ratio']:8.3f} "
        f"{row['all_cpu_ratio']:8.3f} {row['off_ttft_ms']:8.0f} {row['on_ttft_ms']:8.0f}",
        flush=True,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder or GGUF file")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--prompts", type=int, default=8, help="of each kind and batch")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=0, help="of the workers; 0: as a stack has them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = data_dir()
    if data is None:
        parser.error("the shared test data is not at hand; see tests/support/data.py")
    count = options.prompts * len(options.batch.split(","))
    kinds = read_kinds(data, TextTokenizer.load(options.model), count)
    kinds = {name: prompts[::2] + prompts[1::2] for name, prompts in kinds.items()}
    print("prompts       itl off       on   ratio  median   worst  CPU dec.  CPU all ttft off       on")
    found = asyncio.run(measure(options, kinds))
    print(json.dumps(found if options.json else found["memory"], indent=2))


if __name__ == "__main__":
    main()
