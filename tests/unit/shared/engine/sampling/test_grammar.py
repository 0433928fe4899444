"""Structured output, by itself and with all the rest: speculation, recovery, preemption, other options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from shared.engine import LLM, Engine, SamplingParams, TokenOutput
from shared.engine.sampling import grammar as grammar_module
from shared.engine.sampling.grammar import Grammars, GrammarState
from shared.engine.sampling.id_bits import unpacked
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.clock import FakeClock
from tests.support.engine import GREEDY, Drafter, admit, drive, generate, make_engine, undisturbed
from tests.support.grammar import EOS, VOCAB, id_of

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
)
PROMPT = [40, 41, 42]
FREE = SamplingParams(max_tokens=60, seed=3)


def is_the_object(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"ok", "n"} and type(value["ok"]) is bool and 0 <= value["n"] <= 999


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


GRAMMARS: dict[str, tuple[Grammar, Callable[[str], bool]]] = {
    "json_schema": (Grammar("json_schema", SCHEMA), is_the_object),
    "regex": (Grammar("regex", "(true|ok)[0-9]{2,5}!"), matches("(true|ok)[0-9]{2,5}!")),
    "lark": (
        Grammar("ebnf", 'start: item ("," item)~2\nitem: /[a-c]/+ "."'),
        matches(r"[a-c]+\.(,[a-c]+\.){2}"),
    ),
    "gbnf": (Grammar("ebnf", 'root ::= "x" digit digit\ndigit ::= [0-9]'), matches("x[0-9]{2}")),
}
SETTINGS = {
    "greedy": replace(FREE, temperature=0.0),
    "plain": FREE,
    "filters": replace(FREE, temperature=1.5, top_k=30, top_p=0.95, min_p=0.01),
    "penalties": replace(
        FREE, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((50, 2.0),), logprobs=1
    ),
    "ignoring the end": replace(FREE, ignore_eos=True, min_tokens=20),
}


@pytest.fixture(scope="module")
def tokenizer(llm_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(llm_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def grammars(llm_dir: Path) -> Grammars:
    return Grammars(str(llm_dir), VOCAB, (EOS,))


def under(params: SamplingParams, name: str) -> SamplingParams:
    """Space is made unlikely: this model would write little else."""
    bias = dict(params.logit_bias) | {3: -50.0, 98: -50.0}
    return replace(params, grammar=GRAMMARS[name][0], logit_bias=tuple(bias.items()))


def finish(engine: Engine, params: SamplingParams, prompt: list[int] = PROMPT) -> TokenOutput:
    outputs: list[TokenOutput] = []
    admit(engine, "a", prompt, params)
    drive(engine, {"a": list(prompt)}, outputs=outputs)
    assert engine.held() == {}
    return outputs[-1]


# --- what is written ---


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_finished_output_matches_its_grammar(llm_dir: Path, name: str, setting: str) -> None:
    for completion in LLM(llm_dir, kv_blocks=64).generate([PROMPT], under(SETTINGS[setting], name), n=3):
        if completion.finish_reason == "stop":
            assert GRAMMARS[name][1](completion.text)
        else:
            assert completion.finish_reason == "length"
            assert len(completion.token_ids) == 60


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_with_an_end_is_finished(llm_dir: Path, name: str) -> None:
    params = replace(under(SETTINGS["plain"], name), max_tokens=150)
    completions = LLM(llm_dir, kv_blocks=128).generate([PROMPT], params, n=3)
    assert [each.finish_reason for each in completions] == ["stop"] * 3


def test_any_json_object_is_an_object(llm_dir: Path) -> None:
    params = replace(FREE, grammar=Grammar("json_object"), logit_bias=((95, 3.0),))
    completions = LLM(llm_dir, kv_blocks=128).generate([PROMPT], params, n=4)
    assert all(each.text.lstrip().startswith("{") for each in completions)
    finished = [json.loads(each.text) for each in completions if each.finish_reason == "stop"]
    assert all(isinstance(value, dict) for value in finished)


def test_the_end_may_come_where_the_grammar_is_satisfied(llm_dir: Path, tokenizer: Tokenizer) -> None:
    grammar = Grammar("regex", "ab*")
    params = replace(FREE, grammar=grammar, logit_bias=((EOS, 100.0),))
    assert finish(make_engine(llm_dir), params).token_ids == (EOS,)
    (completion,) = LLM(llm_dir).generate([PROMPT], params)
    assert (completion.text, completion.finish_reason) == ("a", "stop")


def test_min_tokens_hold_as_long_as_the_grammar_leaves_a_choice(llm_dir: Path) -> None:
    params = replace(FREE, grammar=Grammar("regex", "ab*"), logit_bias=((EOS, 100.0),), min_tokens=9)
    (completion,) = LLM(llm_dir).generate([PROMPT], params)
    assert (completion.text, completion.finish_reason) == ("a" + "b" * 8, "stop")


def test_a_complete_grammar_ends_the_sequence_before_min_tokens(llm_dir: Path) -> None:
    params = replace(FREE, grammar=Grammar("regex", "abc"), min_tokens=9, ignore_eos=True)
    (completion,) = LLM(llm_dir).generate([PROMPT], params)
    assert (completion.text, completion.finish_reason, len(completion.token_ids)) == ("abc", "stop", 3)


def test_a_stop_id_ends_an_output_within_its_grammar(llm_dir: Path, tokenizer: Tokenizer) -> None:
    stop = id_of("b")
    params = replace(FREE, grammar=Grammar("regex", "[ab]*c{9}"), stop_token_ids=(stop,), max_tokens=200)
    output = finish(make_engine(llm_dir, kv_blocks=128), replace(params, logit_bias=((stop, 5.0),)))
    assert (output.token_ids, output.finish_reason) == ((stop,), "stop")


def test_ids_beyond_the_tokenizer_are_never_drawn(llm_dir: Path, tokenizer: Tokenizer) -> None:
    params = replace(
        FREE, temperature=50.0, grammar=Grammar("regex", "(?s:.*)"), max_tokens=200, ignore_eos=True
    )
    drawn = generate(make_engine(llm_dir), PROMPT, params)
    assert len(drawn) == 200
    assert max(drawn) < tokenizer.get_vocab_size() < VOCAB


def test_space_between_json_tokens_is_bounded(llm_dir: Path) -> None:
    params = replace(under(FREE, "json_schema"), logit_bias=((3, 80.0), (98, 80.0)), max_tokens=240)
    (completion,) = LLM(llm_dir, kv_blocks=128).generate([PROMPT], params)
    assert max(map(len, re.findall(r"\s+", completion.text))) == 24


# --- with speculation ---


def good(answer: list[int], length: int) -> Drafter:
    return lambda _key, tokens: answer[len(tokens) : len(tokens) + length]


def wrong_at(answer: list[int], place: int) -> Drafter:
    def draft(_key: str, tokens: list[int]) -> list[int]:
        ids = answer[len(tokens) : len(tokens) + 6]
        return [(token + (index == place)) % VOCAB for index, token in enumerate(ids)]

    return draft


@pytest.mark.thorough(
    but="gbnf-penalties | regex-plain | lark-filters | json_schema-ignoring the end | json_schema-greedy"
)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_drafts_never_change_what_is_drawn(llm_dir: Path, name: str, setting: str) -> None:
    params = under(SETTINGS[setting], name)
    plain = undisturbed(llm_dir, PROMPT, params)
    answer = PROMPT + plain
    past_the_end = [*answer, EOS, 50, 51, 52]
    drafters = [
        good(answer, 1),
        good(answer, 5),
        good(past_the_end, 30),
        lambda *_: [EOS],
        lambda *_: [127] * 5,
    ]
    drafters += [wrong_at(answer, place) for place in (0, 2, 5)]
    for drafter in drafters:
        assert generate(make_engine(llm_dir), PROMPT, params, drafter) == plain


def test_right_drafts_are_accepted_under_a_grammar(llm_dir: Path) -> None:
    params = under(replace(FREE, temperature=0.0), "json_schema")
    answer = PROMPT + undisturbed(llm_dir, PROMPT, params)
    engine = make_engine(llm_dir)
    admit(engine, "a", PROMPT, params)
    engine.step()
    engine.propose("a", 4, answer[4:9])
    (output,) = engine.step().outputs
    assert (output.token_ids, output.accepted_drafts) == (tuple(answer[4:10]), 5)


def test_drafting_leaves_the_state_where_it_was(grammars: Grammars, tokenizer: Tokenizer) -> None:
    state = GrammarState(grammars.compile(Grammar("regex", "(true|ok)[0-9]{2,5}!")))
    drafts = tokenizer.encode("ok12x9").ids
    before = state.masks(())[0]
    masks = state.masks(drafts)
    after = state.masks(())[0]
    assert before is not None
    assert after is not None
    assert before.tolist() == after.tolist()
    assert [mask is None for mask in masks] == [False, False, False, True, True]


# --- with recovery and preemption ---


@pytest.mark.thorough(
    but="gbnf-plain | regex-penalties | json_schema-filters | lark-ignoring the end | json_schema-greedy"
)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_recovered_sequence_continues_as_if_undisturbed(llm_dir: Path, name: str, setting: str) -> None:
    params = under(SETTINGS[setting], name)
    whole = undisturbed(llm_dir, PROMPT, params)
    for done in range(1, len(whole), 3):
        engine, known = make_engine(llm_dir), PROMPT + whole[:done]
        engine.admit("b", known, len(PROMPT), params)
        assert whole[:done] + drive(engine, {"b": list(known)})["b"] == whole


def test_preempted_sequences_draw_what_undisturbed_ones_draw(llm_dir: Path) -> None:
    params = replace(under(FREE, "json_schema"), max_tokens=40)
    many = {str(index): [40 + index] * 12 for index in range(4)}
    expected = {key: undisturbed(llm_dir, prompt, params) for key, prompt in many.items()}
    engine = make_engine(llm_dir, kv_blocks=6)
    for key, prompt in many.items():
        admit(engine, key, prompt, params)
    assert drive(engine, {key: list(prompt) for key, prompt in many.items()}) == expected


def test_sequences_beside_it_draw_what_they_draw_alone(llm_dir: Path) -> None:
    options = {
        "a": under(FREE, "json_schema"),
        "b": replace(GREEDY, max_tokens=20),
        "c": under(FREE, "regex"),
    }
    expected = {key: undisturbed(llm_dir, PROMPT, params) for key, params in options.items()}
    engine = make_engine(llm_dir)
    for key, params in options.items():
        admit(engine, key, PROMPT, params)
    assert drive(engine, {key: list(PROMPT) for key in options}) == expected


@pytest.mark.parametrize(("output", "sentence"), [("okx", "does not follow"), ("ok12!", "nothing is left")])
def test_an_output_that_cannot_be_continued_ends_its_sequence_with_a_sentence(
    llm_dir: Path, tokenizer: Tokenizer, output: str, sentence: str
) -> None:
    engine = make_engine(llm_dir)
    tokens = PROMPT + tokenizer.encode(output).ids
    engine.admit("a", tokens, len(PROMPT), under(FREE, "regex"))
    outputs: list[TokenOutput] = []
    assert drive(engine, {"a": tokens}, outputs=outputs) == {"a": []}
    assert isinstance(outputs[-1].fault, InvalidRequest)
    assert sentence in outputs[-1].fault.message
    assert engine.held() == {}


# --- compiling ---


def test_a_grammar_is_compiled_once(grammars: Grammars) -> None:
    first = grammars.compile(Grammar("regex", "once"))
    assert grammars.compile(Grammar("regex", "once")) is first
    assert grammars.compile(first) is first


def test_the_grammars_remembered_are_bounded(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "MAX_CACHED_GRAMMARS", 2)
    grammars = Grammars(str(llm_dir), VOCAB, (EOS,), FakeClock())
    compiled = {text: grammars.compile(Grammar("regex", text)) for text in "ab"}
    grammars.compile(Grammar("regex", "a"))
    grammars.compile(Grammar("regex", "c"))
    assert grammars.compile(Grammar("regex", "a")) is compiled["a"]
    assert grammars.compile(Grammar("regex", "b")) is not compiled["b"]


def test_sequences_of_one_grammar_do_not_share_their_state(grammars: Grammars, tokenizer: Tokenizer) -> None:
    compiled = grammars.compile(Grammar("regex", "ab"))
    states = [GrammarState(compiled), GrammarState(compiled)]
    assert not states[0].advance(id_of("a"))
    assert states[0].advance(id_of("b"))
    (mask,) = states[1].masks(())
    assert mask is not None
    assert unpacked(mask, VOCAB).nonzero()[0].tolist() == [id_of("a")]


def test_a_fork_is_held_to_its_own_grammar(llm_dir: Path) -> None:
    engine = make_engine(llm_dir)
    admit(engine, "a", PROMPT, replace(GREEDY, max_tokens=8))
    engine.step()
    params = under(FREE, "regex")
    engine.fork("a", "b", params)
    drawn = drive(engine, {"a": PROMPT + generate(make_engine(llm_dir), PROMPT)[:1], "b": list(PROMPT)})
    assert drawn["b"] == generate(make_engine(llm_dir), PROMPT, params)
