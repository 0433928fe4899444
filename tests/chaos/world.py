"""What drills are held on: the tests' model with a long context, its draft, a stack of two of everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.support.client import connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.models import draft_of, target_model
from tests.support.stack import Instance, Stack, audit, metrics_of
from tests.support.wait import until

CONTEXT_TOKENS = 12_288
CORPUS = REPOSITORY / "README.md"
"""It is enough to find something in, and indexed sooner than all pages are."""
RESTART_TIMEOUT_S = 60.0
SLOTS = 16
"""The slots of both decode workers of a stack for drills."""
UNREAD_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Models:
    target: Path
    draft: Path

    @classmethod
    def under(cls, scratch: Path) -> Models:
        """The tests' small model, told to go on for longer; what it says then matters to nobody."""
        target = scratch / "target"
        shutil.copytree(target_model(scratch), target)
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT_TOKENS}))
        return cls(target, draft_of(target, scratch / "draft"))

    def options(self, *more: str) -> tuple[str, ...]:
        """Of a stack with two of every worker that streams need."""
        chosen = ["--model", str(self.target), "--draft", str(self.draft), "--corpus", str(CORPUS)]
        for role in ("prefill", "decode", "detokenizer", "tokenizer"):
            chosen += [f"--{role}", "2"]
        return (*chosen, *more)


def drill_stack(
    models: Models,
    *more: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    root: Path = REPOSITORY,
) -> Stack:
    """Where drills are held: few slots, so that they can be taken; little patience with who does not read.

    Every prompt passes from worker to worker: the more hands, the more there is to drop.
    """
    settings = {
        "PENSTOCK_DECODE_MAX_SEQUENCES": str(SLOTS // 2),
        "PENSTOCK_GATEWAY_MAX_BUFFERED_TOKENS": str(UNREAD_TOKENS),
        "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
        "PENSTOCK_GATEWAY_MAX_SESSIONS": "2048",
        "PENSTOCK_GATEWAY_COALESCE": "false",  # requests that are alike are load
    }
    return Stack(*models.options(*more), environ={**settings, **environ}, root=root)


def nats_pid(stack: Stack) -> int:
    """Of the stack's own nats-server: a child of the launcher."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _parent_and_name(folder) == (stack.process.pid, "nats-server"):
            return int(folder.name)
    raise AssertionError("the stack has no nats-server of its own")


def _parent_and_name(folder: Path) -> tuple[int, str]:
    try:
        status = (folder / "status").read_text()
    except OSError:  # it ended meanwhile
        return 0, ""
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return int(lines["PPid"]), lines["Name"]


def kill(instance: Instance) -> None:
    os.kill(instance.pid, signal.SIGKILL)


@asynccontextmanager
async def stopped(*instances: Instance) -> AsyncIterator[None]:
    """With SIGSTOP, as a process is that gets no CPU; they go on at the end, if they live."""
    for instance in instances:
        os.kill(instance.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for instance in instances:
            with contextlib.suppress(ProcessLookupError):
                os.kill(instance.pid, signal.SIGCONT)


async def until_restarted(stack: Stack, *before: Instance) -> None:
    """Until each of these processes has a successor that is up."""
    old = {instance.id: instance.pid for instance in before}

    def restarted() -> bool:
        pids = {row.id: row.pid for row in stack.instances()}
        return all(pids[name] not in (0, pid) for name, pid in old.items())

    await until(restarted, timeout_s=RESTART_TIMEOUT_S)


async def until_serving(stack: Stack) -> None:
    """Until nothing is held and a request finishes: a drill begins with a stack that is well."""
    await stack.until_idle(RESTART_TIMEOUT_S)
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request("Once", max_tokens=2, ignore_eos=True))
    assert answer.outcome == "finished", answer.details


async def held_for(stack: Stack, limit_s: float) -> float:
    """Seconds until audit counts zero everywhere; AssertionError with what is held after `limit_s`."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    bus = await stack.connect("drill-audit")
    try:
        while held := await audit(bus, stack.instances()):
            if loop.time() - begun > limit_s:
                raise AssertionError(f"still held after {limit_s:g} s: {held}")
        return loop.time() - begun
    finally:
        await bus.close()


def counted(instance: Instance, metric: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    total = 0.0
    for line in metrics_of(instance).splitlines():
        name, _, rest = line.partition("{")
        if name.split(" ")[0] == metric and all(label in rest for label in wanted):
            total += float(line.rsplit(" ", 1)[1])
    return total


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
