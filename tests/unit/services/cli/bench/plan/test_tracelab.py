"""TraceLab's rounds: what a prompt keeps of its session, what it adds, and when it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.bench.plan.agent_threads import ReplayPace
from services.cli.bench.plan.dialogue import Dialogue
from services.cli.bench.plan.tracelab import TraceLabSource
from shared.errors import InvalidRequest
from tests.unit.services.cli.bench.plan.texts import writer

HEAD = "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
ARRIVING = "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len"


def read(tmp_path: Path, *lines: str, speed: float = 1.0) -> list[Dialogue]:
    (tmp_path / "rounds.csv").write_text("\n".join(lines) + "\n")
    return list(TraceLabSource(tmp_path / "rounds.csv", writer(), ReplayPace(10.0, speed)).dialogues())


def test_a_round_keeps_its_prefix_and_adds_its_input(tmp_path: Path) -> None:
    (dialogue,) = read(tmp_path, HEAD, "s,0,0,100,50,500", "s,1,150,30,20,0", "s,2,60,40,20,0")
    first, second, third = (turn.text for turn in dialogue.turns)
    assert [len(text) / 4 for text in (first, second, third)] == pytest.approx([100, 180, 100], rel=0.05)
    assert second.startswith(first)
    assert third[: 60 * 4 - 20] == first[: 60 * 4 - 20]
    assert [turn.pause_s for turn in dialogue.turns] == [0.0, 0.5, 0.0]
    assert [turn.max_tokens for turn in dialogue.turns] == [50, 20, 20]
    assert all(turn.whole for turn in dialogue.turns)


def test_sessions_begin_as_they_arrived(tmp_path: Path) -> None:
    lines = (ARRIVING, "late,10,5,2000,0,0,0", "early,10,5,500,0,99000,0", "early,10,5,500,1,0,15")
    early, late = read(tmp_path, *lines, speed=2.0)
    assert (early.at_s, late.at_s) == (0.25, 1.0)
    assert early.turns[1].pause_s == 5.0


def test_what_sessions_find_before_they_said_anything_is_shared(tmp_path: Path) -> None:
    one, other = read(tmp_path, HEAD, "a,0,200,20,5,0", "b,0,200,20,5,0")
    assert one.turns[0].text[:780] == other.turns[0].text[:780]
    assert one.turns[0].text != other.turns[0].text


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a,b,c"], "line 1: it is no head with the columns session_id, round_idx"),
        ([HEAD, "s,0,-1,10,5,0"], "line 2: it has prefix_len"),
        ([HEAD, "s,0,0,10,x,0"], "line 2: it has output_len 'x'"),
        ([HEAD, "s,0,0,10"], "line 2: it has output_len"),
        ([HEAD, "s,1,0,10,5,0", "s,1,0,10,5,0"], "line 3: it has round_idx 1 behind 1 of the same session"),
    ],
)
def test_a_fault_is_said_with_its_line(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read(tmp_path, *lines)
