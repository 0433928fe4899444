"""Drafts of a draft head change how many steps an engine takes, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import Engine, SamplingParams, TokenOutput
from shared.engine.scheduling.head_cost import HeadCost
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.adapters import save_adapter
from tests.support.draft_heads import SMALL, save_agreeing_pair, save_head
from tests.support.engine import (
    BACKENDS,
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

PROMPT = [3, 4, 5, 6]
PARAMS = {
    "greedy": GREEDY,
    "temperature": SamplingParams(max_tokens=40, ignore_eos=True, seed=4, temperature=0.7),
    "everything": FANCY,
    "log-probabilities": replace(GREEDY, logprobs=2),
    "one token": replace(GREEDY, max_tokens=1),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a head that agrees with it."""
    return save_agreeing_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a head that knows nothing of it."""
    folder = tmp_path_factory.mktemp("strangers")
    return save_random_model(folder / "target", max_position_embeddings=256), save_head(folder / "head")


def with_head(pair: tuple[Path, Path], **fields: object) -> Engine:
    """An engine that takes a row and its head for cheap, whatever this machine says."""
    engine = make_engine(pair[0], draft_head=str(pair[1]), **fields)
    take_rows_for_cheap(engine)
    heads = engine._scheduler.heads
    assert heads is not None
    heads._now_ns = lambda: 0
    heads._cost = HeadCost()
    return engine


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_that_agrees_never_changes_what_is_drawn(
    pair: tuple[Path, Path], backend: str, name: str
) -> None:
    fields = {"backend": backend, "deterministic": backend == "torch"}
    outputs = outputs_of(with_head(pair, **fields), PROMPT, PARAMS[name])
    plain = outputs_of(make_engine(pair[0], **fields), PROMPT, PARAMS[name])
    assert drawn_ids(outputs) == drawn_ids(plain)
    assert [each for output in outputs for each in output.logprobs] == [
        each for output in plain for each in output.logprobs
    ]
    if name in ("greedy", "temperature"):
        assert 3 * len(outputs) < len(plain)
        assert all(output.from_head == (output.proposed_drafts > 0) for output in outputs)
        assert sum(output.accepted_drafts for output in outputs) == len(plain) - len(outputs)


@pytest.mark.parametrize("name", PARAMS)
def test_a_head_that_knows_nothing_never_changes_what_is_drawn(
    strangers: tuple[Path, Path], name: str
) -> None:
    outputs = outputs_of(with_head(strangers), PROMPT, PARAMS[name])
    assert drawn_ids(outputs) == generate(make_engine(strangers[0]), PROMPT, PARAMS[name])
    assert name == "one token" or any(output.proposed_drafts for output in outputs)


def test_a_sequence_that_is_drafted_for_is_not_asked_for(pair: tuple[Path, Path]) -> None:
    engine = with_head(pair)
    admit(engine, "a", PROMPT)
    engine.step()
    assert engine.propose("a", len(PROMPT) + 1, [1, 1])
    (output,) = engine.step().outputs
    assert (output.proposed_drafts, output.from_head) == (1, False)  # one is tried


def test_text_that_promises_more_than_a_head_is_drafted_from(strangers: tuple[Path, Path]) -> None:
    engine = with_head(strangers, ngram_tokens=8)
    prompt = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12] * 3
    plain = undisturbed(strangers[0], prompt, GREEDY)
    outputs = outputs_of(engine, [*prompt, *plain, *prompt, *plain[:10]], GREEDY)
    assert any(output.looked_up for output in outputs)
    assert any(output.from_head for output in outputs)
    assert not any(output.looked_up and output.from_head for output in outputs)


def test_a_head_ends_and_begins_when_the_engine_is_told(pair: tuple[Path, Path]) -> None:
    engine = with_head(pair)
    engine.limit_head(0)
    admit(engine, "a", PROMPT)
    assert not any(output.from_head for _ in range(5) for output in engine.step().outputs)
    engine.limit_head(2)
    lengths = [output.proposed_drafts for _ in range(4) for output in engine.step().outputs]
    assert lengths == [1, 2, 2, 2]  # it is tried before it is trusted


def test_a_grammar_rules_over_what_a_head_guesses(tmp_path: Path) -> None:
    target = save_model_with_tokenizer(tmp_path / "target")
    size = make_engine(target).model_config.vocab_size
    head = save_head(tmp_path / "head", replace(SMALL, target_vocab_size=size, draft_vocab_size=size // 2))
    params = SamplingParams(temperature=0.0, max_tokens=60, grammar=Grammar("regex", "(abcd){4,9}x{3}"))
    outputs = outputs_of(with_head((target, head)), [1, 2, 3], params)
    assert drawn_ids(outputs) == generate(make_engine(target), [1, 2, 3], params)


def test_a_head_drafts_for_an_adapter_and_changes_nothing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    found: list[list[TokenOutput]] = []
    for engine in (with_head(pair), make_engine(pair[0])):
        engine.load_adapter("law", str(save_adapter(tmp_path, engine.model_config)))
        engine.admit("a", PROMPT, len(PROMPT), GREEDY, adapter="law")
        outputs: list[TokenOutput] = []
        drive(engine, {"a": list(PROMPT)}, None, outputs)
        found.append(outputs)
    assert drawn_ids(found[0]) == drawn_ids(found[1])
    assert any(output.from_head for output in found[0])


def test_preemption_and_blocks_running_out_change_nothing(pair: tuple[Path, Path]) -> None:
    short = replace(GREEDY, max_tokens=30)
    prompts = {key: [*PROMPT * 3, number] for number, key in enumerate("abc")}
    plain = {key: undisturbed(pair[0], prompt, short) for key, prompt in prompts.items()}
    engine = with_head(pair, kv_blocks=8)
    for key, prompt in prompts.items():
        admit(engine, key, prompt, short)
    outputs: list[TokenOutput] = []
    assert drive(engine, {key: list(prompt) for key, prompt in prompts.items()}, None, outputs) == plain
    assert any(output.from_head for output in outputs)
    heads = engine._scheduler.heads
    assert heads is not None
    assert heads._rows == {}


def test_a_fork_and_a_revised_sequence_begin_without_hidden_states(pair: tuple[Path, Path]) -> None:
    engine, plain = with_head(pair), make_engine(pair[0])
    for each in (engine, plain):
        each.admit("a", PROMPT, 4, GREEDY, stop_after=6)
        each.admit("b", PROMPT, 4, GREEDY)
        while any(sequence.prefilling for sequence in each._scheduler.sequences.values()):
            each.step()
        each.fork("b", "c", replace(GREEDY, seed=9, temperature=1.0))
        while each.has_work:
            each.step()
        assert each.revise("a", 6, [20, 21, 22], stop_after=12)
    heads = engine._scheduler.heads
    assert heads is not None
    assert heads._rows == {}
    drawn = []
    for each in (engine, plain):
        while each.has_work:
            each.step()
            each.check()
        drawn.append(each.tokens_since("a", 0))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("fields", [{"device": "cuda"}, {"tensor_parallel": 2, "backend": "torch"}])
def test_a_head_is_refused_where_no_hidden_states_are_read(
    pair: tuple[Path, Path], fields: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest, match="leave out draft_head with device cuda and"):
        make_engine(pair[0], draft_head=str(pair[1]), **fields)


def test_hidden_states_take_what_the_sequences_that_may_be_held_need(pair: tuple[Path, Path]) -> None:
    heads = with_head(pair, max_sequences=4, guest_sequences=2)._scheduler.heads
    assert heads is not None
    assert heads.nbytes == 6 * 4 * 3 * 48
