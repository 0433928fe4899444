"""What a client asks a target for, by its conduct."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn, Helper
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.client import BenchClient, ClientHabits
from services.cli.bench.targets.target import CallFacts, CallHints, StreamPiece, TargetCall
from shared.telemetry.useful_answer import UsefulMarker

HABITS = ClientHabits(60.0, 0.0, 0.0, UsefulMarker.read("sentence"))


class RecordingTarget:
    """Answers every call with the same pieces, and notes what it was."""

    def __init__(self, *pieces: StreamPiece) -> None:
        self._pieces = pieces
        self.calls: list[TargetCall] = []

    async def pieces(self, call: TargetCall, facts: CallFacts) -> AsyncGenerator[StreamPiece]:
        self.calls.append(call)
        facts.prompt_tokens = 3
        for piece in self._pieces:
            yield piece

    async def find_model(self) -> str:
        return "recording"

    async def close(self) -> None: ...


@pytest.mark.parametrize("conduct", Conduct)
async def test_a_call_is_as_its_client_s_conduct_has_it(conduct: Conduct) -> None:
    """One that will be cut or left unread is on a connection of its own, where it disturbs no other."""
    target, ended = RecordingTarget(StreamPiece("Yes", 1), StreamPiece(" no", 1)), list[CallRecord]()
    now_s = asyncio.get_running_loop().time
    client = BenchClient(target, HABITS, now_s, ended.append)
    await client.run(Dialogue((DialogueTurn("Well?", 9),), "test", conduct=conduct, amount=1))
    (call,) = target.calls
    assert call.alone == (conduct in (Conduct.DISCONNECT, Conduct.STALL))
    assert call.passages == (1 if conduct is Conduct.RETRIEVE else 0)
    assert call.deadline_ms == (1 if conduct is Conduct.HURRIED else 0)
    assert (call.messages, call.max_tokens) == ((("user", "Well?"),), 9)
    leaves = conduct in (Conduct.CANCEL, Conduct.DISCONNECT, Conduct.STALL)
    assert ended[0].piece_tokens == (1 if leaves else 2)
    assert (ended[0].chars, ended[0].facts.prompt_tokens) == (5, 3)


async def test_calls_of_a_recorded_agent_say_whose_they_are_and_when_the_next_comes() -> None:
    target = RecordingTarget(StreamPiece("Yes", 1))
    client = BenchClient(target, HABITS, asyncio.get_running_loop().time, lambda _: None)
    helper = Helper((DialogueTurn("Help!", 9),), after=0, begins_s=0.0, before=1)
    turns = (
        DialogueTurn("Well?", 9),
        DialogueTurn("And?", 9, pause_s=0.02),
        DialogueTurn("Then?", 9, whole=True),
    )
    await client.run(Dialogue(turns, "agents", helpers=(helper,)))
    first, of_helper, second, last = (call.hints for call in target.calls)
    assert first is not None
    name = first.session
    assert (first, second) == (
        CallHints(name, pause_ms=20, goes_on=True),
        CallHints(name, pause_ms=0, goes_on=False),
    )
    assert last == CallHints(name, final=True)
    assert of_helper == CallHints(f"{name}.0", parent=name, final=True)


@pytest.mark.parametrize(("source", "hints"), [("agents", False), ("synthetic", True)])
async def test_other_calls_say_nothing_of_an_agent(source: str, hints: bool) -> None:
    target = RecordingTarget(StreamPiece("Yes", 1))
    habits = replace(HABITS, hints=hints)
    client = BenchClient(target, habits, asyncio.get_running_loop().time, lambda _: None)
    await client.run(Dialogue((DialogueTurn("Well?", 9),), source))
    assert [call.hints for call in target.calls] == [None]


async def test_a_server_that_sends_several_tokens_at_once_is_left_by_tokens() -> None:
    target = RecordingTarget(*[StreamPiece("a b c", 3)] * 5)
    ended: list[CallRecord] = []
    client = BenchClient(target, HABITS, asyncio.get_running_loop().time, ended.append)
    await client.run(Dialogue((DialogueTurn("Well?", 9),), "test", conduct=Conduct.CANCEL, amount=4))
    assert (len(ended[0].pieces_s), ended[0].piece_tokens, ended[0].output_tokens) == (2, 6, 6)


async def test_a_chat_goes_on_from_the_answer_without_what_was_thought() -> None:
    target, ended = RecordingTarget(StreamPiece("Hm.", thinking=True), StreamPiece("Yes")), list[CallRecord]()
    client = BenchClient(target, HABITS, asyncio.get_running_loop().time, ended.append)
    await client.run(Dialogue((DialogueTurn("Well?", 9), DialogueTurn("So?", 9)), "test"))
    assert target.calls[1].messages == (("user", "Well?"), ("assistant", "Yes"), ("user", "So?"))
    assert len(ended[0].pieces_s) == 2
