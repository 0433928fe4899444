"""Passages in a prompt: as many as there is room for, at the edge of every limit, and in what order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.tokenizer.chat_prompt_builder import MAX_PASSAGES_OF_PROMPT
from services.tokenizer.prompt_tokenizer import PromptTokenizer
from shared.blocks.block_hash import BlockHasher
from shared.errors import PenstockError
from shared.messages import ChatTurn, Tokenize, Tokenized, Tool, Trimming, unpack_ids
from shared.text.passage_room import fitting_places
from shared.text.retrieval_prompt import passage_line
from shared.trimming.chat_summary import HEAD
from tests.support.tokenizer_kinds import text_tokenizer

KIND = "byte_level"
LONG, SHORT, MIDDLE = "one two three four five six seven eight nine", "ten.", "eleven twelve thirteen"
ASKED = Tokenize(
    chat=(ChatTurn("system", "be brief"), ChatTurn("user", "why?")),
    passages=(LONG, SHORT, MIDDLE),
    template_optional=True,
)
LIMIT_BYTES = 1000


@pytest.fixture
def prompts() -> PromptTokenizer:
    return PromptTokenizer(text_tokenizer(KIND), BlockHasher(), LIMIT_BYTES)


def tokens_of(answer: Tokenized) -> int:
    return len(unpack_ids(answer.token_ids))


def line_tokens(number: int, passage: str) -> int:
    return len(
        text_tokenizer(KIND).encode_text(f"{passage_line(number, passage)}\n", add_special_tokens=False)
    )


def text_of(answer: Tokenized) -> str:
    return text_tokenizer(KIND).decode(unpack_ids(answer.token_ids))


def test_all_passages_stand_in_the_prompt_where_nothing_limits_them(prompts: PromptTokenizer) -> None:
    assert prompts.tokenize_prompt(ASKED).passage_places == (1, 2, 3)


def test_passages_stand_in_the_order_that_was_asked_for(prompts: PromptTokenizer) -> None:
    answer = prompts.tokenize_prompt(replace(ASKED, passage_order=(2, 0, 1)))
    assert answer.passage_places == (2, 3, 1)
    assert f"[1] {MIDDLE}\n[2] {LONG}\n[3] {SHORT}\n" in text_of(answer)


def test_a_prompt_that_exactly_fills_its_room_has_all_passages(prompts: PromptTokenizer) -> None:
    whole = prompts.tokenize_prompt(ASKED)
    exact = prompts.tokenize_prompt(replace(ASKED, room_tokens=tokens_of(whole)))
    assert exact == whole


def test_one_token_more_than_there_is_room_for_costs_a_passage_and_no_answer(
    prompts: PromptTokenizer,
) -> None:
    room = tokens_of(prompts.tokenize_prompt(ASKED)) - 1
    answer = prompts.tokenize_prompt(replace(ASKED, room_tokens=room))
    assert answer.passage_places == (1, 2, 0)
    assert tokens_of(answer) <= room


def test_a_passage_too_long_for_the_room_is_passed_over_for_those_that_fit(prompts: PromptTokenizer) -> None:
    room = tokens_of(prompts.tokenize_prompt(replace(ASKED, passages=(SHORT, MIDDLE))))
    answer = prompts.tokenize_prompt(replace(ASKED, room_tokens=room))
    assert answer.passage_places == (0, 1, 2)
    assert tokens_of(answer) == room


def test_passages_up_to_the_clients_tokens_are_put_in(prompts: PromptTokenizer) -> None:
    limit = line_tokens(1, LONG) + line_tokens(2, SHORT) + line_tokens(3, MIDDLE)
    exact = prompts.tokenize_prompt(replace(ASKED, max_passage_tokens=limit))
    fewer = prompts.tokenize_prompt(replace(ASKED, max_passage_tokens=limit - 1))
    assert (exact.passage_places, fewer.passage_places) == ((1, 2, 3), (1, 2, 0))


def test_passages_fill_the_bytes_that_the_chat_leaves(prompts: PromptTokenizer) -> None:
    left = LIMIT_BYTES - len("be briefwhy?")
    exact = prompts.tokenize_prompt(replace(ASKED, passages=("é" * ((left - 2) // 2), "ab")))
    fewer = prompts.tokenize_prompt(replace(ASKED, passages=("é" * ((left - 2) // 2), "abc")))
    assert (exact.passage_places, fewer.passage_places) == ((1, 2), (1, 0))


def test_where_no_passage_fits_the_question_stands_alone(prompts: PromptTokenizer) -> None:
    answer = prompts.tokenize_prompt(replace(ASKED, room_tokens=1))
    alone = prompts.tokenize_prompt(replace(ASKED, passages=()))
    assert answer.passage_places == (0, 0, 0)
    assert answer.token_ids == alone.token_ids


def test_those_left_out_do_not_change_the_order_of_the_others(prompts: PromptTokenizer) -> None:
    room = tokens_of(prompts.tokenize_prompt(replace(ASKED, passages=(SHORT, MIDDLE))))
    answer = prompts.tokenize_prompt(replace(ASKED, passage_order=(2, 0, 1), room_tokens=room))
    assert answer.passage_places == (0, 2, 1)


def test_as_many_passages_as_are_allowed_are_taken(prompts: PromptTokenizer) -> None:
    answer = prompts.tokenize_prompt(replace(ASKED, passages=("a",) * MAX_PASSAGES_OF_PROMPT))
    assert answer.passage_places == tuple(range(1, MAX_PASSAGES_OF_PROMPT + 1))


WRONG = {
    "too many": replace(ASKED, passages=("a",) * (MAX_PASSAGES_OF_PROMPT + 1)),
    "place named twice": replace(ASKED, passage_order=(0, 1, 1)),
    "place of no passage": replace(ASKED, passage_order=(0, 1, 3)),
    "place left out": replace(ASKED, passage_order=(0, 1)),
    "negative tokens": replace(ASKED, max_passage_tokens=-1),
    "negative room": replace(ASKED, room_tokens=-1),
    "negative summary": replace(ASKED, trimming=Trimming(summary_tokens=-1)),
    "negative tools": replace(ASKED, trimming=Trimming(tool_tokens=-1)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_passages_that_cannot_be_meant_are_a_typed_error(prompts: PromptTokenizer, wrong: Tokenize) -> None:
    with pytest.raises(PenstockError):
        prompts.tokenize_prompt(wrong)


def test_the_best_that_fit_are_chosen_to_the_last_unit() -> None:
    assert fitting_places((3, 2, 4), 5) == (0, 1)
    assert fitting_places((3, 3, 2), 5) == (0, 2)
    assert fitting_places((6, 5), 5) == (1,)
    assert fitting_places((1,), 0) == ()


HISTORY = (
    ChatTurn("system", "be brief"),
    *(ChatTurn(role, f"{role} says {number} ") for number in range(6) for role in ("user", "assistant")),
    ChatTurn("user", "why?"),
)


def test_a_chat_over_its_budget_goes_without_its_oldest_turns(prompts: PromptTokenizer) -> None:
    whole = prompts.tokenize_prompt(Tokenize(chat=HISTORY, template_optional=True))
    budget = tokens_of(whole) - 10
    asked = Tokenize(chat=HISTORY, template_optional=True, trimming=Trimming(prompt_tokens=budget))
    shorter = prompts.tokenize_prompt(asked)
    assert tokens_of(shorter) <= budget
    (part,) = shorter.trimmed
    left = (HISTORY[0], *HISTORY[1 + part.count :])
    assert shorter.token_ids == prompts.tokenize_prompt(Tokenize(chat=left, template_optional=True)).token_ids


def test_a_summary_of_older_turns_stands_in_front_of_the_first_user_turn_that_stays(
    prompts: PromptTokenizer,
) -> None:
    budget = tokens_of(prompts.tokenize_prompt(Tokenize(chat=HISTORY, template_optional=True))) - 60
    trimming = Trimming(prompt_tokens=budget, summary_tokens=60)
    answer = prompts.tokenize_prompt(Tokenize(chat=HISTORY, template_optional=True, trimming=trimming))
    assert tokens_of(answer) <= budget
    assert [part.what for part in answer.trimmed] == ["summarized"]
    text = text_of(answer)
    told, first = text.index(HEAD), text.index("user says", text.index("\n\n"))
    assert text.index(HISTORY[0].content) < told < first


def test_a_chat_fits_into_the_room_that_there_is_where_it_is_to(prompts: PromptTokenizer) -> None:
    room = tokens_of(prompts.tokenize_prompt(Tokenize(chat=HISTORY, template_optional=True))) - 1
    asked = Tokenize(
        chat=HISTORY, template_optional=True, trimming=Trimming(fit_context=True), room_tokens=room
    )
    assert tokens_of(prompts.tokenize_prompt(asked)) <= room
    assert prompts.tokenize_prompt(replace(asked, room_tokens=0)).trimmed == ()


def test_older_turns_go_before_passages_do(prompts: PromptTokenizer) -> None:
    asked = replace(ASKED, chat=(*HISTORY[:-1], ASKED.chat[-1]))
    room = tokens_of(prompts.tokenize_prompt(ASKED)) + 20
    answer = prompts.tokenize_prompt(replace(asked, trimming=Trimming(prompt_tokens=room), room_tokens=room))
    assert answer.passage_places == (1, 2, 3)
    assert [part.what for part in answer.trimmed] == ["turns"]


TOOLS = tuple(Tool(name, f"{name} of a place", "") for name in ("clock", "weather", "trains"))


def test_tools_over_their_budget_are_left_out_but_for_those_that_are_asked_for(
    prompts: PromptTokenizer,
) -> None:
    asked = Tokenize(chat=(ChatTurn("user", "the weather?"),), tools=TOOLS, template_optional=True)
    assert prompts.tokenize_prompt(asked).tool_places == ()
    less = prompts.tokenize_prompt(replace(asked, trimming=Trimming(tool_tokens=40)))
    assert less.tool_places == (1,)
    assert [(part.what, part.count) for part in less.trimmed] == [("tools", 2)]
    assert less.token_ids == prompts.tokenize_prompt(replace(asked, tools=TOOLS[1:2])).token_ids
    named = prompts.tokenize_prompt(replace(asked, trimming=Trimming(tool_tokens=40, tool="trains")))
    assert named.tool_places == (2,)
    assert prompts.tokenize_prompt(replace(asked, trimming=Trimming(tool_tokens=4000))).trimmed == ()


def test_json_of_a_tool_is_encoded_without_its_space_where_it_is_to(prompts: PromptTokenizer) -> None:
    wide, short = '{ "rain" : [ 1 , 2 ] }', '{"rain":[1,2]}'
    asked = Tokenize(chat=(ChatTurn("user", "a"), ChatTurn("tool", wide)), template_optional=True)
    answer = prompts.tokenize_prompt(replace(asked, trimming=Trimming(compact=True)))
    assert short in text_of(answer)
    assert [(part.what, part.count) for part in answer.trimmed] == [("json", 1)]
    assert wide in text_of(prompts.tokenize_prompt(asked))
