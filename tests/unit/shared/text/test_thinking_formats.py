"""How a model thinks is known by its chat template, and what was thought goes back into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from services.tokenizer.prompt_tokenizer import PromptTokenizer
from shared.blocks.block_hash import BlockHasher
from shared.messages import NO_THINKING, ChatTurn, PromptThinking, Tokenize
from shared.text.chat_template import ChatTemplate
from shared.text.thinking_formats import (
    COHERE,
    GRANITE,
    HARMONY,
    MAGISTRAL,
    RESPONSE,
    THINK,
    ThinkingFormat,
)
from shared.text.tokenizer import TextTokenizer
from tests.support.tokenizer_kinds import library_tokenizer
from tests.unit.shared.text.test_tokenizer import TEMPLATES, write_model

OPENS = TEMPLATES["chatml"] + r"{{- '<think>\n' }}"
CLOSES = OPENS + r"{{- '\n</think>\n\n' }}"
LEAVES = TEMPLATES["chatml"] + "{% if false %}<think>{% endif %}"
REPEATS = "{% for m in messages %}{{ m.reasoning_content }}</think>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (TEMPLATES["chatml"], None),
        ("{{ '<think>\\n' }}", THINK),
        ("{% set answer = content.split('</think>')[-1] %}", THINK),
        ("write between <think></think>, then between <response></response>", RESPONSE),
        ("Here is my thought process: and Here is my response:", GRANITE),
        ("<|channel|>analysis<|message|>", HARMONY),
        ("<|START_THINKING|>", COHERE),
        ("[THINK]", MAGISTRAL),
    ],
)
def test_the_format_of_thinking_is_known_by_the_template(
    template: str, wanted: ThinkingFormat | None
) -> None:
    assert ChatTemplate(template, {}).thinking_format is wanted


def prompts(folder: Path, template: str, *, special: bool) -> PromptTokenizer:
    write_model(folder, chat_template=template)
    library = Tokenizer.from_str(library_tokenizer("byte_level").to_str())
    library.add_tokens([AddedToken(mark, special=special) for mark in THINK.markers])
    library.save(str(folder / "tokenizer.json"))
    return PromptTokenizer(TextTokenizer.load(folder), BlockHasher(), 1000)


@pytest.mark.parametrize("special", [False, True])
def test_a_chat_says_how_its_model_will_think(tmp_path: Path, special: bool) -> None:
    chat = (ChatTurn("user", "a <think>"),)
    told = {}
    for template in (OPENS, LEAVES, CLOSES):
        answering = prompts(tmp_path, template, special=special)
        told[template] = answering.tokenize_prompt(Tokenize(chat=chat)).thinking
    known = TextTokenizer.load(tmp_path).vocabulary()
    ids = {mark: known[mark] for mark in THINK.markers}
    marker_ids = tuple(ids.items()) if special else ()
    close_ids = told[OPENS].close_ids
    assert TextTokenizer.load(tmp_path).decode(close_ids) == ("\n\n\n" if special else "\n</think>\n\n")
    begun = PromptThinking("think", True, marker_ids, ids["<think>"], ids["</think>"], close_ids)
    assert told[OPENS] == begun
    assert told[LEAVES] == replace(begun, begun=False)
    assert told[CLOSES] == NO_THINKING
    assert answering.tokenize_prompt(Tokenize(text="a <think>")).thinking == NO_THINKING


def test_marks_of_several_tokens_have_no_ids(tmp_path: Path) -> None:
    write_model(tmp_path, chat_template=OPENS)
    answering = PromptTokenizer(TextTokenizer.load(tmp_path), BlockHasher(), 1000)
    thinking = answering.tokenize_prompt(Tokenize(chat=(ChatTurn("user", "a"),))).thinking
    assert thinking == PromptThinking("think", begun=True)


def test_what_was_thought_is_told_to_a_template_as_text(tmp_path: Path) -> None:
    answering = prompts(tmp_path, REPEATS, special=False)
    turns = (ChatTurn("user", ""), ChatTurn("assistant", "b", reasoning="a</think>"))
    tokenizer = answering._tokenizer
    ids = tokenizer.encode_chat(turns)
    assert tokenizer.decode(ids) == "</think>a</think></think>b"
    assert ids.count(tokenizer.token_id("</think>") or 0) == 2  # the template's, and nobody else's


@pytest.mark.parametrize(
    ("effort", "wanted"),
    [("", "|||"), ("none", "False|False|low|"), ("minimal", "True|True|low|"), ("high", "True|True|high|")],
)
def test_a_template_is_told_how_much_to_think_by_the_names_that_it_takes(effort: str, wanted: str) -> None:
    takes = ChatTemplate("{{ enable_thinking }}|{{ thinking }}|{{ reasoning_effort }}|{{ other }}", {})
    assert takes.render([], effort=effort) == wanted
    own = ChatTemplate("{% set thinking = 'own' %}{{ thinking }}", {})
    assert own.render([], effort=effort) == "own"
