"""The Python client without a server: what it sends, when it sends again, what it makes of an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any as Any_

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from penstock import client
from penstock.client import _proto, errors, request
from penstock.client._proto import inference_pb2 as client_pb
from penstock.client.retry import JITTER_SHARE, MAX_RESUME_WAIT_S, Retry
from penstock.client.stream_state import StreamState
from protos.penstock.v1 import inference_pb2 as pb

FOLDER = Path(client.__file__).parent
SHED = client.Shed("full", retry_after_ms=100)


def test_the_clients_copy_of_the_contract_is_the_contract() -> None:
    ours, theirs = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
    client_pb.DESCRIPTOR.CopyToProto(ours)
    pb.DESCRIPTOR.CopyToProto(theirs)
    assert ours == theirs


def test_two_copies_of_the_contract_in_one_process_do_not_meet() -> None:
    assert client_pb.DESCRIPTOR.pool is not pb.DESCRIPTOR.pool
    assert not isinstance(client_pb.Usage(), pb.Usage)


def test_the_client_imports_nothing_of_what_serves() -> None:
    sources = "\n".join(path.read_text() for path in FOLDER.rglob("*.py"))
    for top in ("services", "shared", "protos", "tests"):
        assert f"from {top}" not in sources
        assert f"import {top}" not in sources
    assert Path(str(_proto.__file__)).parent.parent == FOLDER


def test_every_sampling_field_of_the_contract_is_a_keyword() -> None:
    assert set(request.SamplingOptions.__annotations__) == set(pb.Sampling.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("said", "allowed", "models"),
    [(True, True, []), (False, False, []), ("a", True, ["a"]), (["a", "b"], True, ["a", "b"])],
)
def test_whether_another_model_may_answer_is_said_in_a_word_or_by_names(
    said: bool | str | list[str], allowed: bool, models: list[str]
) -> None:
    sent = request.build_request("hello", {"fallback": said, "sticky_key": "me"})
    assert sent.HasField("fallback")
    assert (sent.fallback.allowed, list(sent.fallback.models), sent.sticky_key) == (allowed, models, "me")


def test_an_agent_is_a_name_or_all_that_is_known() -> None:
    hints = client.AgentHints(session="run-7", pause_ms=900)
    assert request.build_request("hello", {"agent": "run-7"}).agent == client.AgentHints(session="run-7")
    assert request.build_request("hello", {"agent": hints}).agent == hints


def test_how_long_a_model_may_think_is_said_in_tokens_and_seconds() -> None:
    made = request.build_request(
        "hello", {"reasoning_effort": "low", "thinking_tokens": 0, "thinking_s": 0.5}
    ).thinking
    assert (made.effort, made.HasField("max_tokens"), made.max_tokens, made.deadline_ms) == (3, True, 0, 500)
    assert not request.build_request("hello", {}).HasField("thinking")


def test_a_prompt_is_a_text_a_chat_or_ids() -> None:
    assert request.build_request("hello", {}).text == "hello"
    chat = request.build_request([("system", "be kind"), ("user", "hello")], {}).chat
    assert [(turn.role, turn.content) for turn in chat.messages] == [
        ("system", "be kind"),
        ("user", "hello"),
    ]
    assert list(request.build_request([1, 2], {}).token_ids.ids) == [1, 2]


def test_a_chat_takes_messages_of_every_role_beside_pairs() -> None:
    call = client.ToolCall(id="c", name="f", arguments="{}")
    turns: list[client.Turn] = [
        ("user", "hello"),
        client.ChatMessage(role="assistant", tool_calls=[call]),
        client.ChatMessage(role="tool", content="3", tool_call_id="c"),
    ]
    sent = request.build_request(turns, {}).chat.messages
    assert [turn.role for turn in sent] == ["user", "assistant", "tool"]
    assert list(sent[1].tool_calls) == [call]
    assert request.build_prompt(turns).chat.messages == sent


def test_tools_are_told_with_a_chat() -> None:
    tool = client.Tool(name="f", parameters="{}")
    chat = request.build_request([("user", "x")], {"tools": [tool], "tool_choice": "required"}).chat
    assert (list(chat.tools), chat.tool_choice) == ([tool], client_pb.TOOL_CHOICE_REQUIRED)
    assert not chat.HasField("parallel_tool_calls")
    options: request.GenerateOptions = {"tools": [tool], "tool_name": "f", "parallel_tool_calls": False}
    chat = request.build_request([("user", "x")], options).chat
    assert (chat.tool_name, chat.HasField("parallel_tool_calls")) == ("f", True)


def test_tools_without_a_chat_are_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match=r"^tools is for a chat alone"):
        request.build_request("hello", {"tools": [client.Tool(name="f")]})


def test_every_field_of_a_chats_tools_is_a_keyword() -> None:
    others = {"messages", "template_optional"}
    assert set(request.ToolOptions.__annotations__) == set(pb.ChatPrompt.DESCRIPTOR.fields_by_name) - others


def test_what_is_left_out_is_left_to_the_server() -> None:
    message = request.build_request("hello", {})
    request.stamp_request(message, None)
    message.ClearField("client_sent_unix_us")
    assert message == client_pb.GenerateRequest(text="hello", sampling=client_pb.Sampling())


def test_options_become_the_fields_of_the_contract() -> None:
    message = request.build_request(
        "hello",
        {
            "model": "m",
            "max_tokens": 3,
            "stop": ["x"],
            "bad_word_ids": [[1, 2]],
            "logit_bias": {5: -1.0},
            "first_token_s": 0.5,
            "inter_token_s": 0.25,
            "priority": "high",
            "retrieve": 2,
            "retrieve_may_degrade": False,
            "cache": "semantic",
        },
    )
    request.stamp_request(message, 1.5)
    sampling = message.sampling
    assert (message.model, sampling.max_tokens, list(sampling.stop)) == ("m", 3, ["x"])
    assert [list(word.ids) for word in sampling.bad_word_ids] == [[1, 2]]
    assert dict(sampling.logit_bias) == {5: -1.0}
    assert (message.ttft_deadline_ms, message.inter_token_deadline_ms, message.deadline_ms) == (
        500,
        250,
        1500,
    )
    assert message.priority == client_pb.PRIORITY_HIGH
    assert message.cache.mode == client_pb.CACHE_MODE_SEMANTIC
    assert (message.retrieval.enabled, message.retrieval.k, message.retrieval.may_degrade) == (True, 2, False)


def test_an_argument_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="'max_token'"):
        request.build_request("hello", {"max_token": 3})  # type: ignore[typeddict-unknown-key]


# ---- when a call is sent again --------------------------------------------------------------------------


def test_a_shed_call_waits_as_long_as_the_hint_says_and_a_little_longer() -> None:
    waits = [Retry().wait_s(SHED, 1, None) for _ in range(50)]
    assert all(wait is not None and 0.1 <= wait <= 0.1 * (1 + JITTER_SHARE) for wait in waits)
    assert len(set(waits)) > 1


def test_the_last_attempt_is_the_last() -> None:
    retry = Retry(attempts=3)
    assert [retry.wait_s(SHED, attempt, None) is None for attempt in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize(
    "error",
    [client.Unavailable("gone"), client.Expired("late"), client.InvalidRequest("no"), client.Shed("no hint")],
)
def test_nothing_else_is_sent_again(error: client.PenstockError) -> None:
    assert Retry().wait_s(error, 1, None) is None


def test_a_hint_beyond_the_deadline_or_the_longest_wait_is_not_waited_for() -> None:
    assert Retry().wait_s(SHED, 1, 0.1) is None
    assert Retry().wait_s(SHED, 1, 0.2) is not None
    assert Retry(max_wait_s=0.09).wait_s(SHED, 1, None) is None
    assert Retry(max_wait_s=0.1).wait_s(SHED, 1, None) is not None


@pytest.mark.parametrize(("attempts", "max_wait_s"), [(0, 1.0), (1, -1.0)])
def test_a_retry_that_makes_no_sense_is_refused(attempts: int, max_wait_s: float) -> None:
    with pytest.raises(ValueError, match="attempts"):
        Retry(attempts, max_wait_s)


# ---- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, client.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, client.NotFound),
        (grpc.StatusCode.UNAUTHENTICATED, client.Unauthenticated),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, client.Shed),
        (grpc.StatusCode.DEADLINE_EXCEEDED, client.Expired),
        (grpc.StatusCode.CANCELLED, client.Cancelled),
        (grpc.StatusCode.UNAVAILABLE, client.Unavailable),
        (grpc.StatusCode.INTERNAL, client.ServerError),
        (grpc.StatusCode.DATA_LOSS, client.ServerError),
    ],
)
def test_every_status_is_an_error_of_its_own(
    status: grpc.StatusCode, kind: type[client.PenstockError]
) -> None:
    error = errors.error_of(status, "why", ())
    assert type(error) is kind
    assert (error.message, error.code) == ("why", status.name.lower())


def test_the_hint_is_that_of_the_status_details() -> None:
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=Duration(nanos=250_000_000)))
    trailing = (("grpc-status-details-bin", Status(details=[detail]).SerializeToString()),)
    assert errors.error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailing).retry_after_ms == 250


def test_what_the_terminal_event_says_counts_before_the_status() -> None:
    told = client_pb.Error(code="overloaded", message="full", hop="decode", retry_after_ms=7)
    end = client_pb.Terminal(outcome=client_pb.OUTCOME_SHED, error=told)
    error = errors.error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "decode: full", (), end)
    assert (error.message, error.code, error.hop, error.retry_after_ms, error.end) == (
        "full",
        "overloaded",
        "decode",
        7,
        end,
    )


# ---- streams whose gateway is gone ----

GONE = client.Unavailable("Socket closed", code="unavailable")


@pytest.mark.parametrize("details", [None, "", "CANCELLED"])
def test_a_call_that_a_leaving_gateway_did_not_take_up_is_sent_again_at_once(details: str | None) -> None:
    error = errors.error_of(grpc.StatusCode.CANCELLED, details, ())
    assert type(error) is client.Dropped
    assert isinstance(error, client.Unavailable)
    assert [Retry(attempts=2).wait_s(error, attempt, None) for attempt in (1, 2)] == [0.0, None]
    state = StreamState(request.build_request("hello", {}), Retry(), None)
    assert (state.wait_s(error), state.attempt) == (0.0, 2)
    assert isinstance(state.next_message(), client_pb.GenerateRequest)


def test_a_stream_that_a_leaving_gateway_dropped_goes_on_at_another() -> None:
    state = begun()
    assert state.wait_s(errors.error_of(grpc.StatusCode.CANCELLED, "CANCELLED", ())) == 0.0
    assert isinstance(state.next_message(), client_pb.ResumeRequest)


def begun(retry: Retry | None = None, deadline_s: float | None = None) -> StreamState:
    """A stream of which two tokens have come."""
    state = StreamState(request.build_request("hello", {}), retry or Retry(), deadline_s)
    prompt = client_pb.PromptInfo(request_id="gateway-0.a", resume_token="token-a")
    prompt.passages.add(text="a passage")
    state.take_event(client_pb.GenerateEvent(prompt=prompt))
    state.take_event(client_pb.GenerateEvent(text=client_pb.TextDelta(text="ab", token_ids=[1, 2])))
    return state


def test_a_stream_is_asked_for_as_one_that_can_be_resumed() -> None:
    assert begun().request.resumable
    assert not begun(Retry(resumes=0)).request.resumable


@pytest.mark.parametrize(
    "options",
    [{"n": 2}, {"prompt_logprobs": 0}, {"tools": [client.Tool(name="f")]}],
    ids=["n", "scores", "tools"],
)
def test_a_stream_that_no_gateway_keeps_is_not_asked_for_so(options: dict[str, Any_]) -> None:
    asked = request.build_request([("user", "hello")], options)  # type: ignore[arg-type]  # its fields
    assert not StreamState(asked, Retry(), None).request.resumable


def test_a_broken_stream_goes_on_at_once_after_what_has_come() -> None:
    state = begun()
    assert state.wait_s(GONE) == 0.0
    message = state.next_message()
    assert isinstance(message, client_pb.ResumeRequest)
    assert (message.token, message.received_tokens, message.request.text) == ("token-a", 2, "hello")


def test_a_stream_that_goes_on_has_the_new_id_and_what_it_was_told_before() -> None:
    state = begun()
    state.wait_s(GONE)
    again = client_pb.PromptInfo(request_id="gateway-1.b", resume_token="token-b")
    state.take_event(client_pb.GenerateEvent(prompt=again))
    state.take_event(client_pb.GenerateEvent(text=client_pb.TextDelta(text="c", token_ids=[3])))
    assert (state.prompt.request_id, len(state.prompt.passages)) == ("gateway-1.b", 1)
    assert state.wait_s(GONE) == 0.0
    message = state.next_message()
    assert isinstance(message, client_pb.ResumeRequest)
    assert (message.token, message.received_tokens) == ("token-b", 3)


def test_it_is_tried_so_often_and_ever_less_soon() -> None:
    state = begun(Retry(resumes=8))
    waits = [state.wait_s(GONE) for _ in range(9)]
    assert waits[:4] == [0.0, 0.1, 0.2, 0.4]
    assert waits[7:] == [MAX_RESUME_WAIT_S, None]


def test_no_stream_goes_on_beyond_its_deadline() -> None:
    state = begun(deadline_s=0.05)
    assert state.wait_s(GONE) == 0.0
    assert state.wait_s(GONE) is None


def test_what_a_gateway_says_of_a_request_is_the_end_of_it() -> None:
    end = client_pb.Terminal(error=client_pb.Error(code="unavailable"))
    assert begun().wait_s(client.Unavailable("no worker", code="unavailable", end=end)) is None


def test_a_gateway_that_stops_is_left_for_another() -> None:
    end = client_pb.Terminal(error=client_pb.Error(code="gateway_stopping"))
    assert begun().wait_s(client.Unavailable("it stops", code="gateway_stopping", end=end)) == 0.0


def test_a_try_comes_back_when_it_is_told_to() -> None:
    state = begun()
    state.wait_s(GONE)
    wait_s = state.wait_s(SHED)
    assert wait_s is not None
    assert 0.1 <= wait_s <= 0.1 * (1 + JITTER_SHARE)


def test_a_lost_stream_ends_by_name_and_one_that_had_not_begun_is_sent_again() -> None:
    end = client_pb.Terminal(error=client_pb.Error(code="stream_lost", message="nobody has it"))
    error = errors.error_of(grpc.StatusCode.NOT_FOUND, "", (), end)
    assert isinstance(error, client.StreamLost)
    assert begun().wait_s(error) is None
    state = StreamState(request.build_request("hello", {}), Retry(), None)
    state.take_event(client_pb.GenerateEvent(prompt=client_pb.PromptInfo(resume_token="token-a")))
    assert state.wait_s(GONE) == 0.0
    assert state.wait_s(error) == 0.0
    assert isinstance(state.next_message(), client_pb.GenerateRequest)


def test_an_answer_that_is_there_whole_needs_no_gateway() -> None:
    state = begun()
    assert not state.has_end
    state.take_event(client_pb.GenerateEvent(end=client_pb.Terminal(outcome=client_pb.OUTCOME_FINISHED)))
    assert state.has_end
