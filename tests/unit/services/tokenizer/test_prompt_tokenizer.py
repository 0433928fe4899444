"""What the tokenizer service answers to a prompt, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.tokenizer.prompt_tokenizer import MAX_TURNS, PromptTokenizer, text_chars
from shared.blocks.block_hash import BlockHasher
from shared.errors import ContextExceeded, InvalidRequest, PenstockError, TooLarge
from shared.messages import (
    ChatTurn,
    Detokenize,
    Tokenize,
    Tool,
    ToolCall,
    pack_ids,
    unpack_hashes,
    unpack_ids,
)
from shared.text.retrieval_prompt import CONTEXT_FORM, INSTRUCTED_FORM, retrieval_prompt
from tests.support.block_hashes import hashes_of
from tests.support.tokenizer_kinds import SAMPLES, text_tokenizer

LIMIT_BYTES = 1000
CALLING = ChatTurn("assistant", "", tool_calls=(ToolCall("c", "clock", "{}"),))
CLOCK = Tool("clock", "what time it is", "")


@pytest.fixture
def prompts() -> PromptTokenizer:
    return PromptTokenizer(text_tokenizer("byte_level"), BlockHasher(), LIMIT_BYTES)


def test_text_becomes_ids_and_the_names_of_its_full_blocks(prompts: PromptTokenizer) -> None:
    text = " ".join(SAMPLES)
    answer = prompts.tokenize_prompt(Tokenize(text=text))
    ids = unpack_ids(answer.token_ids)
    assert ids == text_tokenizer("byte_level").encode_text(text)
    assert len(unpack_hashes(answer.block_hashes)) == len(ids) // 16 > 1
    assert unpack_hashes(answer.block_hashes) == hashes_of(ids)


def test_block_names_of_two_models_tenants_or_fleets_never_meet(prompts: PromptTokenizer) -> None:
    message = Tokenize(text=" ".join(SAMPLES), layout="some-model", tenant="some-tenant")
    others = [replace(message, layout="other-model"), replace(message, tenant="other-tenant")]
    answers = [prompts.tokenize_prompt(each) for each in (message, *others)]
    elsewhere = PromptTokenizer(text_tokenizer("byte_level"), BlockHasher(bytes(32)), LIMIT_BYTES)
    answers.append(elsewhere.tokenize_prompt(message))
    names = [name for answer in answers for name in unpack_hashes(answer.block_hashes)]
    assert len(names) == len(set(names)) == 4 * (len(answers[0].block_hashes) // 16) > 4


def test_token_ids_come_back_with_their_block_names(prompts: PromptTokenizer) -> None:
    ids = list(range(40))
    answer = prompts.tokenize_prompt(Tokenize(token_ids=pack_ids(ids)))
    assert unpack_ids(answer.token_ids) == ids
    assert unpack_hashes(answer.block_hashes) == hashes_of(ids)


def test_a_chat_with_tools_says_how_its_model_was_told_to_call_them(prompts: PromptTokenizer) -> None:
    chat = (ChatTurn("user", "a"),)
    told = prompts.tokenize_prompt(Tokenize(chat=chat, tools=(CLOCK,), template_optional=True))
    assert (told.tool_format, told.marker_ids) == ("hermes", ())
    plain = prompts.tokenize_prompt(Tokenize(chat=chat, template_optional=True))
    assert (plain.tool_format, plain.marker_ids) == ("", ())
    assert len(plain.token_ids) < len(told.token_ids)


def test_a_chat_is_plain_text_where_that_is_allowed(prompts: PromptTokenizer) -> None:
    message = Tokenize(chat=(ChatTurn("user", "a"), ChatTurn("assistant", "b")), template_optional=True)
    assert unpack_ids(prompts.tokenize_prompt(message).token_ids) == text_tokenizer("byte_level").encode_text(
        "a\n\nb"
    )


def test_passages_become_part_of_the_question_in_the_form_that_the_model_was_taught(
    prompts: PromptTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = (ChatTurn("system", "be brief"), ChatTurn("user", "why?"))
    message = Tokenize(chat=chat, passages=("Because.",), template_optional=True)
    tokenizer = text_tokenizer("byte_level")
    for form in (INSTRUCTED_FORM, CONTEXT_FORM):
        monkeypatch.setattr(tokenizer, "retrieval_form", form)
        wanted = f"be brief\n\n{retrieval_prompt(('Because.',), 'why?', form)}"
        assert unpack_ids(prompts.tokenize_prompt(message).token_ids) == tokenizer.encode_text(wanted)


def test_text_up_to_the_limit_is_taken(prompts: PromptTokenizer) -> None:
    assert prompts.tokenize_prompt(Tokenize(text="é" * (LIMIT_BYTES // 2))).token_ids


def test_a_prompt_that_fills_the_context_is_refused_by_both_numbers(prompts: PromptTokenizer) -> None:
    taken = prompts.tokenize_prompt(Tokenize(text="abcdef"))
    tokens = len(unpack_ids(taken.token_ids))
    assert prompts.tokenize_prompt(Tokenize(text="abcdef", context_tokens=tokens + 1)) == taken
    with pytest.raises(ContextExceeded, match=rf"has {tokens} tokens, .* is {tokens} tokens"):
        prompts.tokenize_prompt(Tokenize(text="abcdef", context_tokens=tokens))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Tokenize(), InvalidRequest),
        (Tokenize(text="a", token_ids=pack_ids([1])), InvalidRequest),
        (Tokenize(text="a", chat=(ChatTurn("user", "b"),)), InvalidRequest),
        (Tokenize(text=""), InvalidRequest),
        (Tokenize(token_ids=b""), InvalidRequest),
        (Tokenize(token_ids=b"abc"), PenstockError),
        (Tokenize(token_ids=pack_ids([5, 1 << 30])), InvalidRequest),
        (Tokenize(chat=(ChatTurn("user", ""),), template_optional=True), InvalidRequest),
        (Tokenize(chat=(ChatTurn("wizard", "a"),), template_optional=True), InvalidRequest),
        (Tokenize(chat=(ChatTurn("", "a"),), template_optional=True), InvalidRequest),
        (Tokenize(chat=(ChatTurn("user", "a"),)), InvalidRequest),
        (Tokenize(chat=(ChatTurn("user", "a"),) * (MAX_TURNS + 1), template_optional=True), TooLarge),
        (Tokenize(text="é" * (LIMIT_BYTES // 2) + "a"), TooLarge),
        (Tokenize(chat=(ChatTurn("user", "a" * LIMIT_BYTES), ChatTurn("user", "b"))), TooLarge),
        (Tokenize(chat=(ChatTurn("user", "a" * LIMIT_BYTES),), tools=(CLOCK,)), TooLarge),
        (Tokenize(chat=(ChatTurn("user", "a" * LIMIT_BYTES), CALLING)), TooLarge),
    ],
)
def test_a_prompt_that_cannot_be_used_is_a_typed_error(
    prompts: PromptTokenizer, message: Tokenize, error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        prompts.tokenize_prompt(message)


def test_the_length_of_all_parts_counts_as_work() -> None:
    assert text_chars(Tokenize(text="abc")) == 3
    assert text_chars(Tokenize(chat=(ChatTurn("user", "abc"), ChatTurn("user", "de")))) == 5
    assert text_chars(Tokenize(token_ids=b"\0" * 20)) == 20


def test_ids_become_the_text_they_were_made_of(prompts: PromptTokenizer) -> None:
    ids = text_tokenizer("byte_level").encode_text("Über größere Straßen")
    assert prompts.detokenize_ids(Detokenize(pack_ids(ids))).text == "Über größere Straßen"


def test_ids_outside_the_vocabulary_have_no_text(prompts: PromptTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        prompts.detokenize_ids(Detokenize(pack_ids([1 << 30])))
