"""A grammar that was tried is not tried again, whatever came of it."""

from __future__ import annotations

import pytest

from shared.engine.sampling import grammar_verdicts
from shared.engine.sampling.grammar_verdicts import GrammarVerdicts, Verdict
from shared.errors import InvalidRequest, Unavailable
from shared.sampling.parameters import Grammar


class Tried:
    """A compiler whose trials end with `verdict`, or raise it."""

    def __init__(self, verdict: Verdict | Exception) -> None:
        self.times = 0
        self._verdict = verdict

    def __call__(self) -> Verdict:
        self.times += 1
        if isinstance(self._verdict, Exception):
            raise self._verdict
        return self._verdict


def test_a_grammar_is_tried_once_and_told_from_others_by_kind_and_text() -> None:
    verdicts, tried = GrammarVerdicts(), Tried(0.25)
    for grammar in [Grammar("regex", "a"), Grammar("regex", "b"), Grammar("ebnf", "a")]:
        assert [verdicts.of(grammar, tried) for _ in range(3)] == [0.25] * 3
    assert tried.times == 3


def test_a_refused_grammar_is_refused_again_in_the_same_words_without_a_trial() -> None:
    verdicts, tried = GrammarVerdicts(), Tried("the grammar (regex) is too complex")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="too complex"):
            verdicts.of(Grammar("regex", "a"), tried)
    assert tried.times == 1


def test_what_says_nothing_about_the_grammar_is_not_remembered() -> None:
    verdicts = GrammarVerdicts()
    with pytest.raises(Unavailable):
        verdicts.of(Grammar("regex", "a"), Tried(Unavailable("the process ended")))
    assert verdicts.of(Grammar("regex", "a"), Tried(0.0)) == 0.0


def test_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_verdicts, "MAX_VERDICTS", 2)
    verdicts, tried = GrammarVerdicts(), Tried(0.0)
    for text in "abca":
        verdicts.of(Grammar("regex", text), tried)
    assert tried.times == 4
