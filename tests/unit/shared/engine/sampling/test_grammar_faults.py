"""Grammars that cannot be used, or not to the end: a typed failure of their own sequence, nothing else."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLMatcher

from shared.engine import SamplingParams, TokenOutput
from shared.engine.sampling import grammar_source as grammar_module
from shared.engine.sampling.grammar import Grammars, GrammarState, Matchers
from shared.engine.sampling.grammar_faults import MAX_FAULT_CHARS, plain_fault
from shared.engine.sampling.grammar_source import MAX_GBNF_CHARS, MAX_ROW_ITEMS
from shared.engine.sampling.id_bits import unpacked
from shared.errors import InvalidRequest, Overloaded
from shared.sampling.parameters import MAX_GRAMMAR_BYTES, Grammar
from tests.support.engine import (
    GREEDY,
    Drafter,
    admit,
    drive,
    generate,
    make_engine,
    save_random_model,
    undisturbed,
)
from tests.support.grammar import EOS, VOCAB, id_of
from tests.support.smollm2 import smollm2_file

PROMPT = [40, 41, 42]
FREE = SamplingParams(max_tokens=60, seed=3)
PHRASES = Grammar("regex", "([a-z ]{3,9}[,.] ?){400}")
LITTLE_FUEL = (100, 1600)
MANY_STATES = "[a-d]*a[a-d]{20}[a-d]*e"  # where the a's stood is a state of the lexer


@pytest.fixture(scope="module")
def grammars(llm_dir: Path) -> Grammars:
    return Grammars(str(llm_dir), VOCAB, (EOS,))


def test_a_grammar_of_which_the_other_options_leave_nothing_ends_in_an_error(llm_dir: Path) -> None:
    engine = make_engine(llm_dir)
    admit(engine, "beside", PROMPT, replace(GREEDY, max_tokens=5))
    stuck = replace(FREE, grammar=Grammar("regex", "abc"), allowed_ids=(50, 51))
    engine.admit("stuck", PROMPT, len(PROMPT), stuck)
    outputs: list[TokenOutput] = []
    drawn = drive(engine, {"beside": list(PROMPT), "stuck": list(PROMPT)}, outputs=outputs)
    assert drawn == {
        "beside": undisturbed(llm_dir, PROMPT, replace(GREEDY, max_tokens=5)),
        "stuck": [],
    }
    assert [each.finish_reason for each in outputs if each.key == "stuck"] == ["error"]
    assert engine.held() == {}


def next_ids(state: GrammarState) -> list[int]:
    (mask,) = state.masks(())
    assert mask is not None
    return [int(token_id) for token_id in unpacked(mask, VOCAB).nonzero()[0]]


def walk(state: GrammarState, source: random.Random) -> bool:
    """Take 30 random allowed ids, or fewer that complete the output; False when there are none to take."""
    for _ in range(30):
        ids = next_ids(state)
        if not ids:
            return False
        if state.advance(source.choice(ids)):
            break
    return True


def test_a_lexer_filled_by_others_is_nobodys_failure(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "MAX_LEXER_STATES", 100)
    grammars, source = Grammars(str(llm_dir), VOCAB, (EOS,)), random.Random(1)
    compiled = grammars.compile(Grammar("regex", MANY_STATES))
    states = [GrammarState(compiled) for _ in range(12)]
    assert all(walk(state, source) for state in states)
    assert 0 < sum(state._is_own for state in states) < 12


@pytest.mark.parametrize("fuel", LITTLE_FUEL)
def test_a_long_output_is_taken_in_again_with_the_fuel_that_it_was_drawn_with(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch, fuel: int
) -> None:
    """A lexer may compute so much from mask to mask: all of an output is more, and so are sixteen ids."""
    monkeypatch.setattr(grammar_module, "MAX_STEP_LEXER_FUEL", fuel)
    source, drawn = random.Random(1), list[int]()
    state = GrammarState(Grammars(str(llm_dir), VOCAB, (EOS,)).compile(PHRASES))
    while len(drawn) < 300:
        drawn.append(source.choice(next_ids(state)))
        state.advance(drawn[-1])
    compiled = Grammars(str(llm_dir), VOCAB, (EOS,)).compile(PHRASES)  # whose lexer has seen nothing yet
    assert next_ids(GrammarState(compiled, drawn)) == next_ids(state)
    with pytest.raises(InvalidRequest, match="does not follow the grammar"):
        GrammarState(compiled, [*drawn, *([id_of(",")] * 3)]).open_matcher()
    assert next_ids(GrammarState(compiled, drawn)) == next_ids(state)  # nor is it full after that


def test_drafts_and_recovery_meet_a_full_lexer_unharmed(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(
        FREE, temperature=5.0, grammar=Grammar("regex", MANY_STATES), max_tokens=30, ignore_eos=True
    )
    prompts = [[40 + index] * 5 for index in range(12)]
    expected = [undisturbed(llm_dir, prompt, params) for prompt in prompts]
    monkeypatch.setattr(grammar_module, "MAX_LEXER_STATES", 100)
    owned: list[Matchers] = []
    own = Matchers.own

    def counted(matchers: Matchers) -> LLMatcher:
        owned.append(matchers)
        return own(matchers)

    monkeypatch.setattr(Matchers, "own", counted)
    engine = make_engine(llm_dir)
    for prompt, drawn in zip(prompts, expected, strict=True):
        answer = prompt + drawn
        assert generate(engine, prompt, params, right(answer)) == drawn
        engine.admit("b", answer[:-1], len(prompt), params)
        assert drive(engine, {"b": answer[:-1]})["b"] == drawn[-1:]
    assert owned


def right(answer: list[int]) -> Drafter:
    return lambda _key, tokens: answer[len(tokens) :][:6]


def test_a_grammar_that_becomes_too_complex_ends_in_an_error(llm_dir: Path) -> None:
    """One "{" begins each of a thousand objects at once."""
    objects = [{"type": "object", "properties": {f"p{index}": {"type": "integer"}}} for index in range(1000)]
    engine = make_engine(llm_dir)
    admit(engine, "a", PROMPT, replace(FREE, grammar=Grammar("json_schema", json.dumps({"anyOf": objects}))))
    outputs: list[TokenOutput] = []
    drive(engine, {"a": list(PROMPT)}, outputs=outputs)
    assert outputs[-1].finish_reason == "error"
    assert isinstance(outputs[-1].fault, InvalidRequest)
    assert "grammar (json_schema) is too complex" in outputs[-1].fault.message
    assert engine.held() == {}


@pytest.mark.parametrize("limit", ["MAX_STEP_LEXER_FUEL", "MAX_LEXER_STATES"])
def test_a_grammar_too_complex_for_its_first_mask_is_refused(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(grammar_module, limit, 1)
    with pytest.raises(InvalidRequest, match="too complex"):
        Grammars(str(llm_dir), VOCAB, (EOS,)).compile(Grammar("regex", "[a-z]{1,9}x|abc"))


@pytest.mark.parametrize(
    ("grammar", "fault"),
    [
        (Grammar("json_schema", "{"), r"json_schema.*not JSON"),
        (Grammar("json_schema", '{"type": "strin"}'), "strin"),
        (Grammar("json_schema", '{"not": {}}'), "not"),
        (Grammar("json_schema", '{"$ref": "http://elsewhere/schema"}'), "elsewhere"),
        (Grammar("json_schema", "[" * 30_000), "nested too deeply"),
        (Grammar("regex", "(ab"), "unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", "(" * 30_000), "regex"),
        (Grammar("ebnf", "start: missing"), "missing"),
        (Grammar("ebnf", "start: " + "(" * 30_000), "nested"),
        (Grammar("ebnf", "root ::= " + "(" * 30_000), "ebnf"),
        (Grammar("ebnf", "::="), "ebnf"),
        (Grammar("ebnf", 'root ::= "a"' + " " * MAX_GBNF_CHARS), "GBNF may have 16384 characters"),
        (Grammar("xml", "<a/>"), "kind 'xml'"),
        (Grammar("regex", ""), "takes a text"),
        (Grammar("json_object", "{}"), "takes no text"),
        (Grammar("regex", "a" * (MAX_GRAMMAR_BYTES + 1)), "65537 bytes"),
        (Grammar("regex", "é" * (MAX_GRAMMAR_BYTES // 2 + 1)), "65538 bytes"),
    ],
)
def test_a_bad_grammar_is_refused_before_anything_is_held(
    llm_dir: Path, grammar: Grammar, fault: str
) -> None:
    engine = make_engine(llm_dir)
    with pytest.raises(InvalidRequest, match=fault) as caught:
        admit(engine, "a", PROMPT, replace(FREE, grammar=grammar))
    assert len(caught.value.message) < 600
    assert engine.held() == {}


SENTENCES = {
    Grammar("ebnf", "start:"): "only the empty text fits it; say what the answer may be",
    Grammar("ebnf", 'start: ""'): "only the empty text fits it; say what the answer may be",
    Grammar("ebnf", "root ::= "): "only the empty text fits it; say what the answer may be",
    Grammar("regex", "a{0}"): "only the empty text fits it; say what the answer may be",
    Grammar("ebnf", "start: start"): "no text fits it: what it asks for leads to nothing, or only to itself",
    Grammar("ebnf", "root ::= root"): "no text fits it: what it asks for leads to nothing, or only to itself",
    Grammar(
        "ebnf", "start: a\na: a | a a"
    ): "no text fits it: what it asks for leads to nothing, or only to itself",
    Grammar("regex", r"[^\s\S]"): "no text fits it: what it asks for leads to nothing, or only to itself",
    Grammar(
        "json_schema", '{"$ref": "#"}'
    ): "no text fits it: what it asks for leads to nothing, or only to itself",
    Grammar("ebnf", 'start: "a'): (
        "line 1, column 10: no token of a grammar begins here: is a quote or a slash not closed?"
    ),
    Grammar("ebnf", 'start: b\nb: "a" c'): 'line 2, column 4: rule "c" is used and not defined',
    Grammar("ebnf", 'start: "a"\nstart: "b"'): 'line 2, column 8: rule "start" is defined twice',
    Grammar("ebnf", 'start: "a"{2'): "line 1, column 13: it ends early: '}' is missing",
    Grammar("ebnf", "start: /(/"): "line 1, column 8: a pattern cannot be read: unclosed group",
    Grammar("ebnf", "start: %json {"): "it is not JSON: EOF while parsing an object at line 2 column 0",
    Grammar("ebnf", 'start: %json {"type": "integer", "minimum": 5, "maximum": 1}'): (
        "line 1, column 8: its JSON schema: no value fits it: minimum (5) is greater than maximum (1)"
    ),
    Grammar("ebnf", 'x: "a"'): (
        "read as GBNF, since it has no line with Lark's 'start:', it is wrong or cut off: Expected ::= at "
        "line 1, 'x' ^ ': \"a\"'"
    ),
    Grammar("ebnf", "root ::= foo"): "rule 'foo' is used and not defined",
    Grammar("ebnf", 'foo ::= "a"'): "it has neither Lark's rule 'start' nor GBNF's rule 'root'",
    Grammar("regex", "("): "a pattern cannot be read: unclosed group",
    Grammar("regex", r"\b"): "a pattern has ^, $ or \\b inside, which are not supported; leave them out",
    Grammar("json_schema", "{"): "it is not JSON: EOF while parsing an object at line 1 column 1",
    Grammar("json_schema", "[]"): 'the schema must be a JSON object, such as {"type": "object"}',
    Grammar("json_schema", '{"type": "strin"}'): "type 'strin' is none of JSON Schema",
    Grammar("json_schema", '{"if": {}}'): 'it uses keywords that are not supported: "if"; leave them out',
    Grammar("json_schema", '{"$ref": "#/x"}'): "a $ref leads to '/x', which is not in the schema",
    Grammar("json_schema", '{"$ref": "http://else/where"}'): (
        "'http://else/where' is elsewhere, and nothing is fetched: put it into $defs, or leave it out"
    ),
    Grammar("json_schema", '{"enum": []}'): "no value fits it: anyOf is empty",
    Grammar("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}'): (
        "no value fits it: minimum (5) is greater than maximum (1)"
    ),
    Grammar("json_schema", '{"type": "string", "pattern": "("}'): "a pattern cannot be read: unclosed group",
    Grammar("json_schema", '{"type": "string", "format": "x"}'): (
        "format 'x' is not supported; use a pattern, or leave it out"
    ),
    Grammar("json_schema", '{"multipleOf": 0}'): "multipleOf must be a number above 0",
    Grammar("json_schema", '{"minItems": -1}'): "minItems must be a whole number from 0, not -1",
}


@pytest.mark.parametrize("grammar", SENTENCES, ids=lambda grammar: grammar.text)
def test_a_bad_grammar_is_refused_in_a_sentence_for_its_author(grammars: Grammars, grammar: Grammar) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammars.compile(grammar)
    assert refused.value.message == f"the grammar ({grammar.kind}) cannot be used: {SENTENCES[grammar]}"


def test_a_fault_that_nobody_has_words_for_is_told_as_it_is_within_bounds() -> None:
    said = plain_fault("at 3(4): something new\n<non-verbose/> 1 | start: a ^", has_lines=True)
    assert said == "line 3, column 4: something new"
    assert plain_fault("x" * 1000, has_lines=False) == "x" * MAX_FAULT_CHARS


def chain(first: str, link: str, last: str, separator: str = "\n") -> str:
    """As long a chain of definitions as a grammar may hold."""
    size = len(first) + len(last) + 40
    links: list[str] = []
    while size + len(link.format(len(links), len(links) + 1)) + len(separator) < MAX_GRAMMAR_BYTES:
        links.append(link.format(len(links), len(links) + 1))
        size += len(links[-1]) + len(separator)
    return first + separator.join([*links, last.format(len(links))])


CHAINS = {
    "lark": Grammar("ebnf", chain("start: r0\n", "r{}:r{}", 'r{}: "a"')),
    "lark with literals": Grammar("ebnf", chain("start: r0\n", 'r{}:"b" r{}', 'r{}: "a"')),
    "schema": Grammar(
        "json_schema",
        chain('{"$ref":"#/$defs/0","$defs":{', '"{}":{{"$ref":"#/$defs/{}"}}', '"{}":true', ",") + "}}",
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_longest_chain_of_rules_does_not_end_the_process(grammars: Grammars, name: str) -> None:
    assert MAX_GRAMMAR_BYTES - 100 < len(CHAINS[name].text) <= MAX_GRAMMAR_BYTES
    (mask,) = GrammarState(grammars.compile(CHAINS[name])).masks(())
    assert mask is not None
    assert mask.any()


def test_a_model_without_tokenizer_takes_no_grammar(tmp_path: Path) -> None:
    engine = make_engine(save_random_model(tmp_path))
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json"):
        admit(engine, "a", PROMPT, replace(FREE, grammar=Grammar("regex", "a")))


def test_without_memory_for_the_compiler_it_is_overload(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "COMPILER_STACK_BYTES", 1 << 46)  # more than there are addresses
    with pytest.raises(Overloaded, match="no memory"):
        Grammars(str(llm_dir), VOCAB, (EOS,)).compile(Grammar("regex", "a"))
    assert threading.stack_size() == 0


def test_a_tokenizer_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="tokenizer cannot be used"):
        Grammars(str(tmp_path), VOCAB, (EOS,)).compile(Grammar("regex", "a"))


def test_a_tokenizer_with_more_ids_than_the_model_is_named(llm_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match="tokenizer cannot be used"):
        Grammars(str(llm_dir), 50, (EOS,)).compile(Grammar("regex", "a"))


ROW_OF_ANY = 3
"""Items at a place beside two of each alternative."""


def alternatives(count: int) -> Grammar:
    """One letter, over and over, each of which may be read in so many ways."""
    rules = [f"r{number}" for number in range(count)]
    lines = ["start: x+", "x: " + " | ".join(rules), *(f'{rule}: "a"' for rule in rules)]
    return Grammar("ebnf", "\n".join(lines))


@pytest.mark.parametrize(("more", "fails"), [(0, False), (1, True)])
def test_so_many_readings_of_a_place_are_followed_and_not_one_more(
    grammars: Grammars, more: int, fails: bool
) -> None:
    state = GrammarState(grammars.compile(alternatives((MAX_ROW_ITEMS - ROW_OF_ANY) // 2 + more)))
    state.masks(())
    state.advance(id_of("a"))
    if fails:
        with pytest.raises(InvalidRequest, match="too complex"):
            state.masks(())
    else:
        assert id_of("a") in next_ids(state)


def test_terminals_that_begin_alike_are_too_complex_before_a_step_stands_for_them() -> None:
    """With five times the fuel their masks took 0.3 s each, for which every other sequence stood."""
    terminals = " | ".join(f"/[a-z]*{chr(97 + n // 26)}{chr(97 + n % 26)}[a-z]*/" for n in range(400))
    grammars = Grammars(str(smollm2_file()), 49152, ())
    with pytest.raises(InvalidRequest, match="too complex"):
        grammars.compile(Grammar("ebnf", f"start: t+\nt: {terminals}"))
