"""How much of a text one token stands for at most."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.text.token_reach import most_token_bytes, sure_bytes
from shared.text.tokenizer import TextTokenizer
from tests.support.data import REPOSITORY

FOLDER = REPOSITORY / "shared" / "demo" / "models" / "target"
SPEC: dict[str, Any] = json.loads((FOLDER / "tokenizer.json").read_text("utf-8"))
TOKENIZER = TextTokenizer.load(FOLDER)


def test_a_tokenizer_of_bytes_is_known_by_its_longest_token() -> None:
    longest = max(*map(len, SPEC["model"]["vocab"]), *(len(t["content"]) for t in SPEC["added_tokens"]))
    assert most_token_bytes(SPEC) == TOKENIZER.most_token_bytes == longest


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_text_has_fewer_tokens_than_its_size_proves(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    tokens = len(TOKENIZER.encode_text(text, add_special_tokens=False))
    assert tokens * TOKENIZER.most_token_bytes >= sure_bytes(text)


def test_what_counts_of_a_text_is_printable_ascii() -> None:
    assert sure_bytes("a b~") == 4
    assert sure_bytes("ä\x01\n\t\x7f日\ud800") == 0
    assert sure_bytes("") == 0


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    change(spec)
    return spec


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a normalizer": lambda spec: spec.update(normalizer={"type": "NFC"}),
    "another model": lambda spec: spec["model"].update(type="Unigram"),
    "a vocabulary as pairs": lambda spec: spec["model"].update(vocab=[["a", 0.0]]),
    "a letter without a token": lambda spec: spec["model"]["vocab"].pop("A"),
    "spaces without a token": lambda spec: spec["model"]["vocab"].pop("\u0120"),
    "no cuts": lambda spec: spec.update(pre_tokenizer=None),
    "white space that is dropped": lambda spec: spec.update(pre_tokenizer={"type": "Whitespace"}),
    "a cut that removes": lambda spec: spec["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
    "a token that takes spaces along": lambda spec: spec["added_tokens"][0].update(lstrip=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_of_one_that_may_leave_something_out_nobody_can_tell(change: str) -> None:
    assert most_token_bytes(changed(CHANGES[change])) == 0


@pytest.mark.parametrize("spec", [{}, {"model": None}, {"model": {"type": "BPE", "vocab": {}}}])
def test_what_is_no_tokenizer_says_nothing(spec: dict[str, Any]) -> None:
    assert most_token_bytes(spec) == 0
