"""`penstock chat` in a terminal, against a real gRPC server that answers what the test says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.integration.generate_peer import Context, GeneratePeer, end, prompt, text
from tests.support.data import REPOSITORY
from tests.support.terminal import CTRL_D, TIMEOUT_S, Terminal

PROMPT = "> "
EDITS = "\x1b[?2004h"
"""A terminal is asked to mark what is pasted when a line begins to be edited."""
CONTROLS = re.compile(r"\x1b\[8m|\x1b\]|[\x07\x80-\x9f]")
"""Escapes by which an answer might have the terminal do what our own view does not."""


@pytest.fixture
def peer() -> Iterator[GeneratePeer]:
    peer = GeneratePeer()
    peer.script = answer
    yield peer
    peer.server.stop(None).wait(TIMEOUT_S)


def answer(request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
    yield prompt()
    yield text(f"answer {len(request.chat.messages)}", 7)
    yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)


def endless(peer: GeneratePeer) -> None:
    """Answers begin and never end."""

    def script(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield prompt()
        yield text("it begins", 7)
        peer.gone.wait(TIMEOUT_S)

    peer.script = script


def chat(peer: GeneratePeer, *argv: str, term: str = "dumb") -> Terminal:
    command = (sys.executable, "-m", "services.cli", "chat", "--grpc", peer.address, *argv)
    terminal = Terminal(command, term=term)
    terminal.until(PROMPT if term == "dumb" else EDITS)
    return terminal


def turns(request: pb.GenerateRequest) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in request.chat.messages]


def test_every_turn_carries_the_conversation(peer: GeneratePeer) -> None:
    with chat(peer, "--system", "be brief", "--temperature", "0") as terminal:
        terminal.enter("one\n")
        terminal.until("answer 2\n" + PROMPT)
        terminal.enter("two\n")
        terminal.until("answer 4\n" + PROMPT)
        terminal.enter(CTRL_D)
        assert terminal.end() == 0
    first, second = peer.requests.get_nowait(), peer.requests.get_nowait()
    assert turns(first) == [("system", "be brief"), ("user", "one")]
    assert turns(second) == [*turns(first), ("assistant", "answer 2"), ("user", "two")]
    assert second.chat.template_optional
    assert second.sampling.temperature == 0
    assert second.sampling.HasField("temperature")


def test_ctrl_c_cancels_the_answer_and_the_conversation_goes_on(peer: GeneratePeer) -> None:
    endless(peer)
    with chat(peer) as terminal:
        terminal.enter("one\n")
        terminal.until("it begins")
        terminal.interrupt()
        terminal.until("cancelled: interrupted from the keyboard\n" + PROMPT)
        assert peer.gone.wait(TIMEOUT_S)
        peer.script = answer
        terminal.enter("two\n")
        terminal.until("answer 3\n" + PROMPT)
        terminal.enter("/quit\n")
        assert terminal.end() == 0
    peer.requests.get_nowait()
    said = [("user", "one"), ("assistant", "it begins"), ("user", "two")]
    assert turns(peer.requests.get_nowait()) == said
    assert "Traceback" not in terminal.shown


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_leaves_nothing(peer: GeneratePeer) -> None:
    endless(peer)
    with chat(peer) as terminal:
        terminal.enter("one\n")
        terminal.until("it begins")
        terminal.interrupt()
        terminal.until("keyboard\n" + PROMPT)
        for _ in range(2):
            terminal.interrupt()
            terminal.until("/quit or Ctrl-D leaves\n" + PROMPT)
        peer.script = answer
        terminal.enter("two\n")
        terminal.until("answer 3\n" + PROMPT)
    assert "Traceback" not in terminal.shown


def test_retrieval_is_turned_on_and_off(peer: GeneratePeer) -> None:
    with chat(peer, "--retrieve") as terminal:
        for line in ("one\n", "/retrieve off\n", "two\n", "/retrieve on\n", "three\n", "/retrieve maybe\n"):
            terminal.enter(line)
            terminal.until(PROMPT)
    assert [peer.requests.get_nowait().retrieval.enabled for _ in range(3)] == [True, False, True]
    assert "say /retrieve on or /retrieve off" in terminal.shown


def test_clear_forgets_the_conversation_and_keeps_the_system_message(peer: GeneratePeer) -> None:
    with chat(peer, "--system", "be brief") as terminal:
        for line in ("one\n", "/clear\n", "two\n"):
            terminal.enter(line)
            terminal.until(PROMPT)
    peer.requests.get_nowait()
    assert turns(peer.requests.get_nowait()) == [("system", "be brief"), ("user", "two")]


def test_timeline_shows_where_the_last_answer_spent_its_time(peer: GeneratePeer) -> None:
    with chat(peer) as terminal:
        terminal.enter("/timeline\n")
        terminal.until("there is no answer yet\n" + PROMPT)
        terminal.enter("one\n")
        terminal.until(PROMPT)
        terminal.enter("/timeline\n")
        terminal.until("first token 3.00 ms, total 10.00 ms\n" + PROMPT)


@pytest.mark.thorough
def test_help_lists_the_commands_and_a_wrong_one_is_told(peer: GeneratePeer) -> None:
    with chat(peer) as terminal:
        terminal.enter("/help\n")
        told = terminal.until(PROMPT)
        for command in ("/model", "/system", "/set", "/retry", "/save", "/load", "/clear", "/quit"):
            assert command in told
        terminal.enter("/jump\n")
        terminal.until("there is no /jump; /help lists what there is\n" + PROMPT)


@pytest.mark.thorough
def test_a_text_that_begins_with_a_slash_can_be_said(peer: GeneratePeer) -> None:
    with chat(peer) as terminal:
        terminal.enter("//quit\n")
        terminal.until("answer 1\n" + PROMPT)
    assert turns(peer.requests.get_nowait()) == [("user", "/quit")]


def test_a_question_that_failed_is_taken_back(peer: GeneratePeer) -> None:
    def failing(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield end(pb.OUTCOME_SHED, error=pb.Error(code="overloaded", message="no room", retry_after_ms=50))

    peer.script = failing
    with chat(peer) as terminal:
        terminal.enter("one\n")
        terminal.until("penstock chat: shed: no room; try again in 50 ms\n" + PROMPT)
        peer.script = answer
        terminal.enter("two\n")
        terminal.until("answer 1\n" + PROMPT)


def markdown(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
    yield prompt()
    yield text("It is **bo", 7)
    yield text("ld** and `code`", 8)
    yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)


def test_a_terminal_that_can_shows_markdown(peer: GeneratePeer) -> None:
    peer.script = markdown
    with chat(peer, term="xterm-256color") as terminal:
        terminal.enter("one\n")
        answer = terminal.until("code\x1b[0m")
        terminal.until(EDITS)
        terminal.enter("/quit\n")
        assert terminal.end() == 0
    assert "\x1b[1mbold\x1b[0m" in answer


@pytest.mark.thorough(but="xterm-256color")
@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
def test_no_answer_moves_the_cursor(peer: GeneratePeer, term: str) -> None:
    def hostile(_request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
        yield prompt(warning="so\x1b[8m-so")
        yield text("one\x1b]0;two\x07 three\x9b31m", 7)
        yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)

    peer.script = hostile
    with chat(peer, term=term) as terminal:
        terminal.enter("one\n")
        answered = terminal.until("three\\x9b31m")
    assert "penstock chat: so\\x1b[8m-so\n" in answered
    assert "one\\x1b]0;two\\x07 three" in answered
    assert not CONTROLS.search(terminal.shown)


@pytest.mark.thorough
def test_ctrl_c_in_a_growing_block_leaves_what_has_come(peer: GeneratePeer) -> None:
    endless(peer)
    with chat(peer, term="xterm-256color") as terminal:
        terminal.enter("one\n")
        terminal.until("it begins")
        terminal.interrupt()
        told = terminal.until("cancelled: interrupted from the keyboard\n")
        terminal.until(EDITS)
    assert "Traceback" not in terminal.shown
    assert told.count("it begins") == 0  # it stands there already


@pytest.mark.thorough
def test_where_text_cannot_be_shown_again_it_stays_as_it_came(peer: GeneratePeer) -> None:
    peer.script = markdown
    with chat(peer) as terminal:
        terminal.enter("one\n")
        terminal.until("It is **bold** and `code`\n" + PROMPT)


def test_without_a_terminal_each_line_is_a_message(peer: GeneratePeer, tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "services.cli", "chat", "--grpc", peer.address),
        input="one\n\ntwo\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=REPOSITORY,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (0, "answer 1\nanswer 3\n", "")
