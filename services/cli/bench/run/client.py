"""One client: the turns of its dialogue, each after the answer before, as its conduct has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn, Helper
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.targets.target import (
    BenchTarget,
    CallEnded,
    CallHints,
    CallOutcome,
    StreamPiece,
    TargetCall,
)
from shared.seams.chance import CHANCE
from shared.telemetry.useful_answer import UsefulMarker, UsefulWatch

AGENT_SOURCES = ("agents", "tracelab")
"""The traces whose dialogues are sessions of agents."""
GIVE_UP_S = 0.02
"""A client that leaves after no token at all leaves when its request has been on its way so long."""
HURRIED_SLACK_S = 10.0
"""A server may be so much later than a deadline that it was told."""
LEAVING = (Conduct.CANCEL, Conduct.DISCONNECT, Conduct.STALL)
Messages = tuple[tuple[str, str], ...]
"""Roles and texts."""


@dataclass(frozen=True, slots=True)
class ClientHabits:
    """`deadline_s`: no call is waited for longer. `stall_s`: so long a client that has stopped to read keeps
    its connection. `think_s`: between an answer and the next turn. `hints`: calls of recorded agents say
    whose they are."""

    deadline_s: float
    stall_s: float
    think_s: float
    useful: UsefulMarker
    hints: bool = True


class BenchClient:
    """`now_s`: the time since the load began. `ended` is told each call. `cut_calls` were cancelled, and are
    told to nobody."""

    def __init__(
        self,
        target: BenchTarget,
        habits: ClientHabits,
        now_s: Callable[[], float],
        ended: Callable[[CallRecord], None],
    ) -> None:
        self._target = target
        self._habits = habits
        self._now_s = now_s
        self._ended = ended
        self._load = CHANCE.hex_digits(4)
        self.cut_calls = 0

    async def run(self, dialogue: Dialogue) -> None:
        """Ask turn by turn, until one of them does not finish; return when its helpers have ended, too."""
        intended_s = self._now_s() if dialogue.at_s is None else dialogue.at_s
        await self._run(dialogue, dialogue, intended_s, f"{dialogue.source}-{self._load}-{dialogue.number}")

    async def _run(
        self,
        dialogue: Dialogue,
        thread: Dialogue | Helper,
        intended_s: float,
        session: str,
        parent: str = "",
    ) -> None:
        messages: Messages = (("system", dialogue.system),) if dialogue.system else ()
        async with asyncio.TaskGroup() as group:
            awaited: dict[int | None, list[asyncio.Task[None]]] = {}

            def begin_helpers(after: int) -> None:
                for number, helper in enumerate(thread.helpers):
                    if helper.after == after:
                        task = group.create_task(self._help(dialogue, helper, f"{session}.{number}", session))
                        awaited.setdefault(helper.before, []).append(task)

            begin_helpers(-1)
            for number, turn in enumerate(thread.turns):
                if number:
                    await asyncio.gather(*awaited.pop(number, ()))
                    pause_s = self._habits.think_s if turn.pause_s is None else turn.pause_s
                    intended_s = self._now_s() + pause_s
                    await asyncio.sleep(pause_s)
                messages = _prompt(dialogue, turn, messages)
                record = self._record(dialogue, number, turn, intended_s, messages)
                try:
                    hints = self._hints(dialogue, thread.turns[number + 1 :], session, parent)
                    answer = await self._ask(dialogue, turn, messages, record, hints)
                except asyncio.CancelledError:
                    self.cut_calls += 1
                    raise
                self._ended(record)
                if not record.finished:
                    return
                messages = (*messages, ("assistant", answer))
                begin_helpers(number)

    def _hints(
        self, dialogue: Dialogue, left: Sequence[DialogueTurn], session: str, parent: str
    ) -> CallHints | None:
        """Return what a call before the turns that are `left` says of its agent, None where that says
        nothing."""
        if not self._habits.hints or dialogue.source not in AGENT_SOURCES:
            return None
        if not left:
            return CallHints(session, parent, final=True)
        pause_s = self._habits.think_s if left[0].pause_s is None else left[0].pause_s
        return CallHints(session, parent, pause_ms=round(1000 * pause_s), goes_on=not left[0].whole)

    async def _help(self, dialogue: Dialogue, helper: Helper, session: str, parent: str) -> None:
        intended_s = self._now_s() + helper.begins_s
        await asyncio.sleep(helper.begins_s)
        await self._run(dialogue, helper, intended_s, session, parent)

    def _record(
        self, dialogue: Dialogue, number: int, turn: DialogueTurn, intended_s: float, messages: Messages
    ) -> CallRecord:
        return CallRecord(
            number=dialogue.number,
            turn=number,
            source=dialogue.source,
            lap=dialogue.lap,
            conduct=dialogue.conduct,
            intended_s=intended_s,
            sent_s=self._now_s(),
            max_tokens=turn.max_tokens,
            chars=sum(len(text) for _, text in messages),
        )

    async def _ask(
        self,
        dialogue: Dialogue,
        turn: DialogueTurn,
        messages: Messages,
        record: CallRecord,
        hints: CallHints | None,
    ) -> str:
        """Return the answer; what became of the call is in the record."""
        hurried = dialogue.conduct is Conduct.HURRIED
        call = TargetCall(
            messages,
            turn.max_tokens,
            deadline_ms=max(1, dialogue.amount) if hurried else 0,
            alone=dialogue.conduct in (Conduct.DISCONNECT, Conduct.STALL),
            json_schema=dialogue.json_schema,
            passages=dialogue.amount if dialogue.conduct is Conduct.RETRIEVE else 0,
            hints=hints,
        )
        deadline_s = self._habits.deadline_s
        if hurried:
            deadline_s = min(deadline_s, call.deadline_ms / 1e3 + HURRIED_SLACK_S)
        texts: list[str] = []
        try:
            async with (
                asyncio.timeout(deadline_s),
                aclosing(self._target.pieces(call, record.facts)) as pieces,
            ):
                await self._read(pieces, dialogue, record, texts)
        except CallEnded as end:
            record.outcome, record.kind, record.told = end.outcome, end.kind, end.told
        except TimeoutError:
            record.outcome = CallOutcome.EXPIRED if not hurried else CallOutcome.FAILED
            record.kind, record.told = "no end in time", f"the client waited {deadline_s:g} s"
        record.ended_s = self._now_s()
        return "".join(texts)

    async def _read(
        self,
        pieces: AsyncGenerator[StreamPiece],
        dialogue: Dialogue,
        record: CallRecord,
        texts: list[str],
    ) -> None:
        watch = UsefulWatch(self._habits.useful)
        leaves = dialogue.conduct in LEAVING
        if leaves and dialogue.amount == 0:
            return await self._leave(pieces, dialogue, record)
        async for piece in pieces:
            now_s = self._now_s()
            record.pieces_s.append(now_s)
            record.piece_tokens += piece.tokens
            if not piece.thinking:  # a chat goes on from what was answered alone
                texts.append(piece.text)
            if watch.add(piece.text, thinking=piece.thinking):
                record.useful_s = now_s
            if leaves and max(record.piece_tokens, len(record.pieces_s)) >= dialogue.amount:
                return await self._leave(pieces, dialogue, record)
        record.outcome = CallOutcome.FINISHED
        if watch.end():
            record.useful_s = self._now_s()
        return None

    async def _leave(
        self, pieces: AsyncGenerator[StreamPiece], dialogue: Dialogue, record: CallRecord
    ) -> None:
        """Give up as the conduct has it; the generator is closed by who made it."""
        if not record.pieces_s:  # the request is not on its way yet
            first = asyncio.ensure_future(anext(pieces, None))
            await asyncio.wait([first], timeout=GIVE_UP_S)
            first.cancel()
            await asyncio.wait([first])
            if not first.cancelled() and (error := first.exception()) is not None:
                raise error
        if dialogue.conduct is Conduct.STALL:
            await asyncio.sleep(self._habits.stall_s)
        record.outcome, record.kind = CallOutcome.GAVE_UP, dialogue.conduct.value


def _prompt(dialogue: Dialogue, turn: DialogueTurn, said: Messages) -> Messages:
    """Return what a turn sends: itself behind what was said, or alone; with the dialogue's mark in front."""
    if turn.whole:
        return (("user", dialogue.mark + turn.text),)
    begins = dialogue.mark if not any(role == "user" for role, _ in said) else ""
    return (*said, ("user", begins + turn.text))
