from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.ask_request import MAX_FILE_BYTES, SCALAR_OPTIONS, parse_request
from services.cli.ask.piped_text import MAX_PIPED_BYTES


def request(*argv: str) -> pb.GenerateRequest:
    return parse_request(argv)[1]


def test_a_text_sets_nothing_but_the_prompt() -> None:
    sent = request("hello")
    assert [(turn.role, turn.content) for turn in sent.chat.messages] == [("user", "hello")]
    assert {field.name for field, _ in sent.ListFields()} <= {"chat", "sampling"}
    assert not sent.sampling.ListFields()


def test_a_text_is_a_chat_message_where_the_model_has_a_template() -> None:
    assert request("hello").chat.template_optional
    assert not request("hello", "--chat").chat.template_optional


def test_raw_sends_plain_text() -> None:
    assert request("hello", "--raw").text == "hello"


def test_other_models_may_answer_in_order_or_none_may() -> None:
    sent = request("hello", "--model", "auto", "--fallback", "b", "--fallback", "a", "--sticky-key", "me")
    assert (sent.model, sent.sticky_key) == ("auto", "me")
    assert (sent.fallback.allowed, list(sent.fallback.models)) == (True, ["b", "a"])
    never = request("hello", "--no-fallback")
    assert never.HasField("fallback")
    assert not never.fallback.allowed


def test_a_call_may_be_an_agents() -> None:
    assert request("hello", "--session", "run-7").agent == pb.AgentHints(session="run-7")
    assert not request("hello").HasField("agent")


def test_a_thinking_may_have_limits() -> None:
    asked = request(
        "hello", "--reasoning-effort", "none", "--thinking-tokens", "0", "--thinking-deadline", "1.5"
    ).thinking
    assert asked == pb.Thinking(effort=pb.REASONING_EFFORT_NONE, max_tokens=0, deadline_ms=1500)
    assert not request("hello").HasField("thinking")


def test_every_option_arrives() -> None:
    argv = (
        "hello --max-tokens 7 --min-tokens 2 --seed 18446744073709551615 --temperature 0.5 --top-k 3"
        " --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty -1 --frequency-penalty 2"
        " --logit-bias 5=-3.5 --logit-bias 6=1 --stop a --stop b --stop-regex c+ --stop-token-id 9"
        " --ignore-eos --logprobs 0 --model m"
        " --cache semantic --deadline 1.5 --ttft-deadline 0.25 --inter-token-deadline 0.5 --priority high"
    )
    sent = request(*argv.split())
    sampling = sent.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (7, 2, 2**64 - 1)
    assert (sampling.temperature, sampling.top_k) == (0.5, 3)
    assert sampling.top_p == pytest.approx(0.9)
    assert sampling.min_p == pytest.approx(0.1)
    assert sampling.repetition_penalty == pytest.approx(1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1, 2)
    assert dict(sampling.logit_bias) == {5: -3.5, 6: 1.0}
    assert (list(sampling.stop), list(sampling.stop_token_ids)) == (["a", "b"], [9])
    assert list(sampling.stop_regex) == ["c+"]
    assert sampling.ignore_eos
    assert sampling.HasField("logprobs")
    assert sampling.logprobs == 0
    assert (sent.model, sent.deadline_ms, sent.ttft_deadline_ms) == ("m", 1500, 250)
    assert sent.inter_token_deadline_ms == 500
    assert sent.priority == pb.PRIORITY_HIGH
    assert sent.cache.mode == pb.CACHE_MODE_SEMANTIC


@pytest.mark.parametrize("name", SCALAR_OPTIONS)
def test_every_number_and_flag_of_the_contract_is_an_option(name: str) -> None:
    option = "--" + name.replace("_", "-")
    flag = isinstance(SCALAR_OPTIONS[name].default, bool)
    sampling = request("hello", option).sampling if flag else request("hello", option, "3").sampling
    assert [(field.name, value) for field, value in sampling.ListFields()] == [(name, True if flag else 3)]


def test_zero_is_sent_and_not_taken_for_unset() -> None:
    sampling = request("hello", "--temperature", "0", "--seed", "0").sampling
    assert sampling.HasField("temperature")
    assert sampling.HasField("seed")


def test_retrieve_and_chat_and_system_send_chat_messages() -> None:
    sent = request("why?", "--retrieve", "--k", "5", "--no-degrade")
    assert [(turn.role, turn.content) for turn in sent.chat.messages] == [("user", "why?")]
    assert (sent.retrieval.enabled, sent.retrieval.k, sent.retrieval.may_degrade) == (True, 5, False)
    sent = request("why?", "--system", "be brief")
    assert [turn.role for turn in sent.chat.messages] == ["system", "user"]
    assert not sent.HasField("retrieval")
    assert request("why?", "--chat").WhichOneof("prompt") == "chat"


def test_token_ids_take_the_place_of_text() -> None:
    assert list(request("--token-ids", "1, 2,3").token_ids.ids) == [1, 2, 3]


SCHEMA = '{"type": "object"}'


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--json-object"], "json_object", True),
        (["--json-schema", SCHEMA], "json_schema", SCHEMA),
        (["--regex", "a+"], "regex", "a+"),
        (["--regex", ""], "regex", ""),
        (["--grammar", 'root ::= "a"'], "grammar", 'root ::= "a"'),
        (["--grammar", 'start: "a"'], "grammar", 'start: "a"'),
    ],
)
def test_what_the_answer_matches_is_sent_as_given(argv: list[str], name: str, value: str | bool) -> None:
    sampling = request("hello", *argv).sampling
    assert sampling.WhichOneof("constraint") == name
    assert getattr(sampling, name) == value


@pytest.mark.parametrize(
    ("option", "text"), [("--json-schema", SCHEMA), ("--grammar", 'start: "a"\n')], ids=["schema", "grammar"]
)
def test_a_schema_or_grammar_is_read_from_a_file(option: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "constraint"
    file.write_text(text)
    sampling = request("hello", option, str(file)).sampling
    assert getattr(sampling, option[2:].replace("-", "_")) == text


@pytest.mark.parametrize(
    ("data", "fault"),
    [(b"\xff{", "not UTF-8"), (b"{" * (MAX_FILE_BYTES + 1), "larger"), (None, "No such file")],
)
def test_a_file_that_holds_no_schema_exits_2_with_what_is_wrong(
    data: bytes | None, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(SystemExit) as caught:
        parse_request(["hello", "--json-schema", str(file)])
    assert caught.value.code == 2
    assert fault in capsys.readouterr().err


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Make what follows come from stdin."""
    with ExitStack() as files:

        def put(data: bytes) -> None:
            file = tmp_path / "piped"
            file.write_bytes(data)
            monkeypatch.setattr("sys.stdin", files.enter_context(file.open()))

        yield put


def test_what_is_piped_in_is_the_prompt(pipe: Callable[[bytes], None]) -> None:
    pipe(b"from a pipe\n")
    assert request("--raw").text == "from a pipe\n"
    pipe(b"from a pipe\n")
    assert request("-", "--raw").text == "from a pipe\n"


def test_what_is_piped_in_stands_before_the_question_which_is_searched_for(
    pipe: Callable[[bytes], None],
) -> None:
    pipe("\ufeffline 1\nline 2\n".encode())
    sent = request("what failed?", "--retrieve")
    assert [turn.content for turn in sent.chat.messages] == ["line 1\nline 2\n\nwhat failed?"]
    assert sent.retrieval.query == "what failed?"


def test_an_empty_pipe_changes_nothing(pipe: Callable[[bytes], None]) -> None:
    pipe(b"\n")
    assert request("hello", "--raw").text == "hello"


@pytest.mark.parametrize(
    ("data", "argv", "fault"),
    [
        (b"\x89PNG\r", ["hello"], "what is piped in is not UTF-8 text (byte 0): a model reads text"),
        (b"ELF\0\0", ["hello"], "what is piped in is binary: a model reads text"),
        (b"x" * (MAX_PIPED_BYTES + 1), ["hello"], "more than 16777216 bytes are piped in: send a part"),
        (b"", [], "give the prompt as TEXT, pipe it in, or give its ids with --token-ids"),
        (b"", ["-"], "give the prompt as TEXT, pipe it in"),
    ],
)
def test_what_cannot_be_a_prompt_is_a_sentence(
    pipe: Callable[[bytes], None],
    data: bytes,
    argv: list[str],
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipe(data)
    with pytest.raises(SystemExit) as caught:
        parse_request(argv)
    assert caught.value.code == 2
    assert fault in capsys.readouterr().err


def test_as_much_as_the_limit_may_be_piped_in(pipe: Callable[[bytes], None]) -> None:
    pipe(b"x" * MAX_PIPED_BYTES)
    assert len(request("--raw").text) == MAX_PIPED_BYTES


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["hello", "--token-ids", "1"],
        ["--token-ids", "1,x"],
        ["--token-ids", "4294967296"],
        ["--token-ids", "1", "--chat"],
        ["--token-ids", "1", "--retrieve"],
        ["hello", "--raw", "--retrieve"],
        ["hello", "--raw", "--system", "be brief"],
        ["hello", "--raw", "--chat"],
        ["hello", "--k", "3"],
        ["hello", "--no-degrade"],
        ["hello", "--retrieve", "--k", "0"],
        ["hello", "--retrieve", "--k", "17"],
        ["hello", "--temperature", "nan"],
        ["hello", "--temperature", "inf"],
        ["hello", "--temperature", "warm"],
        ["hello", "--max-tokens", "-1"],
        ["hello", "--max-tokens", "99999999999"],
        ["hello", "--seed", "18446744073709551616"],
        ["hello", "--deadline", "0"],
        ["hello", "--deadline", "-3"],
        ["hello", "--deadline", "nan"],
        ["hello", "--logit-bias", "5"],
        ["hello", "--logit-bias", "x=1"],
        ["hello", "--logit-bias", "4294967296=1"],
        ["hello", "--priority", "urgent"],
        ["hello", "--grammar", "x" * 5000],
        ["hello", "--regex", "a", "--json-object"],
        ["hello", "--json-schema", "{}", "--grammar", "start: A"],
    ],
)
def test_wrong_usage_exits_2_with_a_sentence(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_request(argv)
    assert caught.value.code == 2
    assert "penstock ask: error:" in capsys.readouterr().err
