"""The message that asks a tokenizer for a request's prompt."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.prompt.preprocessor import is_possible, tokenize_message
from services.gateway.request.request import validate_request
from shared.messages import (
    NO_TRIMMING,
    ChatTurn,
    ScoredPassage,
    Tokenized,
    Trimming,
    unpack_ids,
)
from tests.support.text_request import text_request


def test_a_plain_prompt_is_tokenized_as_it_is() -> None:
    assert tokenize_message(text_request(), ()).text == "hi"
    packed = tokenize_message(
        validate_request(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[3, 4])), drawn_seed=1), ()
    ).token_ids
    assert packed is not None
    assert unpack_ids(packed) == [3, 4]


def test_passages_go_to_the_tokenizer_beside_the_question() -> None:
    message = pb.GenerateRequest(retrieval=pb.Retrieval(enabled=True))
    message.chat.messages.add(role="system", content="be brief")
    message.chat.messages.add(role="user", content="why?")
    asked = tokenize_message(validate_request(message, drawn_seed=1), (ScoredPassage("a", "Because.", 1.0),))
    assert asked.chat[0] == ChatTurn("system", "be brief")
    assert (asked.chat[1], asked.passages) == (ChatTurn("user", "why?"), ("Because.",))


@pytest.mark.parametrize("optional", [False, True])
def test_a_chat_says_whether_it_needs_a_template(optional: bool) -> None:
    message = pb.GenerateRequest(chat=pb.ChatPrompt(template_optional=optional))
    message.chat.messages.add(role="user", content="why?")
    assert tokenize_message(validate_request(message, drawn_seed=1), ()).template_optional == optional


def test_a_chat_with_retrieval_needs_no_template() -> None:
    message = pb.GenerateRequest(retrieval=pb.Retrieval(enabled=True))
    message.chat.messages.add(role="user", content="why?")
    assert tokenize_message(validate_request(message, drawn_seed=1), ()).template_optional


def test_without_passages_the_question_stands_alone() -> None:
    asked = tokenize_message(text_request(retrieval=pb.Retrieval(enabled=True)), ())
    assert (asked.chat, asked.template_optional) == ((ChatTurn("user", "hi"),), True)


def test_a_budget_of_tools_goes_with_the_one_that_has_to_be_called() -> None:
    message = pb.GenerateRequest(chat=pb.ChatPrompt(tools=[pb.Tool(name="look")], tool_name="look"))
    message.chat.messages.add(role="user", content="why?")
    assert tokenize_message(validate_request(message, drawn_seed=1), ()).trimming == NO_TRIMMING
    message.trimming.max_tool_tokens = 300
    asked = tokenize_message(validate_request(message, drawn_seed=1), ())
    assert asked.trimming == Trimming(tool_tokens=300, tool="look")


@pytest.mark.parametrize("places", [(), (0,), (0, 2), (0, 1, 2)])
def test_a_tokenizer_may_say_which_tools_it_told(places: tuple[int, ...]) -> None:
    assert is_possible(Tokenized(b"", b"", tool_places=places), (), 3)


@pytest.mark.parametrize("places", [(3,), (-1,), (1, 0), (1, 1)])
def test_places_of_tools_that_there_are_not_are_no_answer(places: tuple[int, ...]) -> None:
    assert not is_possible(Tokenized(b"", b"", tool_places=places), (), 3)
