"""The threads of a recorded agent: calls that follow each other, and helpers that run beside them.

A recording may have the calls of several agents in one list. A call continues a thread whose last call had
ended, of the same model, if their prompts begin alike; one that keeps a part of that prompt does so only if
nothing goes on from the whole of it later. Other calls begin threads of helpers. The rules are those of
AIPerf's page on replaying agentic coding sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.cli.bench.plan.dialogue import DialogueTurn, Helper


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Times are seconds since the session began. `hash_ids` name the blocks of its prompt, in order, of which
    `whole_blocks` are full: the next prompt of the same agent begins with those."""

    at_s: float
    ended_s: float
    model: str
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    whole_blocks: int = 0


@dataclass(frozen=True, slots=True)
class RecordedAgent:
    """`joined`: who began it waited for its end."""

    calls: Sequence[RecordedCall]
    helpers: Sequence[RecordedAgent] = ()
    joined: bool = True


@dataclass(slots=True)
class AgentThread:
    """Calls of which each began when the one before had ended."""

    calls: list[RecordedCall]
    joined: bool = True
    helpers: list[AgentThread] = field(default_factory=list)

    @property
    def began_s(self) -> float:
        return self.calls[0].at_s

    @property
    def ended_s(self) -> float:
        return max((self.calls[-1].ended_s, *(each.ended_s for each in self.helpers if each.joined)))


@dataclass(frozen=True, slots=True)
class ReplayPace:
    """A pause is `longest_s` at most, and passes `speed` times as fast."""

    longest_s: float
    speed: float = 1.0

    def pause_s(self, recorded_s: float) -> float:
        return min(max(0.0, recorded_s), self.longest_s) / self.speed


def agent_thread(agent: RecordedAgent) -> AgentThread | None:
    """Return an agent's own thread with those of its helpers; None where nobody calls at all."""
    found = _split(sorted(agent.calls, key=lambda call: call.at_s))
    helpers = [thread for each in agent.helpers if (thread := agent_thread(each)) is not None]
    if not found:
        found, helpers = helpers[:1], helpers[1:]  # who only hands on is whoever it hands on to
    if not found:
        return None
    own, *others = found
    own.helpers += others + helpers
    own.joined = agent.joined
    return own


def thread_turns(
    thread: AgentThread, prompt: Callable[[RecordedCall], str], answer: Callable[[int], int], pace: ReplayPace
) -> tuple[tuple[DialogueTurn, ...], tuple[Helper, ...]]:
    """Return the turns of a thread and its helpers, with the recorded pauses at `pace`.

    `prompt` writes that of a call, when it is asked; `answer` turns recorded tokens into those wanted.
    """
    helpers = [_helper(thread, each, prompt, answer, pace) for each in thread.helpers]
    turns = []
    for number, call in enumerate(thread.calls):
        ends = [
            each.ended_s
            for each, helper in zip(thread.helpers, helpers, strict=True)
            if helper.before == number
        ]
        waited_s = max((*ends, thread.calls[number - 1].ended_s)) if number else call.at_s
        turns.append(
            DialogueTurn(
                _later(prompt, call),
                answer(call.output_tokens),
                whole=True,
                pause_s=pace.pause_s(call.at_s - waited_s),
            )
        )
    return tuple(turns), tuple(helpers)


def _helper(
    parent: AgentThread,
    thread: AgentThread,
    prompt: Callable[[RecordedCall], str],
    answer: Callable[[int], int],
    pace: ReplayPace,
) -> Helper:
    calls = parent.calls
    after = max((index for index, call in enumerate(calls) if call.ended_s <= thread.began_s), default=-1)
    began_s = calls[after].ended_s if after >= 0 else parent.began_s
    waits = (index for index in range(after + 1, len(calls)) if calls[index].at_s >= thread.ended_s)
    turns, helpers = thread_turns(thread, prompt, answer, pace)
    return Helper(
        turns,
        after,
        pace.pause_s(thread.began_s - began_s),
        next(waits, None) if thread.joined else None,
        helpers,
    )


def _split(calls: Sequence[RecordedCall]) -> list[AgentThread]:
    """Return the threads of calls in the order of their beginnings."""
    threads: list[AgentThread] = []
    for index, call in enumerate(calls):
        free = [
            each
            for each in threads
            if each.calls[-1].ended_s <= call.at_s and each.calls[-1].model == call.model
        ]
        if call.hash_ids:
            free = [each for each in free if _goes_on(each.calls[-1], call, calls[index + 1 :])]
        thread = max(free, key=lambda each: _kept(each.calls[-1], call), default=None)
        if thread is None:
            threads.append(AgentThread([call]))
        else:
            thread.calls.append(call)
    return threads


def _goes_on(last: RecordedCall, call: RecordedCall, later: Sequence[RecordedCall]) -> bool:
    """Whether a call is of the same agent as the one before it that is looked at."""
    if not last.hash_ids:
        return True
    kept = _kept(last, call)
    if not kept or kept >= last.whole_blocks:
        return kept > 0
    return not any(_kept(last, each) >= last.whole_blocks for each in later)


def _kept(last: RecordedCall, call: RecordedCall) -> int:
    """Return with how many blocks both prompts begin, by bisection: comparing slices is fast."""
    low, high = 0, min(len(last.hash_ids), len(call.hash_ids))
    while low < high:
        middle = (low + high + 1) // 2
        if last.hash_ids[low:middle] == call.hash_ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _later(prompt: Callable[[RecordedCall], str], call: RecordedCall) -> Callable[[], str]:
    return lambda: prompt(call)
