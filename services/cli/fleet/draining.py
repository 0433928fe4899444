"""Let an instance end: which one is meant, whether it may go, and how its life has ended."""

from __future__ import annotations

import asyncio
import sys
import time

from services.cli.fleet.fleet_watch import Fleet, Seen
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.messages import Drain, Heartbeat

ASK_TIMEOUT_S = 2.0
POLL_S = 0.05
ANSWER_TIMEOUT_S = 120.0
"""The longest wait for the user's answer; then it is no."""
SILENT_S = 2.0
"""An instance that says nothing for so long has ended without saying so."""


def beat_of(fleet: Fleet, instance: str) -> Heartbeat | None:
    """Names are unique beyond their role: they begin with it."""
    return next((seen.beat for seen in fleet.all() if seen.beat.instance == instance), None)


def is_last(fleet: Fleet, beat: Heartbeat) -> bool:
    """Return whether no other instance of its role is ready for the same model."""
    others = (seen.beat for seen in fleet.all() if not _is_of(seen, beat))
    return not any((each.role, each.model, each.state) == (beat.role, beat.model, "ready") for each in others)


async def is_wanted(beat: Heartbeat, command: str) -> bool:
    """Ask the user whether the last of a role is to go; where there is no terminal, say how to say so."""
    warning = (
        f"{beat.instance} is the last {beat.role} that is ready: requests that need one wait or fail until "
        "another is"
    )
    if not sys.stdin.isatty():
        print(f"penstock {command}: {warning}; pass --yes to {command} it all the same", file=sys.stderr)
        return False
    if await typed_yes(f"{warning}. {command.capitalize()} it all the same?"):
        return True
    print(f"penstock {command}: {beat.instance} goes on as it was", file=sys.stderr)
    return False


async def typed_yes(question: str) -> bool:
    """Ask on the terminal, and return whether the answer is yes; without one in time it is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return (await _typed_line()).strip().lower() in ("y", "yes")


async def begin_drain(
    bus: Bus, role: str, instance: str, within_s: float = ASK_TIMEOUT_S, *, patience_s: float = 0
) -> None:
    """Let it take nothing new, finish and end; what it has may take `patience_s`, or what it was configured
    to give. Raises PenstockError where it does not answer in time."""
    deadline = Deadline.after(within_s)
    await bus.ask(inbox(role, instance), Drain(round(patience_s)), bus.envelope(deadline=deadline), deadline)


async def _typed_line() -> str:
    """Return the line that is typed; "" at its end and when nobody answers in time."""
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await typed.wait()
    except TimeoutError:
        print(file=sys.stderr)
        return ""
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


def end_of(fleet: Fleet, beat: Heartbeat) -> str | None:
    """Return how the life that `beat` is of has ended; None while it has not."""
    seen = next((seen for seen in fleet.all() if _is_of(seen, beat)), None)
    if seen is None:
        return "has left"
    if seen.beat.incarnation != beat.incarnation:
        return f"has left and was started again as process {seen.beat.pid}"
    if time.monotonic() - seen.seen_s > SILENT_S:
        return "has gone silent"
    return None


def _is_of(seen: Seen, beat: Heartbeat) -> bool:
    return (seen.beat.role, seen.beat.instance) == (beat.role, beat.instance)
