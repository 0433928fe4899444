"""Drafts from a sequence's own text change how many steps it takes and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import Engine, SamplingParams, TokenOutput
from shared.engine.engine import NGRAM_TOKENS
from shared.engine.engine_config import MAX_DRAFT_TOKENS
from shared.engine.native.library import library
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.engine import (
    FANCY,
    GREEDY,
    admit,
    drive,
    generate,
    make_engine,
    save_random_model,
    undisturbed,
)
from tests.support.engine_runs import drawn_ids, outputs_of
from tests.support.grammar import save_model_with_tokenizer
from tests.support.known_cost import take_rows_for_cheap

REPEATED = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12] * 3
PARAMS = {
    "greedy": GREEDY,
    "temperature": SamplingParams(max_tokens=40, ignore_eos=True, seed=4, temperature=0.3),
    "everything": FANCY,
    "log-probabilities": replace(GREEDY, logprobs=2),
    "one token": replace(GREEDY, max_tokens=1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)


def looking(folder: Path, **fields: int) -> Engine:
    """An engine that takes a row for cheap, whatever this machine says."""
    engine = make_engine(folder, ngram_tokens=8, **fields)
    take_rows_for_cheap(engine)
    return engine


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("prompt", [REPEATED, [3, 4, 5]], ids=["repeated", "short"])
def test_lookups_never_change_what_is_drawn(folder: Path, name: str, prompt: list[int]) -> None:
    assert drawn_ids(outputs_of(looking(folder), prompt, PARAMS[name])) == generate(
        make_engine(folder), prompt, PARAMS[name]
    )


def test_a_text_that_repeats_itself_takes_fewer_steps_and_says_where_its_drafts_came_from(
    folder: Path,
) -> None:
    params = replace(GREEDY, max_tokens=150)
    plain = undisturbed(folder, REPEATED, params)
    again = [*REPEATED, *plain[:100]]
    outputs = outputs_of(looking(folder), again, params)
    looked_up = [output for output in outputs if output.looked_up]
    assert sum(output.accepted_drafts for output in looked_up) == len(drawn_ids(outputs)) - len(outputs) > 0
    assert all(output.proposed_drafts > 0 for output in looked_up)
    assert not any(output.proposed_drafts for output in outputs if not output.looked_up)


def test_unless_told_otherwise_it_is_looked_up_where_rows_do_not_depend_on_each_other(folder: Path) -> None:
    def longest(backend: str, *, deterministic: bool) -> int:
        engine = make_engine(folder, ngram_tokens=-1, backend=backend, deterministic=deterministic)
        return engine.config.ngram_tokens

    assert longest("torch", deterministic=False) == 0
    assert longest("torch", deterministic=True) == NGRAM_TOKENS
    assert library() is None or longest("native", deterministic=False) == NGRAM_TOKENS


def test_a_number_of_tokens_that_cannot_be_is_refused(folder: Path) -> None:
    for number in (-2, MAX_DRAFT_TOKENS + 1):
        with pytest.raises(InvalidRequest, match="ngram_tokens must be from -1 to 64"):
            make_engine(folder, ngram_tokens=number)
    assert make_engine(folder, ngram_tokens=MAX_DRAFT_TOKENS).config.ngram_tokens == MAX_DRAFT_TOKENS


def test_a_sequence_that_is_drafted_for_is_not_looked_up(folder: Path) -> None:
    engine = looking(folder)
    admit(engine, "a", REPEATED)
    engine.step()
    assert engine.propose("a", len(REPEATED) + 1, [1, 1])
    (output,) = engine.step().outputs
    assert (output.proposed_drafts, output.looked_up) == (1, False)  # one is tried


def test_lookups_end_and_begin_when_the_engine_is_told(folder: Path) -> None:
    engine = looking(folder)
    engine.limit_ngrams(0)
    admit(engine, "a", REPEATED, replace(GREEDY, logit_bias=tuple((number, 50.0) for number in (3, 4))))
    assert not any(output.looked_up for _ in range(20) for output in engine.step().outputs)
    engine.limit_ngrams(2)
    outputs = [output for _ in range(5) for output in engine.step().outputs]
    assert max(output.proposed_drafts for output in outputs) == 2


def test_a_grammar_rules_over_what_is_looked_up(tmp_path: Path) -> None:
    folder = save_model_with_tokenizer(tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=60, grammar=Grammar("regex", "(abcd){4,9}x{3}"))
    outputs = outputs_of(looking(folder), [1, 2, 3], params)
    assert drawn_ids(outputs) == generate(make_engine(folder), [1, 2, 3], params)
    assert any(output.accepted_drafts for output in outputs)


def test_a_revised_sequence_is_looked_up_in_its_new_text(folder: Path) -> None:
    engine, plain = looking(folder), make_engine(folder)
    for each in (engine, plain):
        each.admit("a", REPEATED, 10, GREEDY, stop_after=6)
    while engine.has_work:
        engine.step()
    while plain.has_work:
        plain.step()
    new = [20, 21, 22, 23] * 6
    lookups = engine._scheduler.lookups
    assert "a" in lookups._rows
    assert engine.revise("a", 12, new, stop_after=12)
    assert "a" not in lookups._rows
    assert plain.revise("a", 12, new, stop_after=12)
    drawn = []
    for each in (engine, plain):
        while each.has_work:
            each.step()
            each.check()
        drawn.append(each.tokens_since("a", 0))
    assert drawn[0] == drawn[1]


def test_preemption_and_blocks_running_out_change_nothing(folder: Path) -> None:
    short = replace(GREEDY, max_tokens=30)
    prompts = {key: [*REPEATED[: 10 + number], number] for number, key in enumerate("abc")}
    plain = {key: undisturbed(folder, prompt, short) for key, prompt in prompts.items()}
    engine = looking(folder, kv_blocks=8)
    for key, prompt in prompts.items():
        admit(engine, key, prompt, short)
    assert drive(engine, {key: list(prompt) for key, prompt in prompts.items()}) == plain
    assert engine._scheduler.lookups._rows == {}


def asked_twice(folder: Path, **fields: int) -> tuple[list[TokenOutput], list[TokenOutput]]:
    """The outputs of the same prompt, asked by one tenant and then again."""
    engine = looking(folder, **fields)
    found: list[list[TokenOutput]] = []
    for key in ("a", "b"):
        prompt = list(range(3, 40))
        engine.admit(key, prompt, len(prompt), GREEDY, answer_scope="acme")
        outputs: list[TokenOutput] = []
        drive(engine, {key: prompt}, None, outputs)
        found.append(outputs)
    return found[0], found[1]


def test_what_a_tenant_was_answered_before_takes_fewer_steps_and_is_the_same(folder: Path) -> None:
    first, again = asked_twice(folder, ngram_scopes=1)
    assert drawn_ids(again) == drawn_ids(first)
    assert len(again) < len(first)
    assert any(output.accepted_drafts for output in again)


def test_nothing_is_kept_of_answers_without_tenants_to_keep_them_for(folder: Path) -> None:
    first, again = asked_twice(folder)
    assert len(again) == len(first)
