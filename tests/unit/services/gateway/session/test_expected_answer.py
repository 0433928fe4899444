"""A request is routed by what is expected of its answer, and teaches what later ones are expected to be."""

from __future__ import annotations

from services.gateway.admission.answer_lengths import AnswerKind, AnswerLengths
from services.gateway.scope.session_state import SessionState
from services.gateway.scope.token_log import TokenLog
from services.gateway.session.expected_answer import ExpectedAnswer

KIND = AnswerKind("m", "acme", "text", "00128")
MAX_TOKENS = 1000


def state_of(drawn: int, finish: str = "") -> SessionState:
    state = SessionState(MAX_TOKENS)
    state.log = TokenLog(10, list(range(drawn)))
    state.finish = finish
    return state


def known(tokens: int, finish: str = "stop") -> AnswerLengths:
    """Lengths of a model of which many answers had so many tokens."""
    lengths = AnswerLengths()
    for _ in range(100):
        ExpectedAnswer(lengths, KIND, MAX_TOKENS, state_of(tokens, finish)).record_end()
    return lengths


def test_without_history_an_answer_counts_with_all_that_it_may_get() -> None:
    state = state_of(0)
    expected = ExpectedAnswer(AnswerLengths(), KIND, MAX_TOKENS, state)
    assert (expected.mean_left, expected.most_left, expected.most_tokens) == (MAX_TOKENS, MAX_TOKENS, 0)
    assert state.most_expected_tokens == 0


def test_with_history_it_counts_with_what_answers_like_it_had() -> None:
    state = state_of(0)
    expected = ExpectedAnswer(known(64), KIND, MAX_TOKENS, state)
    assert (expected.most_tokens, expected.most_left) == (64, 64)
    assert 50 < expected.mean_left <= 64
    assert (state.most_expected_tokens, state.expected_tokens) == (64, round(expected.mean_left))


def test_what_has_come_is_not_expected_any_more_and_behind_the_most_anything_is() -> None:
    lengths = known(64)
    assert ExpectedAnswer(lengths, KIND, MAX_TOKENS, state_of(40)).most_left == 24
    beyond = ExpectedAnswer(lengths, KIND, MAX_TOKENS, state_of(64))
    assert (beyond.most_left, beyond.mean_left) == (MAX_TOKENS - 64, 1.0)


def test_max_tokens_bounds_what_is_expected() -> None:
    expected = ExpectedAnswer(known(64), KIND, 10, state_of(0))
    assert (expected.most_tokens, expected.most_left) == (10, 10)
    assert expected.mean_left <= 10


def test_answers_that_were_cut_do_not_say_that_answers_end_there() -> None:
    for finish in ("length", ""):
        assert ExpectedAnswer(known(64, finish), KIND, MAX_TOKENS, state_of(0)).most_tokens == MAX_TOKENS


def test_where_it_is_turned_off_max_tokens_is_what_counts() -> None:
    expected = ExpectedAnswer(known(64), KIND, MAX_TOKENS, state_of(0), predicts=False)
    assert (expected.mean_left, expected.most_left, expected.most_tokens) == (MAX_TOKENS, MAX_TOKENS, 0)
