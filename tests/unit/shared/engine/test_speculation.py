from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.engine import SamplingParams, TokenOutput
from tests.support.engine import (
    FANCY,
    GREEDY,
    Drafter,
    admit,
    drive,
    generate,
    make_engine,
    prompts,
    undisturbed,
)

VOCAB = 97
PARAMS = {
    "greedy": GREEDY,
    "temperature 1": SamplingParams(max_tokens=40, ignore_eos=True, seed=4),
    "everything": FANCY,
    "everything, greedy": replace(FANCY, temperature=0.0),
    "with logprobs": replace(FANCY, logprobs=3),
}


def good(answer: list[int], length: int) -> Drafter:
    """Drafts of `length` right tokens."""
    return lambda _key, tokens: answer[len(tokens) : len(tokens) + length]


def wrong_at(answer: list[int], place: int) -> Drafter:
    """Six drafts of which the one at `place` is wrong."""

    def draft(_key: str, tokens: list[int]) -> list[int]:
        ids = answer[len(tokens) : len(tokens) + 6]
        return [(token + (index == place)) % VOCAB for index, token in enumerate(ids)]

    return draft


def random_drafter(seed: int, vocab: int = VOCAB) -> Drafter:
    generator = torch.Generator().manual_seed(seed)

    def draft(_key: str, _tokens: list[int]) -> list[int]:
        length = int(torch.randint(0, 9, (1,), generator=generator))
        return torch.randint(0, vocab, (length,), generator=generator).tolist()

    return draft


@pytest.mark.thorough(but="everything, greedy | temperature 1 | with logprobs")
@pytest.mark.parametrize("name", PARAMS)
def test_drafts_never_change_what_is_drawn(model_dir: Path, name: str) -> None:
    params = PARAMS[name]
    for prompt in prompts(3, VOCAB):
        plain = undisturbed(model_dir, prompt, params)
        answer = prompt + plain
        drafters = [good(answer, 1), good(answer, 5), good(answer, 30), random_drafter(1)]
        drafters += [wrong_at(answer, place) for place in (0, 2, 5)]
        for drafter in drafters:
            assert generate(make_engine(model_dir), prompt, params, drafter) == plain


@pytest.mark.parametrize("name", PARAMS)
def test_logprobs_and_cache_names_are_the_same_with_drafts(model_dir: Path, name: str) -> None:
    params, prompt = replace(PARAMS[name], logprobs=2), prompts(1, VOCAB)[0]
    kept = []
    for draft in (False, True):
        engine = make_engine(model_dir)
        outputs: list[TokenOutput] = []
        admit(engine, "a", prompt, params)
        answer = prompt + undisturbed(model_dir, prompt, params)
        drive(engine, {"a": list(prompt)}, good(answer, 4) if draft else None, outputs)
        logprobs = [each for output in outputs for each in output.logprobs]
        kept.append(
            (
                [(each.token_id, round(each.logprob, 3)) for each in logprobs],
                set(engine.blocks.cached_hashes()),
            )
        )
    assert kept[0] == kept[1]


def test_drafts_in_a_mixed_batch_change_nobodys_tokens(model_dir: Path) -> None:
    many, params = prompts(6, VOCAB), list(PARAMS.values())
    engine = make_engine(model_dir, max_batch_tokens=24, max_sequences=8)
    plain = {str(i): undisturbed(model_dir, p, params[i % 5]) for i, p in enumerate(many)}
    answers = {str(i): p + plain[str(i)] for i, p in enumerate(many)}
    for index, prompt in enumerate(many):
        admit(engine, str(index), prompt, params[index % 5])

    def draft(key: str, tokens: list[int]) -> list[int]:
        return answers[key][len(tokens) : len(tokens) + int(key)]

    assert drive(engine, {str(i): list(p) for i, p in enumerate(many)}, draft) == plain


def test_right_drafts_are_accepted_and_counted(model_dir: Path) -> None:
    prompt = [3, 4, 5]
    answer = prompt + undisturbed(model_dir, prompt)
    engine = make_engine(model_dir)
    admit(engine, "a", prompt)
    engine.step()
    assert engine.propose("a", 4, answer[4:9])
    (output,) = engine.step().outputs
    assert (output.position, output.token_ids) == (4, tuple(answer[4:10]))
    assert (output.accepted_drafts, output.proposed_drafts) == (5, 5)


def test_drafts_after_a_wrong_one_are_not_accepted(model_dir: Path) -> None:
    prompt = [3, 4, 5]
    answer = prompt + undisturbed(model_dir, prompt)
    engine = make_engine(model_dir)
    admit(engine, "a", prompt)
    engine.step()
    engine.propose("a", 4, [answer[4], (answer[5] + 1) % VOCAB, answer[6]])
    (output,) = engine.step().outputs
    assert output.token_ids == tuple(answer[4:6])
    assert (output.accepted_drafts, output.proposed_drafts) == (1, 3)


def test_a_stop_id_among_the_drafts_ends_the_sequence_there(model_dir: Path) -> None:
    prompt = [3, 4, 5]
    plain = undisturbed(model_dir, prompt)
    params = replace(GREEDY, stop_token_ids=(plain[6],))
    engine = make_engine(model_dir)
    assert generate(engine, prompt, params, good(prompt + plain, 20)) == plain[: plain.index(plain[6]) + 1]
    assert engine.held() == {}


def test_drafts_never_run_past_max_tokens(model_dir: Path) -> None:
    params = replace(GREEDY, max_tokens=5)
    plain = undisturbed(model_dir, [3], params)
    outputs: list[TokenOutput] = []
    engine = make_engine(model_dir)
    admit(engine, "a", [3], params)
    answer = [3, *undisturbed(model_dir, [3])]
    assert drive(engine, {"a": [3]}, good(answer, 30), outputs)["a"] == plain
    assert outputs[-1].proposed_drafts == 3  # one token of five was drawn before, one is the step's own


def test_stale_early_and_foreign_drafts_are_turned_away(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    assert not engine.propose("nobody", 0, [1])
    admit(engine, "a", [3, 4])
    assert not engine.propose("a", 2, [1])  # still prefilling
    engine.step()
    assert not engine.propose("a", 2, [1])
    assert not engine.propose("a", 4, [1])
    assert not engine.propose("a", 3, [VOCAB])
    assert not engine.propose("a", 3, [-1])
    assert engine.propose("a", 3, [1])


def test_drafts_are_used_once_and_not_kept_for_a_later_step(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    admit(engine, "a", [3, 4])
    engine.step()
    engine.propose("a", 3, [1])
    assert engine.step().outputs[0].proposed_drafts == 1
    assert engine.step().outputs[0].proposed_drafts == 0


def test_drafts_take_no_blocks_from_running_sequences(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=3)
    plain = {key: undisturbed(model_dir, [number] * 15) for number, key in enumerate("ab")}
    known = {key: [number] * 15 for number, key in enumerate("ab")}
    short = replace(GREEDY, max_tokens=9)
    for key, prompt in known.items():
        admit(engine, key, prompt, short)
    drawn = drive(engine, known, lambda key, tokens: plain[key][len(tokens) - 15 :][:8])
    assert drawn == {key: tokens[:9] for key, tokens in plain.items()}


def test_waiting_prompts_get_rows_beside_greedy_drafters(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=12, max_sequences=4)
    admit(engine, "a", [3, 4])
    engine.step()
    admit(engine, "b", [5] * 40)
    engine.propose("a", 3, [1] * 60)
    result = engine.step()
    assert result.outputs[0].proposed_drafts == 5
    assert result.num_prefill_tokens == 6
    assert result.batch_tokens == 12
