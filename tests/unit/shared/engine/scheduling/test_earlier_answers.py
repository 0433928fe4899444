"""Earlier answers are found again within their scope alone, as far as they are kept."""

from __future__ import annotations

from shared.engine.scheduling.earlier_answers import (
    LEAST_ANSWER_TOKENS,
    AnswerText,
    EarlierAnswers,
)
from shared.engine.scheduling.ngram_index import LONGEST_MATCH, NO_GUESS, WINDOW_TOKENS, Guess

PROMPT = [1, 2, 3]
ANSWER = [11, 12, 13, 14, 15, 16, 17, 18]


def text_of(*answers: list[int]) -> AnswerText:
    text = AnswerText()
    for answer in answers:
        text.append(answer)
    text.index(len(text))
    return text


def kept(earlier: EarlierAnswers, scope: str, tokens: list[int], prompt_len: int = len(PROMPT)) -> bool:
    earlier.keep(scope, tokens, prompt_len)
    return earlier.of(scope) is not None


def test_what_followed_the_same_words_in_another_answer_is_guessed() -> None:
    assert text_of(ANSWER).look_up([90, 12, 13, 14], 3) == Guess((15, 16, 17), 3)


def test_the_longest_match_wins_and_of_equals_the_latest_answer() -> None:
    answers = [5, 12, 13, 21], [6, 12, 13, 22], [7, 12, 13, 23]
    assert text_of(*answers).look_up([6, 12, 13], 1) == Guess((22,), 3)
    assert text_of(*answers).look_up([8, 12, 13], 1) == Guess((23,), 2)


def test_a_guess_ends_where_its_answer_ended() -> None:
    text = text_of(ANSWER, [21, 22, 23])
    assert text.look_up([16, 17], 4) == Guess((18,), 2)
    assert text.look_up([17, 18], 4) == NO_GUESS


def test_a_match_does_not_reach_over_the_end_of_an_answer() -> None:
    assert text_of([11, 12], [13, 14, 15]).look_up([11, 12, 13, 14], 1) == Guess((15,), 2)


def test_what_has_not_been_indexed_is_not_found_yet() -> None:
    text = AnswerText()
    text.append(ANSWER)
    assert text.index(3) == 3
    assert text.look_up([12, 13], 1) == Guess((14,), 2)
    assert text.look_up([15, 16], 1) == NO_GUESS
    assert text.index(100) == len(ANSWER) - 3


def test_the_oldest_give_way_when_two_windows_are_full() -> None:
    text = AnswerText()
    for first in range(0, 3 * WINDOW_TOKENS, 100):
        text.append(range(first, first + 99))
        assert len(text) <= 2 * WINDOW_TOKENS
    text.index(2 * WINDOW_TOKENS)
    latest = first + 50
    assert text.look_up([latest, latest + 1], 1) == Guess((latest + 2,), 2)
    assert text.look_up([50, 51], 1) == NO_GUESS


def test_an_answer_longer_than_a_window_is_kept_as_far_back_as_that() -> None:
    text = AnswerText()
    text.append(range(4 * WINDOW_TOKENS))
    assert len(text) == WINDOW_TOKENS


def test_an_answer_is_found_by_the_end_of_the_prompt_that_led_to_it() -> None:
    earlier = EarlierAnswers(1)
    prompt = list(range(100, 100 + 2 * LONGEST_MATCH))
    earlier.keep("a", prompt + ANSWER, len(prompt))
    text = earlier.of("a")
    assert text is not None
    text.index(len(text))
    assert text.look_up(prompt, 2) == Guess((11, 12), LONGEST_MATCH)
    assert text.look_up(prompt[:LONGEST_MATCH], 1) == NO_GUESS


def test_a_scope_has_its_own_answers_alone() -> None:
    earlier = EarlierAnswers(2)
    assert kept(earlier, "a", PROMPT + ANSWER)
    assert earlier.of("b") is None


def test_those_of_the_scope_that_was_not_answered_for_longest_give_way() -> None:
    earlier = EarlierAnswers(2)
    for scope in ("a", "b", "a", "c"):
        assert kept(earlier, scope, PROMPT + ANSWER)
    assert [scope for scope in "abc" if earlier.of(scope)] == ["a", "c"]


def test_short_answers_are_not_kept_and_none_is_where_there_is_room_for_no_scope() -> None:
    shortest = ANSWER[:LEAST_ANSWER_TOKENS]
    assert not kept(EarlierAnswers(1), "a", PROMPT + shortest[1:])
    assert kept(EarlierAnswers(1), "a", PROMPT + shortest)
    assert not kept(EarlierAnswers(0), "a", PROMPT + ANSWER)
