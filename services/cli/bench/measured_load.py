"""One load as options ask for it: its plan, its target, and its run in this process or in several."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from services.cli.ask.gateway_channel import (
    GRPC_OPTION,
    call_metadata,
    channel_credentials,
    gateway_address,
    named_gateway,
)
from services.cli.bench.plan.agent_threads import ReplayPace
from services.cli.bench.plan.agents import AgentSource
from services.cli.bench.plan.arrivals import seeded_arrivals
from services.cli.bench.plan.azure import AzureSource
from services.cli.bench.plan.conversations import ConversationSource
from services.cli.bench.plan.dialogue import Dialogue, DialogueSource
from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.plan.mix import DialogueMix
from services.cli.bench.plan.mooncake import MooncakeSource
from services.cli.bench.plan.prompt_writer import PromptWriter
from services.cli.bench.plan.prose import Prose
from services.cli.bench.plan.synthetic import SyntheticSource
from services.cli.bench.plan.tracelab import TraceLabSource
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.client import ClientHabits
from services.cli.bench.run.load import LoadLimits, LoadResult, LoadRun
from services.cli.bench.run.load_parts import LoadPart, run_parts
from services.cli.bench.run.server_watch import ServerWatch
from services.cli.bench.serve_options import GivenSource, conduct_shares, named_sources
from services.cli.bench.targets.grpc_target import GrpcTarget
from services.cli.bench.targets.openai_target import OpenAiTarget
from services.cli.bench.targets.probe import TargetTraits, probe_target
from services.cli.bench.targets.target import BenchTarget, TargetSampling
from services.cli.stack_file import chosen_state_dir, stack_pids

USUAL_OUTPUT = TokenLengths(64, 64)
PARTS_START_S = 4.0
"""Several processes begin together, so long after they are started: each has to import and to plan."""


def open_target(args: argparse.Namespace, model: str) -> BenchTarget:
    """Make it inside of a running loop. Raises InvalidRequest, Unavailable."""
    sampling = TargetSampling(model, args.temperature, args.ignore_eos)
    key = "".join(value.removeprefix("Bearer ") for _, value in call_metadata(args))
    if args.url:
        return OpenAiTarget(args.url, args.interface, sampling, key)
    return GrpcTarget(
        gateway_address(args),
        sampling,
        key=key,
        plain=args.interface == "completions",
        credentials=channel_credentials(args),
        connections=args.connections,
    )


async def find_traits(args: argparse.Namespace, prose: Prose) -> TargetTraits:
    """Look at what is there. Raises InvalidRequest, Unavailable, and CallEnded where nothing answers."""
    target = open_target(args, args.model)
    try:
        model = await target.find_model()
    finally:
        await target.close()
    target = open_target(args, model)
    try:
        return await probe_target(target, model, prose, args.seed)
    finally:
        await target.close()


async def load_of(
    args: argparse.Namespace,
    argv: Sequence[str],
    prose: Prose,
    traits: TargetTraits,
    rate: float,
    ended: Callable[[CallRecord], None],
    cut: asyncio.Event | None = None,
) -> LoadResult:
    """Run a whole load, by this process or by several, until its end or until `cut` is set. `argv` are the
    options that `args` were read from.

    Raises InvalidRequest, Unavailable, InternalError.
    """
    pids = server_pids(args)
    watch = ServerWatch(pids)
    async with watch.watching():
        if args.processes > 1:
            result = await run_in_parts(args, argv, traits, rate, ended, cut)
        else:
            result = await run_load(args, prose, traits, rate, time.monotonic(), ended, cut=cut)
    return replace(result, server=watch.use() if pids else None)


def server_pids(args: argparse.Namespace) -> list[int]:
    """Return the processes whose cost is told: those that are named, else those of the stack found here.

    Raises Unavailable without a stack.
    """
    if args.server_pid or args.url or named_gateway(args):
        return list(args.server_pid)
    return list(stack_pids(chosen_state_dir(args, GRPC_OPTION), GRPC_OPTION).values())


def load_mix(args: argparse.Namespace, prose: Prose, chars_per_token: float) -> DialogueMix:
    writer = PromptWriter(prose, chars_per_token, args.length_scale, args.seed, args.text_seed)
    sources = [(given.weight, _source(args, given, name, writer)) for name, given in named_sources(args)]
    return DialogueMix(sources, writer, conduct_shares(args), args.cache_bust)


async def run_load(
    args: argparse.Namespace,
    prose: Prose,
    traits: TargetTraits,
    rate: float,
    start_s: float,
    ended: Callable[[CallRecord], None],
    part: tuple[int, int] = (0, 1),
    cut: asyncio.Event | None = None,
) -> LoadResult:
    """Run one part of a load in this process. `rate` 0: not an open loop with a rate of its own.

    Raises InvalidRequest, Unavailable.
    """
    mix = load_mix(args, prose, traits.chars_per_token)
    target = open_target(args, traits.model)
    habits = ClientHabits(args.deadline, args.stall_seconds, args.think, args.useful, args.hints)
    index, parts = part
    try:
        limits = LoadLimits(args.duration, _share(args.requests, index, parts))
        run = LoadRun(target, habits, limits, start_s, ended, cut=cut)
        if args.replay:
            return await run.open(islice(mix.replayed(), index, None, parts))
        if rate:
            return await run.open(islice(_timed(mix, rate, args), index, None, parts))
        clients = args.concurrency or 1
        return await run.closed(islice(mix.endless(), index, None, parts), _share(clients, index, parts) or 0)
    finally:
        await target.close()


async def run_in_parts(
    args: argparse.Namespace,
    argv: Sequence[str],
    traits: TargetTraits,
    rate: float,
    ended: Callable[[CallRecord], None],
    cut: asyncio.Event | None = None,
) -> LoadResult:
    """Run one load in several processes. Raises InternalError where one of them breaks."""
    if not args.url:
        argv = [*argv, "--grpc", gateway_address(args)]  # a stack is looked for, and asked for, once
    start_s = time.monotonic() + PARTS_START_S
    parts = [
        LoadPart(argv, index, args.processes, start_s, traits.model, traits.chars_per_token, rate)
        for index in range(args.processes)
    ]
    return await run_parts(parts, ended, cut)


def _timed(mix: DialogueMix, rate: float, args: argparse.Namespace) -> Iterator[Dialogue]:
    arrivals = seeded_arrivals(rate, args.variation, args.seed)
    return (dialogue.at(at_s) for at_s, dialogue in zip(arrivals, mix.endless(), strict=False))


def _share(total: int | None, index: int, parts: int) -> int | None:
    """Return how many of a total are those of one part; None is any number."""
    return None if total is None else total // parts + (index < total % parts)


def _source(args: argparse.Namespace, given: GivenSource, name: str, writer: PromptWriter) -> DialogueSource:
    path = Path(given.file)
    pace = ReplayPace(args.longest_pause, args.speed)
    match given.kind:
        case "mooncake":
            return MooncakeSource(path, writer, args.speed, name)
        case "azure":
            return AzureSource(path, writer, args.speed, name)
        case "agents":
            return AgentSource(path, writer, pace, name)
        case "tracelab":
            return TraceLabSource(path, writer, pace, name)
        case "prompts":
            return ConversationSource(path, writer, args.output_tokens, name=name)
    output_tokens = args.output_tokens or USUAL_OUTPUT
    return SyntheticSource(writer, args.input_tokens, output_tokens, args.shared_tokens, name)
