"""Grammars compiled beside the steps: once for all who wait, a bounded number, none for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from shared.engine.sampling.grammar import CompiledGrammar, Grammars
from shared.engine.sampling.grammar_trial import TRIAL_LIMITS
from shared.errors import InvalidRequest, Overloaded
from shared.process import job_runner
from shared.process.limited_jobs import JobEnd
from shared.sampling.parameters import Grammar
from shared.worker import grammar_compiler
from shared.worker.grammar_compiler import GrammarCompiler, GrammarResult
from tests.support.grammar import EOS, VOCAB, save_tokenizer
from tests.support.metric import value
from tests.support.slow_grammar import PATTERNS_TOGETHER, held_compiler
from tests.support.wait import until

SLOW, OTHER = Grammar("regex", "a+"), Grammar("regex", "b+")


@pytest.fixture
def grammars(tmp_path: Path) -> Grammars:
    save_tokenizer(tmp_path)
    return Grammars(str(tmp_path), VOCAB, (EOS,))


@pytest.fixture
async def compiler(grammars: Grammars) -> AsyncIterator[GrammarCompiler]:
    compiler = GrammarCompiler("decode", grammars, lambda: None)
    yield compiler
    await compiler.close()


async def ended(compiler: GrammarCompiler, count: int) -> dict[str, GrammarResult]:
    results: dict[str, GrammarResult] = {}

    def all_there() -> bool:
        results.update(compiler.take_ended())
        return len(results) == count

    await until(all_there)
    return results


async def test_who_wants_the_same_grammar_waits_for_one_compilation(compiler: GrammarCompiler) -> None:
    with held_compiler(SLOW) as held:
        for key in ("a/1", "b/1"):
            compiler.begin(key, SLOW)
        await asyncio.to_thread(held.begun.wait)
        held.go_on.set()
        results = await ended(compiler, 2)
        compiler.begin("c/1", SLOW)
        results |= await ended(compiler, 1)
    assert held.compiled == [SLOW]
    assert len({id(result) for result in results.values()}) == 1
    assert isinstance(results["a/1"], CompiledGrammar)


async def test_a_bad_grammar_ends_with_its_error(compiler: GrammarCompiler) -> None:
    compiler.begin("a/1", Grammar("regex", "(ab"))
    results = await ended(compiler, 1)
    assert isinstance(results["a/1"], InvalidRequest)


async def test_a_fault_of_the_compiler_is_the_grammars(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: object) -> None:
        raise BaseException("panicked")  # noqa: TRY002 - what a panic in Rust comes as

    monkeypatch.setattr("shared.engine.sampling.grammar.grammar_matcher", panic)
    compiler.begin("a/1", SLOW)
    results = await ended(compiler, 1)
    assert isinstance(results["a/1"], InvalidRequest)
    monkeypatch.undo()
    compiler.begin("b/1", SLOW)
    assert isinstance((await ended(compiler, 1))["b/1"], CompiledGrammar)


async def test_more_grammars_than_may_wait_are_refused_with_a_hint(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_WAITING_GRAMMARS", 2)
    with held_compiler(SLOW):
        compiler.begin("a/1", SLOW)
        compiler.check_room(OTHER)
        compiler.begin("b/1", OTHER)
        with pytest.raises(Overloaded) as refused:
            compiler.check_room(Grammar("regex", "c+"))
        assert refused.value.retry_after_ms > 0
        compiler.check_room(OTHER)  # it is on its way
        compiler.check_room(None)


async def test_a_compilation_that_nobody_waits_for_does_not_begin(compiler: GrammarCompiler) -> None:
    with held_compiler(SLOW) as held:
        compiler.begin("a/1", SLOW)
        await asyncio.to_thread(held.begun.wait)
        compiler.begin("b/1", OTHER)
        compiler.begin("c/1", OTHER)
        compiler.forget("b/1")
        compiler.forget("c/1")
        compiler.forget("a/1")  # has begun: it ends, and is told to nobody
        held.go_on.set()
        compiler.begin("d/1", Grammar("regex", "d+"))
        assert list(await ended(compiler, 1)) == ["d/1"]
    assert OTHER not in held.compiled


async def test_a_grammar_that_takes_too_long_is_refused_by_name_and_keeps_nobody_waiting(
    compiler: GrammarCompiler,
) -> None:
    before_mb = resident_mb()
    compiler.begin("hostile/1", PATTERNS_TOGETHER)
    compiler.begin("other/1", OTHER)
    first = await ended(compiler, 1)
    assert isinstance(first["other/1"], CompiledGrammar)
    results = await ended(compiler, 1)
    refused = results["hostile/1"]
    assert isinstance(refused, InvalidRequest)
    assert "too complex" in refused.message
    assert resident_mb() < before_mb + 100


async def test_a_refused_grammar_is_tried_once(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.begin("a/1", PATTERNS_TOGETHER)
    first = (await ended(compiler, 1))["a/1"]

    def tried_again(*_: object) -> None:
        raise AssertionError("it was tried again")

    monkeypatch.setattr(compiler._trials, "submit", tried_again)
    compiler.begin("b/1", PATTERNS_TOGETHER)
    second = (await ended(compiler, 1))["b/1"]
    assert isinstance(second, InvalidRequest)
    assert isinstance(first, InvalidRequest)
    assert second.message == first.message


async def test_a_grammar_that_is_slow_to_make_keeps_no_quick_one_waiting(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(trial: grammar_compiler._Trial) -> float:
        return 0.9 if trial._grammar == SLOW else 0.001

    monkeypatch.setattr(grammar_compiler._Trial, "run", tried)
    with held_compiler(SLOW) as held:
        compiler.begin("slow/1", SLOW)
        await asyncio.to_thread(held.begun.wait)
        compiler.begin("quick/1", OTHER)
        assert list(await ended(compiler, 1)) == ["quick/1"]


@pytest.mark.parametrize("says_so", [True, False])
async def test_a_trial_that_has_no_core_is_nobodys_fault(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    """Also where the process that tries it has none to say so."""
    late: Future[JobEnd] = Future()
    if says_so:
        late.set_result(JobEnd(job_runner.TOO_LATE, b""))
    else:
        monkeypatch.setattr(grammar_compiler, "TRIAL_GRACE_S", 0.01 - TRIAL_LIMITS.wall_s)
    monkeypatch.setattr(compiler._trials, "submit", lambda _: (late, lambda: None))
    compiler.begin("a/1", SLOW)
    assert isinstance((await ended(compiler, 1))["a/1"], Overloaded)
    monkeypatch.undo()
    compiler.begin("b/1", SLOW)
    assert isinstance((await ended(compiler, 1))["b/1"], CompiledGrammar)


async def test_a_compilation_that_nobody_waits_for_is_stopped(compiler: GrammarCompiler) -> None:
    compiler.begin("begin/1", OTHER)  # so that the process is there
    await ended(compiler, 1)
    compiler.begin("a/1", PATTERNS_TOGETHER)
    await until(lambda: compiler._waiting[PATTERNS_TOGETHER].trial._stop is not None)
    compiler.forget("a/1")
    await until(lambda: not compiler._waiting)
    assert compiler.take_ended() == []


async def test_a_grammar_that_is_wanted_again_as_it_is_stopped_is_compiled(compiler: GrammarCompiler) -> None:
    compiler.begin("a/1", SLOW)
    compiler.forget("a/1")
    compiler.begin("b/1", SLOW)
    assert isinstance((await ended(compiler, 1))["b/1"], CompiledGrammar)


# ---- trials of other workers ----


def no_trial(*_: object) -> None:
    raise AssertionError("it was tried here")


async def test_what_another_worker_has_tried_is_compiled_without_a_trial(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler._trials, "submit", no_trial)
    compiler.begin("a/1", SLOW, tried_elsewhere=True)
    compiler.begin("b/1", SLOW, tried_elsewhere=True)
    compiler.hear("of nobody/1", 0.01)
    assert compiler._waiting[SLOW].future is None
    compiler.hear("a/1", 0.01)
    compiler.hear("b/1", "it came second")
    results = await ended(compiler, 2)
    assert isinstance(results["a/1"], CompiledGrammar)
    assert results["a/1"] is results["b/1"]


async def test_what_another_worker_has_refused_is_refused_without_a_trial_and_not_remembered(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(compiler._trials, "submit", no_trial)
        compiler.begin("a/1", SLOW, tried_elsewhere=True)
        compiler.hear("a/1", "the grammar (regex) is not liked: send another one")
        refused = (await ended(compiler, 1))["a/1"]
    assert isinstance(refused, InvalidRequest)
    assert "not liked" in refused.message
    compiler.begin("b/1", SLOW)
    assert isinstance((await ended(compiler, 1))["b/1"], CompiledGrammar)


async def test_a_grammar_of_which_nothing_is_heard_is_tried_here(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = value("penstock_grammar_trials_total")
    monkeypatch.setattr(grammar_compiler, "OTHERS_TRIAL_S", 0.0)
    compiler.begin("a/1", SLOW, tried_elsewhere=True)
    assert isinstance((await ended(compiler, 1))["a/1"], CompiledGrammar)
    assert value("penstock_grammar_trials_total") == before + 1


async def test_who_has_nobody_that_tries_it_waits_for_nobody(compiler: GrammarCompiler) -> None:
    compiler.begin("a/1", SLOW, tried_elsewhere=True)
    compiler.begin("b/1", SLOW)
    assert len(await ended(compiler, 2)) == 2


async def test_a_trial_of_another_worker_is_waited_for_by_nobody_when_all_have_left(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler._trials, "submit", no_trial)
    compiler.begin("a/1", SLOW, tried_elsewhere=True)
    patience = compiler._waiting[SLOW].patience
    compiler.forget("a/1")
    assert patience is not None
    assert patience.cancelled()
    assert not compiler._waiting
    compiler.hear("a/1", 0.01)
    assert not compiler._waiting


async def test_all_who_wait_are_told_of_the_trial_before_it_is_compiled(grammars: Grammars) -> None:
    told: list[tuple[str, float | str]] = []
    compiler = GrammarCompiler("decode", grammars, lambda: None, lambda *said: told.append(said))
    try:
        with held_compiler(SLOW) as held:
            compiler.begin("a/1", SLOW)
            compiler.begin("b/1", SLOW)
            await until(lambda: len(told) == 2)
            compiler.begin("late/1", SLOW)
            assert [key for key, _ in told] == ["a/1", "b/1", "late/1"]
            assert len({took_s for _, took_s in told}) == 1
            held.go_on.set()
            await ended(compiler, 3)
        compiler.begin("again/1", SLOW)
        compiler.begin("bad/1", Grammar("regex", "(ab"))
        await ended(compiler, 2)
        assert told[3] == ("again/1", told[0][1])
        key, sentence = told[4]
        assert (key, isinstance(sentence, str)) == ("bad/1", True)
    finally:
        await compiler.close()


async def test_tokens_by_id_or_name_pass_the_trial(compiler: GrammarCompiler) -> None:
    compiler.begin("a/1", Grammar("ebnf", f'start: <[{EOS - 1}]> "<[999999]>" /<x>/'))
    assert isinstance((await ended(compiler, 1))["a/1"], CompiledGrammar)


@pytest.mark.parametrize("text", ["start: start", "start: a\na: a | a a"])
async def test_a_grammar_that_no_text_fits_is_told_in_words(compiler: GrammarCompiler, text: str) -> None:
    compiler.begin("a/1", Grammar("ebnf", text))
    refused = (await ended(compiler, 1))["a/1"]
    assert isinstance(refused, InvalidRequest)
    assert "no text fits it" in refused.message


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
