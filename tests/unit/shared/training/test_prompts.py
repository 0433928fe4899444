"""Prompts from files, and those that a target thinks of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.engine import LLM
from shared.errors import InvalidRequest, NotFound
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer
from shared.training.prompts import (
    MAX_PROMPT_TOKENS,
    PASSAGE_TOKENS,
    ask_itself,
    read_prompts,
    split_held_out,
)
from tests.support.pair_scores import MODELS

TOKENIZER = TextTokenizer.load(MODELS / "target")


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "How far is it?"},
        {"turns": ["How far is it?", "And back?"], "question_id": 81},
        {"messages": [{"role": "user", "content": "How far is it?"}]},
    ],
)
def test_a_line_of_a_file_is_a_chat(line: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(json.dumps(line) + "\n\n")
    assert read_prompts(tmp_path / "asked.jsonl", TOKENIZER) == [
        TOKENIZER.encode_chat([ChatTurn("user", "How far is it?")])
    ]


def test_a_folder_of_texts_is_cut_into_beginnings(tmp_path: Path) -> None:
    text = "The river rose in the night and took the bridge. " * 30
    (tmp_path / "a.md").write_text(text)
    (tmp_path / "b.pdf").write_bytes(b"%PDF")
    prompts = read_prompts(tmp_path, TOKENIZER)
    assert {len(ids) for ids in prompts[:-1]} == {PASSAGE_TOKENS}
    assert TOKENIZER.decode([token_id for ids in prompts for token_id in ids]) == text


def test_a_long_prompt_is_cut(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(json.dumps({"prompt": "word " * 3000}))
    assert [len(ids) for ids in read_prompts(tmp_path / "asked.jsonl", TOKENIZER)] == [MAX_PROMPT_TOKENS]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "asked.jsonl, line 1: .*; write an object with"),
        (b'{"prompt": "x"}\n{"turns": []}', "asked.jsonl, line 2: no prompt in it"),
        (b'{"messages": [{"role": "user"}]}', "line 1: no prompt in it"),
        (b"[1]", "line 1: not an object"),
        (b"[" * 100_000, "line 1: "),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"\n\n", "holds no prompts"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_bytes(content)
    with pytest.raises(InvalidRequest, match=sentence):
        read_prompts(tmp_path / "asked.jsonl", TOKENIZER)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.jsonl does not exist"):
        read_prompts(tmp_path / "nowhere.jsonl", TOKENIZER)


def test_each_tenth_prompt_is_held_back() -> None:
    learned, held_back = split_held_out([[number] for number in range(25)])
    assert held_back == [[0], [10], [20]]
    assert sorted(learned + held_back) == [[number] for number in range(25)]
    assert split_held_out([[7]]) == ([[7]], [[7]])


def test_a_target_asks_itself_questions_of_its_own() -> None:
    llm = LLM(MODELS / "target", max_model_len=512)
    asked = ask_itself(llm, TOKENIZER, 3, seed=5)
    head = TOKENIZER.encode_chat([ChatTurn("user", "x")])[:1]
    assert len({tuple(ids) for ids in asked}) == 3
    assert all(ids[:1] == head for ids in asked)
    assert ask_itself(llm, TOKENIZER, 3, seed=5) == asked
