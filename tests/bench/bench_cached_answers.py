"""What an earlier answer saves, and what looking for one in vain costs: time to the first token on a stack.

    python -m tests.bench.bench_cached_answers [--rounds 30] [--options "--threads 1"]

One client; requests one at a time, of each kind in turns: without the cache, missed as they are and by
meaning, then the same question again, and the same in other words that nobody has used before, so that the
encoder runs. The model is the small one that ships, so that an answer takes little and a miss much of that:
with a larger one it costs as many milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.support.client import Answer, connect, generate, request
from tests.support.percentile import percentile
from tests.support.stack import Stack
from tests.support.wait import until

OFF, EXACT, SEMANTIC = pb.CACHE_MODE_OFF, pb.CACHE_MODE_EXACT, pb.CACHE_MODE_SEMANTIC
THINGS = ("gate", "harbour", "library", "mill", "lighthouse", "archive", "bridge", "market")
PLACES = ("Oslo", "Rome", "Lima", "Quito", "Delhi", "Cairo", "Kyoto", "Porto", "Tunis", "Turin", "Ghent")
MAX_TOKENS = 8
WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    mode: pb.CacheMode
    prefix: str = ""


COMPUTED = (
    Kind("without the cache", OFF),
    Kind("missed as it is", EXACT),
    Kind("missed by meaning", SEMANTIC),
)
SAME = COMPUTED[2]
AGAIN = Kind("found as it is", EXACT)
REWORDED = Kind("found by meaning", SEMANTIC, "Please tell me: ")


def questions() -> Iterator[str]:
    """About things of their own: none is near enough to another one."""
    for place, thing in product(PLACES, THINGS):
        yield f"Where is the old {thing} of {place}, and who looks after it?"


def wanting(question: str, kind: Kind) -> pb.GenerateRequest:
    asked = f"{kind.prefix}{question[0].lower()}{question[1:]}" if kind.prefix else question
    message = request(asked, max_tokens=MAX_TOKENS, ignore_eos=True)
    message.cache.mode = kind.mode
    return message


async def answered(stub: rpc.InferenceStub, question: str, kind: Kind) -> Answer:
    answer = await generate(stub, wanting(question, kind))
    assert answer.outcome == "finished", answer.details
    return answer


def is_cached(answer: Answer) -> bool:
    return answer.prompt is not None and answer.prompt.HasField("cached")


async def measured(stub: rpc.InferenceStub, rounds: int) -> dict[str, list[float]]:
    """Milliseconds to the first token, by kind; of the last kind those that were found."""
    took: dict[str, list[float]] = {kind.name: [] for kind in (*COMPUTED, AGAIN, REWORDED)}
    asked = questions()
    for number in range(WARM_UP + rounds):
        question = ""
        for kind in COMPUTED:
            question = next(asked)
            _note(took, kind, await answered(stub, question, kind), number)
        await until(partial(kept, stub, question))  # what ends is kept a moment later
        _note(took, AGAIN, await answered(stub, question, AGAIN), number)
        reworded = await answered(stub, question, REWORDED)
        if is_cached(reworded):
            _note(took, REWORDED, reworded, number)
    return took


async def kept(stub: rpc.InferenceStub, question: str) -> bool:
    return is_cached(await answered(stub, question, SAME))


def _note(took: dict[str, list[float]], kind: Kind, answer: Answer, number: int) -> None:
    if number >= WARM_UP:
        took[kind.name].append(answer.ttft_us / 1000)


async def run(stack: Stack, rounds: int) -> None:
    async with connect(stack.grpc) as stub:
        took = await measured(stub, rounds)
    base = percentile(took[COMPUTED[0].name], 0.5)
    print("time to the first token, ms")
    for name, values in took.items():
        p50, p90 = percentile(values, 0.5), percentile(values, 0.9)
        print(
            f"  {name:18} {len(values):3} of {rounds}  p50 {p50:6.1f}  p90 {p90:6.1f}"
            f"  {p50 - base:+7.1f} ms, {p50 / base:.2f}x"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    most = len(PLACES) * len(THINGS) // len(COMPUTED) - WARM_UP
    parser.add_argument("--rounds", type=int, default=25, help=f"up to {most}")
    parser.add_argument("--options", default="", help="more of penstock up")
    options = parser.parse_args()
    if not 1 <= options.rounds <= most:
        parser.error(f"--rounds is {options.rounds}: give 1 to {most}")
    chosen = ["--retriever", "1", "--corpus", "none", *shlex.split(options.options)]
    with Stack(*chosen) as stack:
        asyncio.run(run(stack, options.rounds))


if __name__ == "__main__":
    main()
