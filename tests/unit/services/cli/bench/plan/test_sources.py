"""Sources of dialogues: what each file may hold, what is refused with its line, and what stays repeatable."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from services.cli.bench.plan import input_lines as lines_module
from services.cli.bench.plan.azure import AzureSource
from services.cli.bench.plan.conversations import MAX_TURNS, ConversationSource
from services.cli.bench.plan.dialogue import Dialogue, DialogueSource, DialogueTurn
from services.cli.bench.plan.input_lines import input_lines
from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.plan.mooncake import MooncakeSource
from services.cli.bench.plan.synthetic import SyntheticSource
from shared.errors import InvalidRequest
from tests.support.data import data_dir
from tests.unit.services.cli.bench.plan.texts import writer


def written(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def trace_row(at_ms: int, tokens: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": 10, "hash_ids": list(ids)}


def common_prefix(first: str, second: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


def test_equal_hash_blocks_of_a_trace_are_equal_text(tmp_path: Path) -> None:
    rows = [trace_row(0, 1100, 1, 2, 3), trace_row(500, 1300, 1, 2, 4), trace_row(900, 600, 5, 3)]
    source = MooncakeSource(written(tmp_path / "trace.jsonl", *rows), writer(), speed=2.0)
    first, second, third = source.dialogues()
    texts = [each.turns[0].text for each in (first, second, third)]
    assert common_prefix(texts[0], texts[1]) == pytest.approx(1024 * 4, abs=40)
    assert common_prefix(texts[0], texts[2]) < 400
    assert [len(text) / 4 for text in texts] == pytest.approx([1100, 1300, 600], rel=0.02)
    assert [each.at_s for each in (first, second, third)] == [0.0, 0.25, 0.45]
    assert texts == [each.turns[0].text for each in source.dialogues()]


@pytest.mark.skipif(data_dir() is None, reason="there is no real data here")
def test_the_real_trace_keeps_its_share_of_repeated_blocks() -> None:
    data = data_dir()
    assert data is not None
    path = data / "trace-mooncake" / "conversation_trace.jsonl"
    source = MooncakeSource(path, writer(length_scale=0.02))
    rows = [json.loads(line) for line in path.read_text().splitlines()[:300]]
    with closing(source.dialogues()) as dialogues:
        texts = [each.turns[0].text for each in islice(dialogues, 300)]
    for index in range(1, 300):
        shared = common_prefix_blocks(rows[0]["hash_ids"], rows[index]["hash_ids"])
        assert common_prefix(texts[0], texts[index]) >= shared * 512 * 0.02 * 4 - 40 * shared


def common_prefix_blocks(first: list[int], second: list[int]) -> int:
    """Blocks that are whole in both."""
    same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 10**9)
    return min(same, len(first) - 1, len(second) - 1)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "line 2: it is no JSON"),
        ("[1]", "line 2: it is no JSON object"),
        ("[" * 100_000, "line 2: it is no JSON"),
        (trace_row(-1, 10, 1), "timestamp -1; it is a whole number of 0 or more"),
        (trace_row(5, 0, 1), "input_length 0; it is a whole number of 1 or more"),
        ({**trace_row(5, 10, 1), "output_length": "x"}, "output_length 'x'"),
        ({**trace_row(5, 10, 1), "hash_ids": ["x"]}, "hash_ids"),
        (trace_row(5, 513, 1), "has 1 hash_ids for input_length 513, which is 2"),
        (trace_row(0, 10, 1), "has timestamp 0 behind 3; sort the file"),
    ],
)
def test_a_row_of_a_trace_that_cannot_be_is_refused_with_its_line(
    tmp_path: Path, row: Any, says: str
) -> None:
    path = written(tmp_path / "trace.jsonl", trace_row(3, 10, 1), row)
    with pytest.raises(InvalidRequest) as raised:
        list(MooncakeSource(path, writer()).dialogues())
    assert says in str(raised.value)


AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_azure_s_traces_of_both_years_are_read(tmp_path: Path) -> None:
    old = written(
        tmp_path / "2023.csv",
        AZURE_HEAD,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )
    first, second = AzureSource(old, writer(), speed=2.0).dialogues()
    assert first.at_s == 0.0
    assert second.at_s == pytest.approx(4.314579 / 2)
    assert second.turns[0].max_tokens == 109
    assert len(second.turns[0].text) / 4 == pytest.approx(396, rel=0.02)
    assert first.turns[0].text[:100] != second.turns[0].text[:100]
    new = written(tmp_path / "2024.csv", AZURE_HEAD, "2024-05-10 00:00:00.009930+00:00,2162,5")
    assert [each.turns[0].max_tokens for each in AzureSource(new, writer()).dialogues()] == [5]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("a,b",), "line 1: it is no head with the columns TIMESTAMP, ContextTokens, GeneratedTokens"),
        ((AZURE_HEAD, "yesterday,1,1"), "line 2: it has TIMESTAMP 'yesterday', which is no time"),
        ((AZURE_HEAD, "2023-11-16 18:15:46,x,1"), "line 2: it has ContextTokens 'x'"),
        ((AZURE_HEAD, "2023-11-16 18:15:46,1"), "line 2: it has GeneratedTokens ''"),
        ((AZURE_HEAD, "2023-11-16 18:15:46,1,1", "2023-11-16 18:15:45,1,1"), "sort the file"),
    ],
)
def test_a_csv_that_is_no_trace_is_refused_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        list(AzureSource(written(tmp_path / "trace.csv", *lines), writer()).dialogues())
    assert says in str(raised.value)


def conversations(tmp_path: Path, *rows: Any, **options: Any) -> list[Dialogue]:
    return list(ConversationSource(written(tmp_path / "file.jsonl", *rows), writer(), **options).dialogues())


def test_a_conversation_s_turns_have_the_lengths_of_the_recorded_answers(tmp_path: Path) -> None:
    row = {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Hello?"},
            {"from": "gpt", "value": "x" * 80},
            {"from": "human", "value": "And now?"},
        ]
    }
    (found,) = conversations(tmp_path, row, default_tokens=7)
    assert found.system == "Be brief."
    assert found.turns == (DialogueTurn("Hello?", 20), DialogueTurn("And now?", 7))


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (
            {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]},
            ["one"],
        ),
        ({"turns": ["one", "two"]}, ["one", "two"]),
        ({"prompt": "one", "answer": 5}, ["one"]),
        ({"question": "one"}, ["one"]),
        ({"text": "one"}, ["one"]),
        ("just a line", ["just a line"]),
    ],
)
def test_other_files_of_prompts_are_read(tmp_path: Path, row: Any, texts: list[str]) -> None:
    (found,) = conversations(tmp_path, row, output_tokens=TokenLengths(9, 9))
    assert [turn.text for turn in found.turns] == texts
    assert {turn.max_tokens for turn in found.turns} == {9}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"other": 1}, "has none of conversations, messages, turns, prompt"),
        ({"prompt": ""}, "has prompt ''; it is a text that is not empty"),
        ({"turns": [1]}, "has turns '1'"),
        ({"conversations": [{"from": "human"}]}, "has conversations that are not a list of from and value"),
        ({"messages": "x"}, "has messages that are not a list of role and content"),
    ],
)
def test_a_line_without_a_prompt_is_refused(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match="line 1: it ") as raised:
        conversations(tmp_path, row)
    assert says in str(raised.value)


@pytest.mark.parametrize(("said", "kept"), [(MAX_TURNS, MAX_TURNS), (MAX_TURNS + 1, MAX_TURNS)])
def test_a_conversation_has_a_most_of_turns(tmp_path: Path, said: int, kept: int) -> None:
    (found,) = conversations(tmp_path, {"turns": [f"turn {index}" for index in range(said)]})
    assert len(found.turns) == kept


def test_lines_of_files_have_a_longest_and_a_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "file", "1234567", "", "12345678", "9")
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 9)
    assert list(input_lines(path)) == [(1, "1234567"), (3, "12345678"), (4, "9")]
    monkeypatch.setattr(lines_module, "MAX_LINES", 3)
    assert [number for number, _ in input_lines(path)] == [1, 3]
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 8)
    with pytest.raises(InvalidRequest, match="line 3: it is longer than 8 bytes"):
        list(input_lines(path))


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ok\n\xff\xfe\n")
    with pytest.raises(InvalidRequest, match="line 2: it is not UTF-8"):
        list(input_lines(tmp_path / "file"))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        list(input_lines(tmp_path / "none"))


def test_synthetic_prompts_are_all_different_behind_what_they_share() -> None:
    source = SyntheticSource(writer(), TokenLengths(100, 200), TokenLengths(5, 5), shared_tokens=50)
    texts = [each.turns[0].text for each in islice(source.dialogues(), 20)]
    assert len(set(texts)) == 20
    assert common_prefix(texts[0], texts[1]) == pytest.approx(200, abs=40)
    assert all(90 <= len(text) / 4 <= 205 for text in texts)
    assert texts == [each.turns[0].text for each in islice(source.dialogues(), 20)]


def test_sources_say_whether_they_have_times(tmp_path: Path) -> None:
    sources: list[DialogueSource] = [
        MooncakeSource(tmp_path, writer()),
        AzureSource(tmp_path, writer()),
        ConversationSource(tmp_path, writer()),
        SyntheticSource(writer(), TokenLengths(1, 1), TokenLengths(1, 1)),
    ]
    assert [source.has_times for source in sources] == [True, True, False, False]
