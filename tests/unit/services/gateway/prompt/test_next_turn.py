"""How the prompt after an answer begins, before anybody has sent it."""

from __future__ import annotations

from dataclasses import replace

from services.gateway.answer.answer_format import PLAIN_ANSWER, AnswerFormat
from services.gateway.prompt.next_turn import UNKNOWN, answer_turn, common_blocks, next_prompts
from shared.messages import ChatTurn, PromptThinking, ToolCall
from shared.text.tool_formats import FORMATS
from tests.support.text_request import text_request

HERMES = AnswerFormat(tool_format=FORMATS["hermes"])
CALL = 'I look it up.\n<tool_call>\n{"name": "find", "arguments": {"what": "rain"}}\n</tool_call>'
QUESTION = ChatTurn("user", "Does it rain?")
CHAT = replace(text_request(), text=None, chat=(QUESTION,))


def test_an_answer_with_calls_is_said_again_by_the_ids_that_its_client_knows() -> None:
    turn = answer_turn(CALL, HERMES, ["id-1"])
    assert turn == ChatTurn(
        "assistant", "I look it up.", tool_calls=(ToolCall("id-1", "find", '{"what": "rain"}'),)
    )
    assert (
        answer_turn("No.", HERMES, ()) == answer_turn("No.", PLAIN_ANSWER, ()) == ChatTurn("assistant", "No.")
    )


def test_what_was_thought_is_not_said_again() -> None:
    thinking = AnswerFormat(PromptThinking("think"))
    assert answer_turn("<think>So.</think>\n\nNo.", thinking, ()) == ChatTurn("assistant", "No.")


def test_the_results_of_its_calls_follow_an_answer_or_else_what_the_user_says() -> None:
    answer = answer_turn(CALL, HERMES, ["id-1"])
    chats = [prompt.chat for prompt in next_prompts(CHAT, answer, ())]
    assert chats == [
        (QUESTION, answer, ChatTurn("tool", unknown, tool_call_id="id-1")) for unknown in UNKNOWN
    ]
    said = ChatTurn("assistant", "No.")
    assert [prompt.chat[1:] for prompt in next_prompts(CHAT, said, ())] == [
        (said, ChatTurn("user", unknown)) for unknown in UNKNOWN
    ]


def test_a_text_or_ids_go_on_with_the_answer() -> None:
    text = replace(text_request(), text="Once")
    said = ChatTurn("assistant", " upon")
    assert [prompt.text for prompt in next_prompts(text, said, ())] == [
        f"Once upon{each}" for each in UNKNOWN
    ]
    ids = replace(text_request(), text=None, token_ids=(1, 2))
    assert [prompt.token_ids for prompt in next_prompts(ids, said, [3])] == [(1, 2, 3)]


def test_nothing_is_known_of_a_prompt_with_passages() -> None:
    asked = replace(CHAT, retrieval=replace(CHAT.retrieval, passages=3))
    assert next_prompts(asked, ChatTurn("assistant", "No."), ()) == []


def test_blocks_are_common_up_to_the_first_that_is_not() -> None:
    assert common_blocks([b"a", b"b", b"c"], [b"a", b"x", b"c"]) == 1
    assert common_blocks([b"a"], [b"a", b"b"]) == 1
