"""Validation at the edge of every limit: what is allowed passes unchanged, one step more is named."""

from __future__ import annotations

import tracemalloc

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request import chat_prompt as chat_rules
from services.gateway.request import request as rules
from services.gateway.request.request import Request, served_model, validate_request
from services.gateway.request.retrieval_use import MAX_PASSAGES, NO_RETRIEVAL
from shared.errors import InvalidRequest, NotFound
from shared.messages import ChatTurn
from shared.sampling import parameters as sampling_rules
from shared.sampling.parameters import Grammar
from shared.text.chat_roles import CHAT_ROLES
from shared.text.stopping.regex_stops import MAX_STOP_REGEXES
from tests.support.sampling import OTHER_SCALARS


def text(**sampling: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", sampling=pb.Sampling(**sampling))  # type: ignore[arg-type]  # its fields


def chat(*turns: tuple[str, str]) -> pb.GenerateRequest:
    messages = [pb.ChatMessage(role=role, content=content) for role, content in turns]
    return pb.GenerateRequest(chat=pb.ChatPrompt(messages=messages))


def ids(*token_ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=token_ids))


def words(*token_ids: int) -> pb.TokenIds:
    return pb.TokenIds(ids=token_ids)


def plain(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", **fields)  # type: ignore[arg-type]  # the fields of the message


def valid(message: pb.GenerateRequest) -> Request:
    return validate_request(message, drawn_seed=77)


MAX_FLOAT32 = (2 - 2**-23) * 2.0**127

ALLOWED = {
    "one character": pb.GenerateRequest(text="x"),
    "most messages": chat(*[("user", "x")] * chat_rules.MAX_CHAT_MESSAGES),
    "largest id": ids(rules.MAX_TOKEN_ID),
    "greedy": text(temperature=0.0),
    "hottest": text(temperature=MAX_FLOAT32),
    "largest top_k": text(top_k=sampling_rules.MAX_TOP_K),
    "top_p one": text(top_p=1.0),
    "min_p zero": text(min_p=0.0),
    "min_p one": text(min_p=1.0),
    "most repetition": text(repetition_penalty=MAX_FLOAT32),
    "most tokens": text(max_tokens=sampling_rules.MAX_OUTPUT_TOKENS),
    "penalties": text(presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=0.01),
    "bias": text(logit_bias={0: -100.0, 1: 100.0}),
    "most bias": text(logit_bias=dict.fromkeys(range(sampling_rules.MAX_LOGIT_BIAS_ENTRIES), 1.0)),
    "largest seed": text(seed=2**64 - 1),
    "min is max": text(min_tokens=1, max_tokens=1),
    "most stops": text(stop=[str(n) for n in range(rules.MAX_STOPS)]),
    "longest stop": text(stop=["x" * rules.MAX_STOP_CHARS]),
    "most stop patterns": text(stop_regex=[f"x{n}" for n in range(MAX_STOP_REGEXES)]),
    "most stop ids": text(stop_token_ids=range(sampling_rules.MAX_STOP_TOKEN_IDS)),
    "coolest": text(temperature=2.0**-17),
    "most allowed ids": text(allowed_token_ids=range(sampling_rules.MAX_ALLOWED_IDS)),
    "most bad words": text(bad_word_ids=[words(n) for n in range(sampling_rules.MAX_BAD_WORDS)]),
    "longest bad word": text(bad_word_ids=[words(*range(sampling_rules.MAX_BAD_WORD_TOKENS))]),
    "largest schema": text(json_schema="x" * sampling_rules.MAX_GRAMMAR_BYTES),
    "largest regex": text(regex="é" * (sampling_rules.MAX_GRAMMAR_BYTES // 2)),
    "largest grammar": text(grammar="x" * sampling_rules.MAX_GRAMMAR_BYTES),
    "logprobs zero": text(logprobs=0),
    "most logprobs": text(logprobs=sampling_rules.MAX_TOP_LOGPROBS),
    "shortest deadline": plain(deadline_ms=1, ttft_deadline_ms=1),
    "longest inter-token deadline": plain(inter_token_deadline_ms=rules.MAX_DEADLINE_MS),
    "longest deadline": plain(deadline_ms=rules.MAX_DEADLINE_MS),
    "most passages": plain(retrieval=pb.Retrieval(enabled=True, k=MAX_PASSAGES)),
    "longest model name": plain(model="m" * rules.MAX_MODEL_CHARS),
}

REFUSED = {
    "no prompt": (pb.GenerateRequest(), "prompt"),
    "empty text": (pb.GenerateRequest(text=""), "text"),
    "no messages": (chat(), "chat.messages"),
    "many messages": (chat(*[("user", "x")] * (chat_rules.MAX_CHAT_MESSAGES + 1)), "chat.messages"),
    "unknown role": (chat(("user", "x"), ("wizard", "x")), "chat.messages[1].role"),
    "empty content": (chat(("user", "")), "chat.messages[0].content"),
    "no ids": (ids(), "token_ids.ids"),
    "large id": (ids(rules.MAX_TOKEN_ID + 1), "token_ids.ids"),
    "cold": (text(temperature=-0.01), "sampling.temperature"),
    "too hot": (text(temperature=float("inf")), "sampling.temperature"),
    "nan": (text(temperature=float("nan")), "sampling.temperature"),
    "negative top_k": (text(top_k=-1), "sampling.top_k"),
    "top_p zero": (text(top_p=0.0), "sampling.top_p"),
    "top_p above one": (text(top_p=1.01), "sampling.top_p"),
    "top_p nan": (text(top_p=float("nan")), "sampling.top_p"),
    "min_p above one": (text(min_p=1.01), "sampling.min_p"),
    "no repetition": (text(repetition_penalty=0.0), "sampling.repetition_penalty"),
    "infinite repetition": (text(repetition_penalty=float("inf")), "sampling.repetition_penalty"),
    "presence": (text(presence_penalty=2.01), "sampling.presence_penalty"),
    "frequency": (text(frequency_penalty=-2.01), "sampling.frequency_penalty"),
    "bias": (text(logit_bias={3: 100.5}), "sampling.logit_bias"),
    "bias nan": (text(logit_bias={3: float("nan")}), "sampling.logit_bias"),
    "many biases": (text(logit_bias=dict.fromkeys(range(1025), 1.0)), "sampling.logit_bias"),
    "no tokens": (text(max_tokens=0), "sampling.max_tokens"),
    "negative tokens": (text(max_tokens=-1), "sampling.max_tokens"),
    "negative min": (text(min_tokens=-1), "sampling.min_tokens"),
    "min above max": (text(min_tokens=6, max_tokens=5), "sampling.min_tokens"),
    "min above the default": (text(min_tokens=513), "sampling.min_tokens"),
    "many stops": (text(stop=["x"] * (rules.MAX_STOPS + 1)), "sampling.stop"),
    "empty stop": (text(stop=["x", ""]), "sampling.stop[1]"),
    "long stop": (text(stop=["x" * (rules.MAX_STOP_CHARS + 1)]), "sampling.stop[0]"),
    "many stop patterns": (text(stop_regex=["x"] * (MAX_STOP_REGEXES + 1)), "sampling.stop_regex"),
    "wrong stop pattern": (text(stop_regex=["x", "^x"]), "sampling.stop_regex[1]"),
    "many stop ids": (text(stop_token_ids=range(129)), "sampling.stop_token_ids"),
    "nearly greedy": (text(temperature=7e-6), "sampling.temperature"),
    "many allowed ids": (text(allowed_token_ids=range(16385)), "sampling.allowed_token_ids"),
    "many bad words": (text(bad_word_ids=[words(1)] * 257), "sampling.bad_word_ids"),
    "empty bad word": (text(bad_word_ids=[words(1), words()]), "sampling.bad_word_ids[1]"),
    "long bad word": (text(bad_word_ids=[words(*range(65))]), "sampling.bad_word_ids[0]"),
    "empty schema": (text(json_schema=""), "sampling.json_schema"),
    "large schema": (text(json_schema="x" * 65537), "sampling.json_schema"),
    "large regex": (text(regex="é" * 32769), "sampling.regex"),
    "large grammar": (text(grammar="x" * 65537), "sampling.grammar"),
    "negative logprobs": (text(logprobs=-1), "sampling.logprobs"),
    "negative prompt logprobs": (text(prompt_logprobs=-1), "sampling.prompt_logprobs"),
    "many prompt logprobs": (text(prompt_logprobs=21), "sampling.prompt_logprobs"),
    "many logprobs": (text(logprobs=21), "sampling.logprobs"),
    "deadline zero": (plain(deadline_ms=0), "deadline_ms"),
    "ttft deadline negative": (plain(ttft_deadline_ms=-5), "ttft_deadline_ms"),
    "inter-token deadline negative": (plain(inter_token_deadline_ms=-1), "inter_token_deadline_ms"),
    "inter-token deadline too long": (
        plain(inter_token_deadline_ms=rules.MAX_DEADLINE_MS + 1),
        "inter_token_deadline_ms",
    ),
    "deadline too long": (plain(deadline_ms=rules.MAX_DEADLINE_MS + 1), "deadline_ms"),
    "k zero": (plain(retrieval=pb.Retrieval(k=0)), "retrieval.k"),
    "k large": (plain(retrieval=pb.Retrieval(enabled=True, k=17)), "retrieval.k"),
    "retrieval of ids": (
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), retrieval=pb.Retrieval(enabled=True)),
        "retrieval",
    ),
    "blank question": (
        pb.GenerateRequest(text="  ", retrieval=pb.Retrieval(enabled=True)),
        "retrieval",
    ),
    "unknown priority": (plain(priority=9), "priority"),
    "negative client time": (plain(client_sent_unix_us=-1), "client_sent_unix_us"),
    "long model name": (plain(model="m" * 257), "model"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_within_the_limits_is_taken(name: str) -> None:
    valid(ALLOWED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_outside_is_refused_by_the_name_of_its_field(name: str) -> None:
    message, field = REFUSED[name]
    with pytest.raises(InvalidRequest) as caught:
        valid(message)
    assert caught.value.message.startswith((field, "the " + field))


@pytest.mark.parametrize("name", sorted(OTHER_SCALARS))
def test_every_number_and_flag_is_read(name: str) -> None:
    value = OTHER_SCALARS[name]
    assert getattr(valid(text(**{name: value})).sampling, name) == value


@pytest.mark.parametrize("name", ["top_k", "max_tokens", "min_tokens"])
def test_more_than_the_most_has_no_place_in_the_contract(name: str) -> None:
    most = sampling_rules.PARAMETERS[name].bounds
    assert most is not None
    with pytest.raises(ValueError, match="range"):
        text(**{name: int(most.high) + 1})


def test_what_two_options_leave_out_together_is_told_by_the_names_of_the_contract() -> None:
    message = text(allowed_token_ids=[3], bad_word_ids=[words(3)])
    both = r"^sampling\.bad_word_ids .* sampling\.allowed_token_ids: nothing is left"
    with pytest.raises(InvalidRequest, match=both):
        valid(message)


@pytest.mark.parametrize("role", [role for role in CHAT_ROLES if role != "tool"])
def test_a_client_may_use_the_roles_of_the_contract(role: str) -> None:
    assert valid(chat((role, "x"))).chat == (ChatTurn(role, "x"),)


def test_unset_options_take_the_documented_defaults() -> None:
    request = valid(plain())
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1.0, 0, 1.0, 0.0)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (
        1.0,
        0.0,
        0.0,
    )
    assert (sampling.max_tokens, sampling.min_tokens, sampling.logprobs, sampling.seed) == (512, 0, -1, 77)
    assert (request.retrieval, request.priority) == (NO_RETRIEVAL, 0)
    assert (request.deadline_ms, request.ttft_deadline_ms) == (None, None)
    assert request.inter_token_deadline_ms is None


def test_unconstrained_unless_asked_for() -> None:
    sampling = valid(plain()).sampling
    assert (sampling.allowed_ids, sampling.bad_words, sampling.grammar) == ((), (), None)
    assert valid(text(json_object=False)).sampling.grammar is None


def test_allowed_ids_and_bad_words_go_on_without_duplicates() -> None:
    sampling = valid(
        text(allowed_token_ids=[5, 3, 5], bad_word_ids=[words(1, 2), words(3), words(1, 2)])
    ).sampling
    assert sampling.allowed_ids == (5, 3)
    assert sampling.bad_words == ((1, 2), (3,))


def test_a_list_that_is_too_long_is_refused_before_it_is_copied() -> None:
    message = text(allowed_token_ids=range(200_000), bad_word_ids=[words(*range(200_000))])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"sampling\.allowed_token_ids has 200000 entries"):
            valid(message)
        message.sampling.ClearField("allowed_token_ids")
        with pytest.raises(InvalidRequest, match=r"sampling\.bad_word_ids\[0\] has 200000 ids"):
            valid(message)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000


@pytest.mark.parametrize(
    ("field", "value", "grammar"),
    [
        ("json_schema", "{}", Grammar("json_schema", "{}")),
        ("regex", "a|b", Grammar("regex", "a|b")),
        ("grammar", 'start: "a"', Grammar("ebnf", 'start: "a"')),
        ("json_object", True, Grammar("json_object", "")),
    ],
)
def test_a_constraint_goes_on_as_a_grammar(field: str, value: object, grammar: Grammar) -> None:
    assert valid(text(**{field: value})).sampling.grammar == grammar


def test_a_seed_of_zero_is_a_seed() -> None:
    assert valid(text(seed=0)).sampling.seed == 0


def test_retrieval_takes_three_passages_unless_told_otherwise() -> None:
    request = valid(plain(retrieval=pb.Retrieval(enabled=True, may_degrade=False)))
    assert (request.retrieval.passages, request.retrieval.may_degrade) == (3, False)


def test_the_question_of_a_chat_is_its_last_message() -> None:
    request = valid(chat(("system", "be brief"), ("user", "why?")))
    assert request.question == "why?"
    assert request.chat == (ChatTurn("system", "be brief"), ChatTurn("user", "why?"))


def test_retrieval_for_a_chat_needs_a_question_of_the_user() -> None:
    message = chat(("user", "why?"), ("assistant", "so"))
    message.retrieval.enabled = True
    with pytest.raises(InvalidRequest, match="role user"):
        valid(message)


def test_an_empty_model_is_the_one_that_is_served() -> None:
    assert served_model("", {"/models/a"}) == "/models/a"


def test_a_model_is_known_by_its_id_and_by_the_last_part_of_it() -> None:
    assert served_model("/models/a", {"/models/a", "b"}) == "/models/a"
    assert served_model("a", {"/models/a", "b"}) == "/models/a"


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFound, match="send one of a, b"):
        served_model("c", {"a", "b"})


def test_an_empty_model_among_several_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="several"):
        served_model("", {"a", "b"})
