"""Recorded agents: which calls follow each other, what runs beside them, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.bench.plan import agents as agents_module
from services.cli.bench.plan.agent_threads import ReplayPace
from services.cli.bench.plan.agents import AgentSource
from services.cli.bench.plan.dialogue import Dialogue
from shared.errors import InvalidRequest
from tests.unit.services.cli.bench.plan.texts import writer

BLOCK = 16


def call(at_s: float, ids: list[int], *, took_s: float = 1.0, **fields: Any) -> dict[str, Any]:
    tokens = BLOCK * len(ids)
    return {"t": at_s, "type": "s", "in": tokens, "out": 7, "hash_ids": ids, "api_time": took_s, **fields}


def helper(at_s: float, *requests: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"t": at_s, "type": "subagent", "agent_id": "a", "status": status, "requests": list(requests)}


def session(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": BLOCK, "hash_id_scope": "local", "requests": list(requests), **fields}


def read(
    path: Path, *sessions: dict[str, Any], longest_s: float = 10.0, speed: float = 1.0
) -> list[Dialogue]:
    file = path / "sessions.jsonl"
    file.write_text("\n".join(map(json.dumps, sessions)))
    return list(AgentSource(file, writer(), ReplayPace(longest_s, speed)).dialogues())


def common_prefix(first: str, second: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


def test_a_turn_pauses_from_the_end_of_the_one_before_and_shares_its_blocks(tmp_path: Path) -> None:
    (dialogue,) = read(
        tmp_path, session(call(0, [1, 2]), call(4, [1, 2, 3]), call(99, [1, 2, 3, 4])), speed=2.0
    )
    assert [turn.pause_s for turn in dialogue.turns] == [0.0, 1.5, 5.0]
    first, second, third = (turn.text for turn in dialogue.turns)
    assert second.startswith(first)
    assert third.startswith(second)
    assert [len(text) / 4 for text in (first, second, third)] == pytest.approx([32, 48, 64], rel=0.15)
    assert all(turn.whole and turn.max_tokens == 7 for turn in dialogue.turns)


def test_a_helper_begins_behind_a_turn_and_the_turn_that_waited_for_it_waits(tmp_path: Path) -> None:
    """The pause of that turn counts from the helper's end."""
    calls = (call(0, [1]), helper(1.5, call(2, [7]), call(4, [7, 8])), call(8, [1, 2]))
    (dialogue,) = read(tmp_path, session(*calls))
    (beside,) = dialogue.helpers
    assert (beside.after, beside.begins_s, beside.before) == (0, 1.0, 1)
    assert [turn.pause_s for turn in beside.turns] == [0.0, 1.0]
    assert [turn.pause_s for turn in dialogue.turns] == [0.0, 3.0]


def test_nobody_waits_for_a_helper_in_the_background(tmp_path: Path) -> None:
    calls = (call(0, [1]), helper(1.5, call(2, [7]), status="async_launched"), call(8, [1, 2]))
    (dialogue,) = read(tmp_path, session(*calls))
    assert dialogue.helpers[0].before is None
    assert dialogue.turns[1].pause_s == 7.0


def test_a_helper_that_ends_last_is_waited_for_by_no_turn(tmp_path: Path) -> None:
    (dialogue,) = read(tmp_path, session(call(0, [1]), helper(1.5, call(2, [7], took_s=60)), call(8, [1, 2])))
    assert dialogue.helpers[0].before is None


def test_a_helper_s_times_may_count_from_its_own_beginning(tmp_path: Path) -> None:
    (dialogue,) = read(tmp_path, session(call(0, [1]), helper(3.0, call(0, [7]), call(2, [7, 8]))))
    (beside,) = dialogue.helpers
    assert (beside.begins_s, beside.turns[1].pause_s) == (2.0, 1.0)


def test_helpers_have_helpers(tmp_path: Path) -> None:
    inner = helper(3.0, call(3.5, [9]))
    (dialogue,) = read(
        tmp_path, session(call(0, [1]), helper(1.5, call(2, [7], took_s=1.0), inner, call(6, [7, 8])))
    )
    (beside,) = dialogue.helpers
    assert [(each.after, each.begins_s, each.before) for each in beside.helpers] == [(0, 0.5, 1)]


def test_calls_that_ran_beside_each_other_are_helpers(tmp_path: Path) -> None:
    """The main agent's second call goes on from its first; the workers went on from a part of it."""
    calls = (
        call(0, [1, 2, 3]),
        call(2, [1, 2, 50, 51]),
        call(2.5, [1, 2, 60, 61]),
        call(9, [1, 2, 3, 4, 5]),
    )
    (dialogue,) = read(tmp_path, session(*calls))
    assert [len(turn.text) / 4 / BLOCK for turn in dialogue.turns] == pytest.approx([3, 5], rel=0.15)
    assert [(each.after, each.begins_s, each.before) for each in dialogue.helpers] == [
        (0, 1.0, 1),
        (0, 1.5, 1),
    ]


def test_a_context_that_was_cut_is_the_same_agent_s(tmp_path: Path) -> None:
    (dialogue,) = read(
        tmp_path, session(call(0, [1, 2, 3, 4, 5]), call(2, [1, 2, 9]), call(4, [1, 2, 9, 10]))
    )
    assert (len(dialogue.turns), dialogue.helpers) == (3, ())


@pytest.mark.parametrize(
    "other", [{"ids": [40, 41]}, {"ids": [1, 2], "model": "small"}], ids=["prompt", "model"]
)
def test_a_call_of_another_kind_is_a_helper(tmp_path: Path, other: dict[str, Any]) -> None:
    aside = call(2, other.pop("ids"), **other)
    (dialogue,) = read(tmp_path, session(call(0, [1]), aside, call(4, [1, 2])))
    assert (len(dialogue.turns), len(dialogue.helpers)) == (2, 1)


def test_calls_without_blocks_follow_each_other(tmp_path: Path) -> None:
    calls = [{"t": at, "in": 40, "out": 5, "api_time": 1.0} for at in (0, 2, 5)]
    (dialogue,) = read(tmp_path, session(*calls))
    assert [turn.pause_s for turn in dialogue.turns] == [0.0, 1.0, 2.0]
    assert len({turn.text for turn in dialogue.turns}) == 3


@pytest.mark.parametrize(("scope", "equal"), [("local", False), ("global", True)])
def test_ids_are_a_session_s_own_or_everybody_s(tmp_path: Path, scope: str, equal: bool) -> None:
    sessions = [session(call(0, [1, 2]), id=name, hash_id_scope=scope) for name in ("a", "b")]
    first, second = (each.turns[0].text for each in read(tmp_path, *sessions))
    assert (first == second) == equal
    assert equal or common_prefix(first, second) < BLOCK * 4


def test_sessions_without_a_call_are_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, session(), session(helper(1.0))) == []
    (found,) = read(tmp_path, session(helper(1.0, call(1.0, [1]))))
    assert len(found.turns) == 1


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, ids in (("b.json", [2]), ("a.json", [1]), ("note.txt", [])):
        (tmp_path / name).write_text(json.dumps(session(call(0, ids * 3), id=name), indent=1))
    source = AgentSource(tmp_path, writer(), ReplayPace(10.0))
    assert len(list(source.dialogues())) == 2
    with pytest.raises(InvalidRequest, match=r"no \.json or \.jsonl file"):
        list(AgentSource(tmp_path / "..", writer(), ReplayPace(1.0)).dialogues())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"requests": 3}, "is no session"),
        ({"hash_id_scope": "mine"}, "hash_id_scope 'mine'; it is local or global"),
        ({"block_size": 0}, "block_size '0'; it is a whole number of 1 or more"),
        ({"requests": [call(-1, [1])]}, "t '-1'; it is seconds of 0 or more"),
        ({"requests": [call(float("nan"), [1])]}, "t 'nan'; it is seconds"),
        ({"requests": [{**call(0, [1]), "in": 0}]}, "in '0'; it is a whole number of 1 or more"),
        (
            {"requests": [{**call(0, [1]), "hash_ids": ["x"]}]},
            "hash_ids .'x'.; it is a list of whole numbers",
        ),
        ({"requests": ["hello"]}, "requests that are no objects"),
        ({"requests": [{"t": 0, "type": "subagent"}]}, "subagent without a list of requests"),
    ],
)
def test_a_fault_is_said_with_its_line(tmp_path: Path, fault: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as raised:
        read(tmp_path, session(call(0, [1])), {**session(call(0, [1])), **fault})
    assert "sessions.jsonl, line 2: it " in str(raised.value)


def test_a_session_has_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "MAX_SESSION_CALLS", 3)
    assert len(read(tmp_path, session(*[call(n, [1]) for n in range(3)]))) == 1
    with pytest.raises(InvalidRequest, match="more than 3 requests; split the session"):
        read(tmp_path, session(*[call(n, [1]) for n in range(4)]))
    monkeypatch.setattr(agents_module, "MAX_HELPER_DEPTH", 1)
    assert len(read(tmp_path, session(helper(0, call(0, [1]))))) == 1
    with pytest.raises(InvalidRequest, match="subagents more than 1 deep"):
        read(tmp_path, session(helper(0, helper(0, call(0, [1])))))


def test_a_file_has_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps(session(call(0, [1])))
    (tmp_path / "one.json").write_text(content)
    monkeypatch.setattr(agents_module, "MAX_SESSION_BYTES", len(content))
    source = AgentSource(tmp_path / "one.json", writer(), ReplayPace(10.0))
    assert len(list(source.dialogues())) == 1
    monkeypatch.setattr(agents_module, "MAX_SESSION_BYTES", len(content) - 1)
    with pytest.raises(InvalidRequest, match="one a line"):
        list(source.dialogues())


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1", b"[]"])
def test_what_is_no_session_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"one\.json"):
        list(AgentSource(tmp_path / "one.json", writer(), ReplayPace(10.0)).dialogues())
    with pytest.raises(InvalidRequest, match="cannot be read"):
        list(AgentSource(tmp_path / "none.json", writer(), ReplayPace(10.0)).dialogues())
