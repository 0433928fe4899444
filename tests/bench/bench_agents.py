"""Count what a perfect cache would not compute of an agent's turns, and what is computed, with hints and
without.

    python -m tests.bench.bench_agents [--agents N] [--turns N] [--rounds N] [--pause S] [--local-tokens N]

A stack of our own answers agents beside each other, whose prompts go on with their answers and with the
results of tools, texts of the documentation. Agents with hints and without take turns. `allowed` counts the
tokens that a prompt begins with as the one before with its answer ends, block by block; `ideal` is the first
token of the same prompt with another result of the same length, when all before it is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random

import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.stacks.own_stack import DEMO_PLAN, own_stack
from services.cli.launcher_process import ROOT
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.seams.chance import CHANCE

DOCUMENTS = ROOT / "shared" / "demo" / "documents"
UNKNOWN = ("a", "0")
LEAST_CHARS, MOST_CHARS = 100, 900
"""The length of a tool's result, even on a scale of logarithms."""
ANSWER_TOKENS = (16, 64)
READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The result that a turn brings, another one of that length, and the tokens of its answer."""

    result: str
    other: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    turn: int
    prompt_tokens: int
    allowed_tokens: int
    cached_tokens: int
    ttft_s: float
    ideal_s: float


@dataclass(slots=True)
class Side:
    """All turns of the agents with hints, or of those without, and how long each of their jobs took."""

    records: list[TurnRecord] = field(default_factory=list)
    jobs_s: list[float] = field(default_factory=list)

    @property
    def followers(self) -> list[TurnRecord]:
        return [record for record in self.records if record.turn]

    def reuse(self, turn: int | None = None) -> float:
        chosen = [record for record in self.followers if turn in (None, record.turn)]
        allowed = sum(record.allowed_tokens for record in chosen)
        return sum(min(record.cached_tokens, record.allowed_tokens) for record in chosen) / max(1, allowed)

    @property
    def ttft_ratio(self) -> float:
        return statistics.median(record.ttft_s / record.ideal_s for record in self.followers)


def plan(seed: str, turns: int) -> list[Turn]:
    """Texts that nobody has sent before, of lengths that depend on the seed alone."""
    chance, texts = Random(seed), _texts(seed)
    made = []
    for _ in range(turns):
        chars = round(LEAST_CHARS * (MOST_CHARS / LEAST_CHARS) ** chance.random())
        result, other = (f"[{CHANCE.hex_digits(8)}] {next(texts)[:chars]}" for _ in range(2))
        made.append(Turn(result, other, chance.randint(*ANSWER_TOKENS)))
    return made


def _texts(seed: str) -> Iterator[str]:
    pages = [path.read_text("utf-8") for path in sorted(DOCUMENTS.rglob("*.md"))]
    whole = "\n".join(pages)
    chance = Random(f"{seed}/texts")
    while True:
        yield whole[chance.randrange(len(whole) - MOST_CHARS) :]


class AgentRun:
    """The calls of one agent; `hinted`: they say so."""

    def __init__(
        self, stub: rpc.InferenceStub, turns: Sequence[Turn], pause_s: float, *, hinted: bool
    ) -> None:
        self._stub = stub
        self._turns = turns
        self._pause_s = pause_s
        self._session = f"run-{CHANCE.hex_digits(4)}" if hinted else ""
        self._chat = [pb.ChatMessage(role="system", content=f"Agent {CHANCE.hex_digits(4)}: answer briefly.")]

    async def run(self, side: Side) -> None:
        began_s, probing_s = time.monotonic(), 0.0
        known: tuple[int, ...] = ()
        for number, turn in enumerate(self._turns):
            chat = [*self._chat, pb.ChatMessage(role="user", content=turn.result)]
            last = number == len(self._turns) - 1
            usage, ttft_s, text = await self._ask(chat, turn.tokens, last=last)
            probe_s = time.monotonic()
            ids = await self._ids(chat)
            allowed = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(known, ids, strict=False))))
            other = [*self._chat, pb.ChatMessage(role="user", content=turn.other)]
            ideal_s = (await self._ask(other, 1, last=last, silent=True))[1] if number else ttft_s
            self._chat = [*chat, pb.ChatMessage(role="assistant", content=text)]
            known = await self._known()
            allowed -= allowed % HASH_BLOCK_TOKENS
            side.records.append(
                TurnRecord(number, usage.prompt_tokens, allowed, usage.cached_tokens, ttft_s, ideal_s)
            )
            probing_s += time.monotonic() - probe_s
            if not last:
                await asyncio.sleep(max(0.0, self._pause_s))
        side.jobs_s.append(time.monotonic() - began_s - probing_s)

    async def _ask(
        self, chat: Sequence[pb.ChatMessage], tokens: int, *, last: bool, silent: bool = False
    ) -> tuple[pb.Usage, float, str]:
        sampling = pb.Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        request = pb.GenerateRequest(chat=pb.ChatPrompt(messages=chat), sampling=sampling)
        if self._session and not silent:
            pause_ms = round(1000 * self._pause_s)
            hints = pb.AgentHints(session=self._session, pause_ms=pause_ms, warm_next=True, final=last)
            request.agent.CopyFrom(hints)
        began_s, ttft_s, text = time.monotonic(), 0.0, ""
        usage = pb.Usage()
        async for event in self._stub.Generate(request):
            if event.HasField("text"):
                ttft_s = ttft_s or time.monotonic() - began_s
                text += event.text.text
            elif event.HasField("end"):
                usage = event.end.usage
        return usage, ttft_s, text

    async def _ids(self, chat: Sequence[pb.ChatMessage]) -> tuple[int, ...]:
        answer = await self._stub.Tokenize(pb.TokenizeRequest(chat=pb.ChatPrompt(messages=chat)))
        return tuple(answer.token_ids)

    async def _known(self) -> tuple[int, ...]:
        """Return what the next prompt begins with, whatever the result is."""
        one, other = [
            await self._ids([*self._chat, pb.ChatMessage(role="user", content=unknown)])
            for unknown in UNKNOWN
        ]
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return tuple(pair[0] for pair in pairs)


async def measure(options: argparse.Namespace) -> None:
    variables = {"PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": str(options.local_tokens)}
    sides = {False: Side(), True: Side()}
    plan_of_stack = replace(DEMO_PLAN, variables=variables)
    async with own_stack(plan_of_stack) as stack, grpc.aio.insecure_channel(stack.address("grpc")) as channel:
        await asyncio.wait_for(channel.channel_ready(), READY_S)
        stub = rpc.InferenceStub(channel)
        for number in range(-1, options.rounds):
            for hinted in (False, True) if number % 2 else (True, False):
                runs = [
                    AgentRun(stub, plan(f"{number}/{agent}", options.turns), options.pause, hinted=hinted)
                    for agent in range(options.agents)
                ]
                side = sides[hinted] if number >= 0 else Side()  # the first round warms up
                await asyncio.gather(*(run.run(side) for run in runs))
    _report(sides, options.turns)


def _report(sides: dict[bool, Side], turns: int) -> None:
    for hinted, side in sides.items():
        followers = side.followers
        prompt, cached, allowed = (
            sum(getattr(record, name) for record in followers)
            for name in ("prompt_tokens", "cached_tokens", "allowed_tokens")
        )
        word = "hints" if hinted else "none "
        print(
            f"{word}  {len(followers)} next turns: {prompt} tokens, {allowed} allowed, {cached} cached, "
            f"reuse {side.reuse():.1%}; first token {side.ttft_ratio:.2f} of ideal; "
            f"job {statistics.median(side.jobs_s):.2f} s"
        )
        print("       by turn " + " ".join(f"{side.reuse(turn):.1%}" for turn in range(1, turns)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--local-tokens", type=int, default=512)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
