"""Masks in threads: what is quick is there in time, what is slow keeps no other waiting."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.engine.loading.tokenizer_file import read_tokenizer_json
from shared.engine.sampling import mask_threads
from shared.engine.sampling.grammar import Grammars, GrammarState
from shared.engine.sampling.grammar_source import on_deep_stack
from shared.engine.sampling.id_bits import IdBits
from shared.engine.sampling.mask_threads import MAX_STUCK_THREADS, MaskJob, MaskThreads
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.grammar import EOS, VOCAB
from tests.support.smollm2 import smollm2_file


@pytest.fixture
def grammars(llm_dir: Path) -> Grammars:
    return Grammars(str(llm_dir), VOCAB, (EOS,))


@pytest.fixture
def threads() -> Iterator[MaskThreads]:
    threads = MaskThreads()
    yield threads
    threads.close()


class Stuck(GrammarState):
    """Its mask takes a core until the test says so."""

    def __init__(self, grammars: Grammars, text: str) -> None:
        super().__init__(grammars.compile(Grammar("regex", text)))
        self.begun, self.go_on = threading.Event(), threading.Event()

    def masks(self, drafts: Sequence[int]) -> list[IdBits | None]:
        self.begun.set()
        while not self.go_on.is_set():
            pass
        return super().masks(drafts)


def quick(grammars: Grammars, text: str = "[a-z]+", *, is_proven: bool = False) -> MaskJob:
    return MaskJob(GrammarState(grammars.compile(Grammar("regex", text))), (), is_proven=is_proven)


def test_quick_masks_are_all_there_after_the_wait(grammars: Grammars, threads: MaskThreads) -> None:
    jobs = [quick(grammars, f"[a-z]{{{number}}}") for number in range(1, 20)]
    batch = threads.begin(jobs)
    assert batch is not None
    threads.wait(batch)
    assert all(job.is_done and job.masks and job.fault is None for job in jobs)
    assert threads.begin([]) is None


def test_slow_masks_keep_no_quick_one_waiting(grammars: Grammars, threads: MaskThreads) -> None:
    stuck = [Stuck(grammars, f"{letter}+") for letter in "abc"]
    jobs = [MaskJob(state, (), is_proven=False) for state in stuck]
    for job in jobs:
        batch = threads.begin([job, later := quick(grammars)])
        assert batch is not None
        threads.wait(batch)  # it may end before the next thread has come to `later`
        assert batch.done.wait(0) is False
        while not later.is_done:
            threads.wait(batch)  # as the next step does, where the host gave no thread a core for so long
        assert not job.is_done
    for state, job in zip(stuck, jobs, strict=True):
        job.awaited = True
        state.go_on.set()
        threads.await_change(60.0)


@pytest.mark.thorough
def test_threads_that_slow_masks_take_are_bounded(grammars: Grammars, threads: MaskThreads) -> None:
    stuck = [Stuck(grammars, f"{chr(97 + number)}+") for number in range(MAX_STUCK_THREADS + 2)]
    batches = [threads.begin([MaskJob(state, (), is_proven=False)]) for state in stuck]
    for batch in batches:
        assert batch is not None
        threads.wait(batch)
    assert sum(state.begun.is_set() for state in stuck) <= MAX_STUCK_THREADS + 1
    for state in stuck:
        state.go_on.set()
    for batch in batches:
        assert batch is not None
        assert batch.done.wait(60.0)


def test_a_mask_that_no_thread_has_come_to_is_computed_in_the_step_where_it_is_proven(
    grammars: Grammars, threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_helper", object())  # none comes
    monkeypatch.setattr(mask_threads, "PATIENCE_S", 0.0)
    monkeypatch.setattr(threads, "_go_on_beside", lambda _: False)
    proven, other = quick(grammars, is_proven=True), quick(grammars, "a+")
    batch = threads.begin([proven, other])
    assert batch is not None
    threads.wait(batch)
    assert (proven.is_done, proven.held_up_step, other.is_done) == (True, True, False)
    threads._batches.get()


def test_a_slow_mask_is_told_of_when_it_is_there(grammars: Grammars, threads: MaskThreads) -> None:
    job = quick(grammars)
    threads.begin_slow(job)
    threads.await_change(60.0)
    assert job.is_done
    assert job.cpu_s >= job.mask_cpu_s > 0.0


def test_who_waits_for_a_mask_can_be_roused(threads: MaskThreads) -> None:
    threads.rouse()
    threads.await_change(60.0)


def test_a_panic_of_the_library_is_the_grammars_fault(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: object) -> None:
        raise BaseException("panicked")  # noqa: TRY002 - what a panic in Rust comes as

    job = quick(grammars)
    monkeypatch.setattr(GrammarState, "masks", panic)
    job.run()
    assert isinstance(job.fault, InvalidRequest)
    assert "grammar (regex)" in job.fault.message


def test_the_library_lets_go_of_pythons_lock_while_it_computes_a_mask() -> None:
    """All that is promised of masks beside steps rests on it."""
    terminals = " | ".join(f"/[a-z]*{chr(97 + n // 26)}{chr(97 + n % 26)}[a-z]*/" for n in range(400))
    matcher = on_deep_stack(lambda: _patient_matcher(f"start: t+\nt: {terminals}"))
    done = threading.Event()

    def compute() -> None:
        matcher.compute_bitmask()
        done.set()

    thread = threading.Thread(target=compute)
    thread.start()
    turns = 0
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 10_000  # it takes 0.2 s; with the lock held there would be a turn or two


def _patient_matcher(text: str) -> LLMatcher:
    spec = read_tokenizer_json(str(smollm2_file()))
    assert spec is not None
    limits = LLParserLimits(step_lexer_fuel=10**7, step_max_items=10**6, verbose_errors=False)
    tokenizer = LLTokenizer(spec, n_vocab=49152, eos_token=[2])
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(text), log_level=0, limits=limits)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def test_a_full_lexer_is_rebuilt_beside_the_steps(grammars: Grammars, threads: MaskThreads) -> None:
    """Building one for a thousand properties took 0.1 s, in mid-step."""
    properties = {f"p{number}": {"type": "integer"} for number in range(1100)}
    grammar = Grammar("json_schema", json.dumps({"type": "object", "properties": properties}))
    state = GrammarState(grammars.compile(grammar))
    brace, quote = 3 + ord("{") - 32, 3 + ord('"') - 32
    state.advance(brace)
    state.advance(quote)
    job = MaskJob(state, (), is_proven=False)
    threads.begin_slow(job)
    threads.await_change(60.0)
    assert job.is_done
    assert isinstance(job.fault, InvalidRequest)
    assert "grammar (json_schema) is too complex" in job.fault.message
