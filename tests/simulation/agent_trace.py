"""Agents in a world call turn by turn; what their prompts share with what was said before is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

from protos.penstock.v1 import inference_pb2 as pb
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine import Engine, SamplingParams
from tests.simulation.fleet import GATEWAY, Fleet
from tests.simulation.step_profile import USUAL
from tests.support.engine import generate

SYSTEM_TOKENS = 160
VOCABULARY = range(5, 300)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """An agent: the texts that its turns append, the tokens of its answers, and how long its tools take."""

    seed: int
    appended: tuple[int, ...]
    answers: tuple[int, ...]
    pause_s: float
    hinted: bool

    @classmethod
    def drawn(cls, seed: int, turns: int, pause_s: float, *, hinted: bool) -> AgentPlan:
        """Results of tools are between 16 and 900 tokens, even on a scale of logarithms."""
        chance = Random(seed)
        appended = tuple(round(16 * 56 ** chance.random()) for _ in range(turns))
        return cls(seed, appended, tuple(chance.randint(16, 96) for _ in range(turns)), pause_s, hinted)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """`allowed_tokens`: whole blocks of the prompt before and its answer. `ttft_s`: as its client sees it."""

    prompt_tokens: int
    allowed_tokens: int
    cached_tokens: int
    ttft_s: float

    @property
    def computing_s(self) -> float:
        """The time of one step in which an engine alone computes what of the prompt is not cached."""
        return USUAL.us([(self.cached_tokens, self.prompt_tokens - self.cached_tokens)]) / 1e6

    @property
    def lost_tokens(self) -> int:
        return max(0, self.allowed_tokens - self.cached_tokens)


@dataclass(slots=True)
class AgentRecords:
    """Next turns, without those that begin a session; and how long each job took."""

    turns: list[TurnRecord] = field(default_factory=list)
    jobs_s: list[float] = field(default_factory=list)

    @property
    def median_ttft_s(self) -> float:
        return median(turn.ttft_s for turn in self.turns)

    @property
    def reuse(self) -> float:
        allowed = sum(turn.allowed_tokens for turn in self.turns)
        return 1.0 - sum(turn.lost_tokens for turn in self.turns) / allowed


def ids(chance: Random, count: int) -> list[int]:
    return [chance.choice(VOCABULARY) for _ in range(count)]


async def nothing(_turn: int) -> None: ...


async def run_agent(
    fleet: Fleet,
    plan: AgentPlan,
    records: AgentRecords,
    meanwhile: Callable[[int], Awaitable[None]] = nothing,
) -> list[list[int]]:
    """Ask turn by turn; returns the answers. `meanwhile` happens while the tool of a turn runs."""
    chance, loop = Random(f"texts {plan.seed}"), asyncio.get_running_loop()
    client = fleet.client(f"agent-{plan.seed}")
    prompt = ids(chance, SYSTEM_TOKENS)
    began_s, said, known = loop.time(), list[list[int]](), 0
    for number, (appended, tokens) in enumerate(zip(plan.appended, plan.answers, strict=True)):
        prompt = prompt + ids(chance, appended)
        message = _message(plan, prompt, tokens, last=number == len(plan.appended) - 1)
        answer = await client.finish(GATEWAY, message, name=f"agent-{plan.seed}-{number}")
        assert answer.end is not None
        usage, timeline = answer.end.usage, answer.end.timeline
        if number:
            allowed = known - known % HASH_BLOCK_TOKENS
            turn = TurnRecord(len(prompt), allowed, usage.cached_tokens, timeline.ttft_us / 1e6)
            records.turns.append(turn)
        said.append(list(answer.ids))
        prompt = prompt + answer.ids
        known = len(prompt) - 1  # nobody computes the KV of a token that is drawn last
        await asyncio.sleep(plan.pause_s)
        await meanwhile(number)
    records.jobs_s.append(loop.time() - began_s)
    return said


def expected_answers(engine: Engine, plan: AgentPlan) -> list[list[int]]:
    """Return what an engine alone answers to the same turns."""
    chance, said = Random(f"texts {plan.seed}"), list[list[int]]()
    prompt = ids(chance, SYSTEM_TOKENS)
    for appended, tokens in zip(plan.appended, plan.answers, strict=True):
        prompt = prompt + ids(chance, appended)
        said.append(
            generate(engine, prompt, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
        )
        prompt = prompt + said[-1]
    return said


def _message(plan: AgentPlan, prompt: Sequence[int], tokens: int, *, last: bool) -> pb.GenerateRequest:
    sampling = pb.Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=sampling, deadline_ms=120_000)
    if plan.hinted:
        pause_ms = round(1000 * plan.pause_s)
        hints = pb.AgentHints(session=f"run-{plan.seed}", pause_ms=pause_ms, warm_next=True, final=last)
        message.agent.CopyFrom(hints)
    return message
