"""Ticks of drafting with sequences that are kept in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from services.speculator.drafting import Drafter, Wish
from shared.engine import Engine
from shared.engine.sampling import grammar_row
from shared.sampling.parameters import Grammar, SamplingParams
from tests.support.engine import FANCY, GREEDY, make_engine
from tests.support.held_masks import held_masks
from tests.support.readmitting_draft import readmitting_draft

PROMPT_LEN = 40


@pytest.fixture
def engine(model_dir: Path) -> Engine:
    return make_engine(model_dir)


def prompt(number: int) -> list[int]:
    return [(3 * index + 5 * number) % 60 + 2 for index in range(PROMPT_LEN)]


def fresh(key: str, tokens: Sequence[int], params: SamplingParams = GREEDY, count: int = 4) -> Wish:
    return Wish(key, 0, tuple(tokens), PROMPT_LEN, params, count)


def going_on(before: Wish, more: Sequence[int]) -> Wish:
    """The same session with more tokens."""
    return replace(before, base=before.base + len(before.token_ids), token_ids=tuple(more))


def computed(engine: Engine) -> list[int]:
    """Prompt tokens of each step that follows."""
    noted: list[int] = []
    step = engine.step

    def noting() -> object:
        result = step()
        noted.append(result.num_prefill_tokens)
        return result

    engine.step = noting  # type: ignore[assignment, method-assign]
    return noted


@pytest.mark.parametrize("seed", range(3))
def test_kept_sequences_guess_what_admitting_them_anew_would(model_dir: Path, seed: int) -> None:
    kept, anew = make_engine(model_dir), make_engine(model_dir)
    drafter, rng = Drafter(), random.Random(seed)
    params = [GREEDY, FANCY, replace(FANCY, min_tokens=0, seed=3), GREEDY]
    params = [replace(one, max_tokens=200) for one in params]
    tokens = {f"s{number}": prompt(number // 2) for number in range(4)}  # two and two begin alike
    told = dict.fromkeys(tokens, 0)
    for _ in range(40):
        chosen = [key for key in tokens if rng.random() < 0.8]
        wishes, whole = [], []
        for key in chosen:
            count, how = rng.randint(1, 6), params[int(key[1:])]
            base = told[key]
            wishes.append(Wish(key, base, tuple(tokens[key][base:]), PROMPT_LEN, how, count))
            whole.append(Wish(key, 0, tuple(tokens[key]), PROMPT_LEN, how, count))
            told[key] = len(tokens[key])
        drafted = drafter.draft(kept, wishes)
        kept.check()
        assert drafted.token_ids == readmitting_draft(anew, whole)
        for key, guesses in drafted.token_ids.items():
            accepted = guesses[: rng.randint(0, len(guesses))]
            tokens[key] += accepted
            if rng.random() < 0.5 or not accepted:
                tokens[key].append(rng.randint(10, 40))
    assert max(map(len, tokens.values())) > PROMPT_LEN + 3 * 16


def test_a_tick_computes_new_tokens_alone(engine: Engine) -> None:
    drafter = Drafter()
    wish = fresh("a", prompt(0))
    guesses = drafter.draft(engine, [wish]).token_ids["a"]
    noted = computed(engine)
    drafter.draft(engine, [going_on(wish, (*guesses[:2], (guesses[2] + 1) % 60))])
    assert noted[0] == 1  # two were guessed right; the third is another


def test_a_sequence_that_was_released_is_drafted_for_anew(engine: Engine) -> None:
    drafter = Drafter()
    wish = fresh("a", prompt(0))
    first = drafter.draft(engine, [wish]).token_ids
    engine.release("a")
    assert drafter.draft(engine, [wish]).token_ids == first


def test_who_was_drafted_for_least_recently_gives_way_and_is_told(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=8)  # two sessions of three blocks each
    drafter = Drafter()
    for key in ("a", "b", "a"):
        assert drafter.draft(engine, [fresh(key, prompt(ord(key)))]).forgotten == frozenset()
    drafted = drafter.draft(engine, [fresh("c", prompt(9))])
    assert drafted.forgotten == {"b"}
    assert set(engine.held()) == {"a", "c"}
    engine.check()


def test_a_tick_that_does_not_fit_drafts_for_those_that_do(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=8)
    drafted = Drafter().draft(engine, [fresh(key, prompt(ord(key))) for key in "abc"])
    assert set(drafted.token_ids) == {"a", "b"}
    assert drafted.forgotten == {"c"}


def test_what_was_guessed_wrong_gives_its_blocks_to_what_follows(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    drafter = Drafter()
    wish = fresh("a", prompt(0), count=20)  # the fourth block is begun, the third one has its name
    assert len(drafter.draft(engine, [wish]).token_ids["a"]) == 20
    revised = replace(going_on(wish, [90]), count=20)
    assert len(drafter.draft(engine, [revised]).token_ids["a"]) == 20
    engine.check()


def test_a_session_that_the_model_cannot_follow_is_refused_and_holds_nothing(engine: Engine) -> None:
    drafter = Drafter()
    wish = fresh("a", prompt(0))
    drafter.draft(engine, [wish])
    drafted = drafter.draft(engine, [going_on(wish, [1 << 20])])
    assert "token ids must be" in drafted.refused["a"]
    assert drafted.forgotten == {"a"}
    assert engine.held() == {}


SLOW = Grammar("regex", "[a-z]+")
UNDER = replace(GREEDY, grammar=SLOW)


def test_a_session_that_waits_for_its_mask_holds_up_no_other_draft(llm_dir: Path) -> None:
    expected = Drafter().draft(make_engine(llm_dir), [fresh("plain", prompt(1))]).token_ids
    engine, drafter = make_engine(llm_dir), Drafter()
    with held_masks(SLOW) as held:
        held.hold()
        drafted = drafter.draft(engine, [fresh("slow", prompt(0), UNDER), fresh("plain", prompt(1))])
    assert drafted.token_ids == expected
    assert not drafted.refused
    assert drafted.forgotten == {"slow"}
    assert set(engine.held()) == {"plain"}
    assert "slow" in drafter.draft(engine, [fresh("slow", prompt(0), UNDER)]).token_ids


def test_a_session_whose_grammar_is_too_complex_is_refused_and_holds_nothing(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_row, "MAX_MASKS_S", 0.0)
    engine = make_engine(llm_dir)
    drafted = Drafter().draft(engine, [fresh("a", prompt(0), UNDER)])
    assert "too complex" in drafted.refused["a"]
    assert not drafted.token_ids
    assert drafted.forgotten == {"a"}
    assert not engine.held()
