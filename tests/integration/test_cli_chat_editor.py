"""`penstock chat` where lines can be edited: one message is what a person meant as one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.integration.generate_peer import Context, GeneratePeer, end, prompt, text
from tests.support.terminal import CTRL_D, TIMEOUT_S, Terminal

READY = "/help lists commands"
EDITS = "\x1b[?2004h"
"""A terminal is asked to mark what is pasted when a line begins to be edited."""
PASTE = "\x1b[200~{text}\x1b[201~"
UP, BACKSPACE, ALT_ENTER, CTRL_R, CTRL_C = "\x1b[A", "\x7f", "\x1b\r", "\x12", "\x03"


@pytest.fixture
def peer() -> Iterator[GeneratePeer]:
    peer = GeneratePeer()
    peer.script = answer
    peer.models = [pb.Model(name="m", kind=pb.MODEL_KIND_GENERATION, context_tokens=8192)]
    yield peer
    peer.server.stop(None).wait(TIMEOUT_S)


def answer(request: pb.GenerateRequest, _context: Context) -> Iterator[pb.GenerateEvent]:
    yield prompt()
    yield text(f"answer {len(request.chat.messages)}.", 7)
    yield end(pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP)


def chat(peer: GeneratePeer, state: Path, *argv: str) -> Terminal:
    command = (sys.executable, "-m", "services.cli", "chat", "--grpc", peer.address, *argv)
    terminal = Terminal(command, term="xterm-256color", environ={"XDG_STATE_HOME": str(state)})
    terminal.until(READY)
    terminal.until(EDITS)
    return terminal


def said(peer: GeneratePeer, typed: str, state: Path) -> str:
    """Return the message that is sent for what is typed."""
    with chat(peer, state) as terminal:
        terminal.enter(typed)
        terminal.until("answer 1.")
        terminal.until(EDITS)
        terminal.enter(CTRL_D)
        assert terminal.end() == 0
    message: str = peer.requests.get_nowait().chat.messages[-1].content
    return message


@pytest.mark.thorough
def test_a_banner_says_who_answers(peer: GeneratePeer, tmp_path: Path) -> None:
    with chat(peer, tmp_path, "--retrieve") as terminal:
        screen = pyte.Screen(80, 24)
        pyte.Stream(screen).feed(terminal.shown)
    assert screen.display[0].startswith("m · 8,192 tokens of context · retrieval on · /help lists")


@pytest.mark.thorough(but="pasted lines | a block")
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (PASTE.format(text="five\nlines\n\nof\ntext") + "\r", "five\nlines\n\nof\ntext"),
        ('"""\ra block\r/quit\r"""\r', "a block\n/quit"),
        ('"""one line"""\r', "one line"),
        (f"two{ALT_ENTER}lines\r", "two\nlines"),
        (f"水門{BACKSPACE}\r", "水"),
        (f"not this{CTRL_C}this\r", "this"),
    ],
    ids=["pasted lines", "a block", "a block of one line", "lines of one", "a correction", "a new beginning"],
)
def test_what_was_meant_as_one_message_is_one(
    peer: GeneratePeer, tmp_path: Path, typed: str, message: str
) -> None:
    assert said(peer, typed, tmp_path) == message


def test_what_was_typed_is_there_in_the_next_session(peer: GeneratePeer, tmp_path: Path) -> None:
    assert said(peer, "open the gate\r", tmp_path) == "open the gate"
    assert said(peer, f"{UP}!\r", tmp_path) == "open the gate!"
    assert said(peer, f"{CTRL_R}gate\r\r", tmp_path).startswith("open the gate")
    history = tmp_path / "penstock" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.mark.thorough
def test_a_history_that_cannot_be_kept_is_told_and_the_talk_goes_on(
    peer: GeneratePeer, tmp_path: Path
) -> None:
    (tmp_path / "penstock").write_text("no folder")
    with chat(peer, tmp_path) as terminal:
        terminal.enter("one\r")
        terminal.until("what is typed is not kept in")
        terminal.until("answer 1.")


@pytest.mark.thorough
def test_ctrl_c_clears_the_line_and_keeps_the_conversation(peer: GeneratePeer, tmp_path: Path) -> None:
    with chat(peer, tmp_path) as terminal:
        terminal.enter("one\r")
        terminal.until("answer 1.")
        terminal.until(EDITS)
        terminal.enter("half a li")
        terminal.until("half a li")
        terminal.enter(CTRL_C)
        terminal.until("/quit or Ctrl-D leaves")
        terminal.until(EDITS)
        terminal.enter("two\r")
        terminal.until("answer 3.")
    assert "Traceback" not in terminal.shown
