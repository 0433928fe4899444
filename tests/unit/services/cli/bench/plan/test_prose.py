"""Prompts are text of real sentences, of the length asked for, and the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.plan import prose as prose_module
from services.cli.bench.plan.prompt_writer import MAX_PROMPT_TOKENS
from services.cli.bench.plan.prose import Prose
from shared.errors import InvalidRequest
from tests.unit.services.cli.bench.plan.texts import SENTENCES, prose, writer

WORDS = set(" ".join(SENTENCES).split())


@given(st.integers(0, 5000), st.integers(0, 1000))
def test_a_text_is_whole_words_and_no_longer_than_asked(chars: int, seed: int) -> None:
    text = prose().write(Random(seed), chars)
    assert len(text) <= chars or len(text.split()) <= 1
    assert set(text.split()) <= WORDS
    assert chars < 40 or len(text) > chars - 40


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 100))
def test_a_shorter_text_begins_a_longer_one(chars: int, more: int, seed: int) -> None:
    short, long = (prose().write(Random(seed), length) for length in (chars, chars + more))
    assert long.startswith(short)


def test_texts_of_few_sentences_do_not_begin_alike() -> None:
    """There are 41 sentences; a block of a server's prefix cache has 16 tokens, some 60 characters."""
    texts = [writer(seed).text(200, f"{number}") for seed in range(4) for number in range(500)]
    assert len({text[:60] for text in texts}) > 0.99 * len(texts)


def test_a_key_and_a_seed_name_a_text() -> None:
    assert writer(1).text(200, "a") == writer(1).text(200, "a")
    assert len({writer(1).text(200, "a"), writer(1).text(200, "b"), writer(2).text(200, "a")}) == 3


def test_the_longest_prompt_is_whole_and_a_longer_one_is_cut_to_it() -> None:
    write = writer(chars_per_token=0.25).text
    whole = write(MAX_PROMPT_TOKENS, "a")
    assert MAX_PROMPT_TOKENS / 4 - 40 < len(whole) <= MAX_PROMPT_TOKENS / 4
    assert write(MAX_PROMPT_TOKENS - 800, "a") != whole
    assert write(MAX_PROMPT_TOKENS + 800, "a") == whole
    assert writer(chars_per_token=0.25, length_scale=2.0).text(MAX_PROMPT_TOKENS / 2 + 800, "a") == whole


def test_other_texts_may_have_the_same_lengths() -> None:
    one, other = writer(1), replace(writer(1), text_seed=1)
    assert one.text(200, "a") != other.text(200, "a")
    assert one.random("a").random() == other.random("a").random()


def test_lengths_are_in_tokens_and_scaled() -> None:
    assert len(writer(chars_per_token=5.0).text(100, "a")) == pytest.approx(500, abs=20)
    assert len(writer(length_scale=0.1).text(1000, "a")) == pytest.approx(400, abs=20)
    assert writer(length_scale=0.1).answer_tokens(3) == 1
    assert writer(chars_per_token=5.0).tokens_of("twelve chars") == 2


def test_a_folder_s_texts_are_read_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "book.md").write_text(" ".join(SENTENCES))
    (tmp_path / "picture.png").write_bytes(b"\xff" * 1000)
    assert len(Prose.of(tmp_path)) == len(prose())


def test_a_large_file_is_read_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "book.txt"
    file.write_text(" ".join(SENTENCES))
    size = file.stat().st_size
    monkeypatch.setattr(prose_module, "MAX_TEXT_BYTES", size - 1)
    assert len(Prose.of(file)) == size - 1
    monkeypatch.setattr(prose_module, "MAX_TEXT_BYTES", size)
    assert len(Prose.of(file)) == size


def test_too_short_a_text_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("One. Two.")
    with pytest.raises(InvalidRequest, match=r"note\.txt has 2 sentences.*--text"):
        Prose.of(tmp_path / "note.txt")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Prose.of(tmp_path / "none.txt")
