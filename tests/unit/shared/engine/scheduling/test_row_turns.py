"""More sequences than a step has rows: tenants have equal parts of them, nobody rests for long, and every
token is what it would have been."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from shared.engine import Engine, SamplingParams
from shared.engine.scheduling.row_turns import MAX_RESTS, RowTurns
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from shared.errors import InvalidRequest, Overloaded
from shared.fairness.share import TenantShare
from tests.support.engine import FANCY, GREEDY, drive, make_engine, prompts, undisturbed

VOCAB = 97
HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def decoding(count: int, share: TenantShare) -> list[LiveSequence]:
    chain = HashChain([], None, None)  # type: ignore[arg-type]  # nobody names blocks here
    return [
        LiveSequence(
            f"{share.tenant}-{number}",
            number,
            [1, 2],
            1,
            GREEDY,
            SequenceStatus.ACTIVE,
            chain,
            share=share,
            prefilling=False,
        )
        for number in range(count)
    ]


def rests_of(turns: RowTurns, sequences: list[LiveSequence], steps: int) -> list[frozenset[str]]:
    return [turns.resting(sequences) for _ in range(steps)]


def longest_rest(rests: list[frozenset[str]], key: str) -> int:
    longest = now = 0
    for resting in rests:
        now = now + 1 if key in resting else 0
        longest = max(longest, now)
    return longest


def test_while_there_is_a_row_for_each_nobody_rests() -> None:
    assert rests_of(RowTurns(4), decoding(4, HEAVY), 3) == [frozenset()] * 3


def test_the_tenant_with_less_than_its_part_never_rests() -> None:
    heavy, light = decoding(6, HEAVY), decoding(2, LIGHT)
    for rests in rests_of(RowTurns(4), [*heavy, *light], 40):
        assert len(rests) == 4
        assert rests <= {sequence.key for sequence in heavy}


def test_a_tenants_own_sequences_rest_in_turn_and_alike() -> None:
    heavy = decoding(6, HEAVY)
    rests = rests_of(RowTurns(4), heavy, 60)
    counts = Counter(key for resting in rests for key in resting)
    assert set(counts.values()) <= {19, 20, 21}
    assert max(longest_rest(rests, sequence.key) for sequence in heavy) == 1


def test_one_that_comes_later_is_no_better_and_no_worse_off() -> None:
    turns, heavy = RowTurns(4), decoding(7, HEAVY)
    rests_of(turns, heavy[:6], 50)
    counts = Counter(key for resting in rests_of(turns, heavy, 70) for key in resting)
    assert max(counts.values()) - min(counts.values()) <= 4


def test_what_a_tenant_does_not_use_of_its_part_is_the_others() -> None:
    sequences = [*decoding(5, HEAVY), *decoding(1, LIGHT)]
    for rests in rests_of(RowTurns(4), sequences, 20):
        assert len(rests & {f"heavy-{number}" for number in range(5)}) == 2


def test_parts_are_by_weight() -> None:
    heavy = TenantShare("heavy", weight=3)
    sequences = [*decoding(6, heavy), *decoding(6, LIGHT)]
    rested = Counter(key.split("-")[0] for rests in rests_of(RowTurns(8), sequences, 30) for key in rests)
    assert rested == {"light": 30 * 4}
    counts = Counter(key for resting in rests_of(RowTurns(8), sequences, 30) for key in resting)
    assert max(counts.values()) - min(counts.values()) <= 2


@pytest.mark.parametrize("weight", [1, 3, 1000])
def test_nobody_rests_longer_than_the_bound_whatever_others_weigh(weight: int) -> None:
    """Half of the sequences rest in each step, which is as many as ever do."""
    heavy = decoding(7, TenantShare("heavy", weight=weight))
    sequences = [*heavy, *decoding(1, LIGHT)]
    rests = rests_of(RowTurns(4), sequences, 200)
    longest = {sequence.key: longest_rest(rests, sequence.key) for sequence in sequences}
    assert max(longest.values()) <= MAX_RESTS
    if weight == 1000:  # by its weight alone it would have a row in 250 steps
        assert longest["light-0"] == MAX_RESTS


def admit_all(engine: Engine, many: dict[str, list[int]], params: SamplingParams) -> None:
    for key, prompt in many.items():
        engine.admit(key, prompt, len(prompt), params, share=TenantShare(key[0]))


@pytest.mark.parametrize("params", [GREEDY, FANCY, SamplingParams(max_tokens=40, ignore_eos=True, seed=2)])
@pytest.mark.parametrize("ngram_tokens", [0, 4])
def test_sequences_that_rest_draw_what_undisturbed_ones_draw(
    model_dir: Path, params: SamplingParams, ngram_tokens: int
) -> None:
    many = {f"{'hhhhl'[i]}{i}": prompt for i, prompt in enumerate(prompts(5, VOCAB, longest=20))}
    expected = {key: undisturbed(model_dir, prompt, params) for key, prompt in many.items()}
    engine = make_engine(model_dir, max_sequences=3, guest_sequences=2, ngram_tokens=ngram_tokens)
    admit_all(engine, many, params)
    known = {key: list(prompt) for key, prompt in many.items()}
    assert drive(engine, known) == expected
    assert engine.held() == {}


def test_no_step_decodes_more_than_it_has_rows_and_the_light_one_is_in_every_one(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_sequences=2, guest_sequences=2)
    admit_all(engine, {key: [3, 4] for key in ("h0", "h1", "h2", "l0")}, GREEDY)
    engine.step()  # computes the prompts
    for _ in range(20):
        result = engine.step()
        assert result.num_decode == 2
        assert "l0" in {output.key for output in result.outputs}
        engine.check()


def test_the_engine_holds_guests_and_not_one_more(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_sequences=2, guest_sequences=1)
    admit_all(engine, {key: [3, 4] for key in "abc"}, GREEDY)
    with pytest.raises(Overloaded, match="all 3 sequences"):
        admit_all(engine, {"d": [3, 4]}, GREEDY)


def test_more_guests_than_can_rest_are_refused_when_the_engine_is_made(model_dir: Path) -> None:
    make_engine(model_dir, max_sequences=2, guest_sequences=2)
    with pytest.raises(InvalidRequest, match="guest_sequences 3 is above max_sequences 2"):
        make_engine(model_dir, max_sequences=2, guest_sequences=3)
