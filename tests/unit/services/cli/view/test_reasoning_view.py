"""What a model thinks is shown apart from its answer, dimmed on a terminal, and obeyed by none."""

from __future__ import annotations

import io

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.view.answer_output import TextOutput
from services.cli.view.reasoning_view import DIM, UNDIMMED, ReasoningView


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(err: io.StringIO, view: ReasoningView | None) -> str:
    out = io.StringIO()
    output = TextOutput(out, err, reasoning=view)
    for delta in (
        pb.TextDelta(reasoning="a\x1b"),
        pb.TextDelta(reasoning="b", text="c"),
        pb.TextDelta(text="d"),
    ):
        output.text(delta)
    output.end(pb.Terminal(outcome=pb.OUTCOME_FINISHED))
    return out.getvalue()


def test_a_pipe_gets_the_answer_alone() -> None:
    err = io.StringIO()
    assert shown(err, ReasoningView(err)) == "cd\n"
    assert err.getvalue() == "a\x1bb\n\n"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_shows_it_dimmed_unless_colours_are_off(
    no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    err = Terminal()
    shown(err, ReasoningView(err))
    dimmed = "a\\x1bb\n\n" if no_color else f"{DIM}a\\x1b{UNDIMMED}{DIM}b{UNDIMMED}\n\n"
    assert err.getvalue() == dimmed


def test_it_may_be_hidden() -> None:
    err = io.StringIO()
    assert shown(err, None) == "cd\n"
    assert err.getvalue() == ""
