"""Prompts that the decode worker computes itself, turn by turn, with a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.deadline import Deadline
from shared.engine.scheduling.step_limits import AWAITED_SHARE
from shared.messages import (
    Accepted,
    Cancel,
    CancelAck,
    DraftOpen,
    Failure,
    HoldReport,
    LivenessCheck,
    Message,
    PromptLogprobs,
    Reserve,
    Tokens,
    pack_hashes,
    pack_ids,
    unpack_ids,
)
from shared.sampling.parameters import Grammar, SamplingParams
from shared.worker.job import JobPhase
from tests.support.block_hashes import hashes_of
from tests.support.engine import generate, make_engine
from tests.support.metric import value
from tests.support.noted_bus import REPLY
from tests.support.sampling import sampling
from tests.support.slow_grammar import held_compiler
from tests.support.wait import until
from tests.unit.services.decode.test_actor import SLOW, SPECULATOR, Worker

PROMPT = list(range(2, 42))
DETOKENIZER = "penstock.detokenizer.detokenizer-0"
GATEWAY = "penstock.gateway.gateway-0"
CHUNK_TOKENS = 16


class LocalWorker(Worker):
    """It computes prompts in chunks of CHUNK_TOKENS."""

    def __init__(self, llm_dir: Path) -> None:
        super().__init__(llm_dir, max_batch_tokens=CHUNK_TOKENS)

    async def compute(
        self,
        request_id: str = "r",
        epoch: int = 1,
        *,
        ids: Sequence[int] = PROMPT,
        how: SamplingParams | None = None,
        speculator: str = "",
        prompt_len: int = 0,
        resumable: bool = False,
        first_token_us: int = 0,
    ) -> None:
        """Place a request whose prompt is to be computed here."""
        how = how or sampling(ignore_eos=True, max_tokens=40)
        hashes = pack_hashes(hashes_of(ids, self._driver.engine.layout.fingerprint()))
        reserve = Reserve(
            pack_ids(ids),
            prompt_len or len(ids),
            hashes,
            how,
            "gateway-0",
            "detokenizer-0",
            "",
            speculator,
            0,
            resumable=resumable,
            first_token_us=first_token_us,
        )
        await self.send(reserve, request_id, epoch)

    async def until_phase(self, phase: JobPhase, key: str = "r/1") -> None:
        while self._book.jobs[key].phase is not phase:
            await self.step()

    async def until_over(self, key: str = "r/1") -> None:
        while key in self._book.jobs:
            await self.step()

    def ids(self, request_id: str = "r") -> list[int]:
        """As the detokenizer got them."""
        rows = [
            (position, ids)
            for tokens in self.sent.to(DETOKENIZER)
            if isinstance(tokens, Tokens)
            for key, position, ids in zip(tokens.request_ids, tokens.positions, tokens.token_ids, strict=True)
            if key == request_id
        ]
        assert [position for position, _ in rows] == sorted(position for position, _ in rows)
        return [token_id for _, ids in rows for token_id in ids]

    def marks(self) -> list[str]:
        return [
            mark.phase
            for tokens in self.sent.to(DETOKENIZER)
            if isinstance(tokens, Tokens)
            for marks in tokens.marks
            for mark in marks
        ]

    def replies(self) -> Sequence[Message]:
        return self.sent.to(REPLY)


@pytest.fixture
async def worker(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalWorker]:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    worker = LocalWorker(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


# ---- the whole way ----


async def test_it_computes_the_prompt_and_sends_the_first_token_and_all_that_follow(
    worker: LocalWorker, llm_dir: Path
) -> None:
    await worker.compute()
    await worker.until_over()
    assert worker.ids() == generate(make_engine(llm_dir), PROMPT, sampling(ignore_eos=True, max_tokens=40))
    assert worker.positions()[0] == len(PROMPT)
    assert worker.played.expected == []
    assert worker.kinds_held() == set()


async def test_its_first_token_is_due_when_the_gateway_says(worker: LocalWorker) -> None:
    first_token = Deadline.after(30.0)
    await worker.compute(first_token_us=first_token.to_steady_us())
    (job,) = worker._book.jobs.values()
    assert job.first_token_us == pytest.approx(1e6 * first_token.at_s, abs=1000)
    assert job.first_token_us < 1e6 * job.deadline.at_s


async def test_a_heartbeat_says_how_long_steps_may_be_for_the_streams_that_are_here(
    worker: LocalWorker,
) -> None:
    assert worker.decode_report().longest_step_us == 0
    await worker.compute()
    await worker.until_phase(JobPhase.DECODING)
    await worker.step()
    config, report = worker._service.config, worker.decode_report()
    spare_us = 1000 * AWAITED_SHARE * config.itl_target_ms
    assert report.longest_step_us == round(max(config.max_step_ratio * report.step_us, spare_us))


async def test_a_request_that_goes_on_here_draws_what_would_have_come(
    worker: LocalWorker, llm_dir: Path
) -> None:
    how = sampling(ignore_eos=True, max_tokens=20, temperature=1.0, seed=7)
    whole = generate(make_engine(llm_dir), PROMPT, how)
    await worker.compute(ids=[*PROMPT, *whole[:9]], prompt_len=len(PROMPT), how=how, epoch=2)
    await worker.until_over("r/2")
    assert worker.ids() == whole[9:]
    assert worker.positions()[0] == len(PROMPT) + 9


async def test_it_is_accepted_once_the_engine_has_it_with_what_is_cached(worker: LocalWorker) -> None:
    await worker.compute("first")
    assert worker.replies() == []
    await worker.until_over("first/1")
    await worker.compute("second")
    await worker.step()
    assert worker.replies() == [Accepted(0), Accepted(2 * HASH_BLOCK_TOKENS)]


async def test_streams_go_on_while_a_prompt_is_computed_beside_them(worker: LocalWorker) -> None:
    await worker.decode("beside")
    await worker.compute(ids=PROMPT * 2)
    before, steps = worker.decoded("beside"), 0
    while not worker.decoded():
        await worker.step()
        steps += 1
    assert steps > len(PROMPT) * 2 // CHUNK_TOKENS
    assert worker.decoded("beside") >= before + steps - 1


async def test_its_time_is_told_as_a_prompt_at_decode(worker: LocalWorker) -> None:
    await worker.compute()
    await worker.until_over()
    assert worker.marks() == [
        "decode.prefill_queue",
        "decode.prefill_compute",
        "count:draft_proposed",
        "count:draft_accepted",
        "count:ngram_proposed",
        "count:ngram_accepted",
        "count:decode_core_us",
        "count:kv_kib_s",
    ]


async def test_drafts_begin_behind_its_first_token(worker: LocalWorker) -> None:
    await worker.compute(speculator="speculator-0")
    await worker.until_phase(JobPhase.DECODING)
    await worker.step()
    (opened,) = [one for one in worker.sent.to(SPECULATOR) if isinstance(one, DraftOpen)]
    told = unpack_ids(opened.token_ids)
    assert list(told[: len(PROMPT)]) == PROMPT
    assert len(told) > len(PROMPT)
    assert list(told[len(PROMPT) :]) == worker.ids()[: len(told) - len(PROMPT)]


async def test_how_likely_its_tokens_are_is_told_before_the_first_one_that_is_drawn(
    worker: LocalWorker,
) -> None:
    await worker.compute(how=sampling(ignore_eos=True, max_tokens=2, prompt_logprobs=1))
    await worker.until_over()
    told = [one for one in worker.sent.to(GATEWAY) if isinstance(one, PromptLogprobs)]
    assert [one.position for one in told] == [1, 17, 33]
    assert sum(len(one.logprobs) for one in told) == len(PROMPT) - 1
    kinds = [type(sent.message) for sent in worker.sent.noted.sent]
    assert kinds.index(Tokens) > max(at for at, kind in enumerate(kinds) if kind is PromptLogprobs)


# ---- what its heartbeat tells ----


async def test_its_heartbeat_tells_what_is_to_be_computed_here(worker: LocalWorker) -> None:
    await worker.compute(ids=PROMPT)
    assert (worker.status().queued, worker.status().worker.queued_tokens) == (1, len(PROMPT))
    await worker.step()  # the first chunk
    await worker.turn()
    assert worker.status().worker.queued_tokens == len(PROMPT) - CHUNK_TOKENS
    await worker.until_phase(JobPhase.DECODING)
    assert (worker.status().queued, worker.status().worker.queued_tokens) == (0, 0)


async def test_its_heartbeat_tells_how_fast_prompts_are_and_what_steps_take(worker: LocalWorker) -> None:
    assert (worker.status().decode.prompt_tokens_per_s, worker.status().decode.step_us) == (0.0, 0)
    await worker.compute()
    await worker.until_phase(JobPhase.DECODING)
    await worker.step()
    await worker.turn()
    assert worker.status().decode.prompt_tokens_per_s > 0
    assert worker.status().decode.step_us > 0
    await worker.until_over()
    assert worker.status().decode.step_us == 0


async def test_its_heartbeat_tells_what_transfers_make_wait(worker: LocalWorker) -> None:
    await worker.reserve()
    await worker.step()
    worker.played.complete(("r", 1), (5,), "", 1500)
    assert worker.status().decode.transfer_us == 1500


async def test_steps_with_a_prompt_in_them_do_not_count_as_those_of_streams_alone(
    worker: LocalWorker,
) -> None:
    await worker.decode("beside")
    await worker.compute(ids=PROMPT * 2)
    await worker.until_phase(JobPhase.COMPUTING)
    await worker.step()
    worker._pace.forget_steps()
    await worker.step()
    assert worker._book.jobs["r/1"].phase is JobPhase.COMPUTING
    assert worker.status().decode.step_us == 0
    assert worker._pace.step_s > 0


# ---- ends ----


async def test_a_cancel_between_two_chunks_frees_everything(worker: LocalWorker) -> None:
    await worker.compute(ids=PROMPT * 2)
    await worker.until_phase(JobPhase.COMPUTING)
    await worker.send(Cancel("cancelled"))
    assert worker.replies()[-1] == CancelAck(held=True, phase="computing")
    await worker.step()
    await worker.step()
    assert worker.kinds_held() == set()
    assert worker.ids() == []


async def test_a_deadline_that_passes_between_two_chunks_ends_it(worker: LocalWorker) -> None:
    await worker.compute(ids=PROMPT * 2)
    await worker.until_phase(JobPhase.COMPUTING)
    worker._book.jobs["r/1"].deadline = Deadline.after(-1.0)
    await worker.step()
    (lost,) = worker.lost()
    assert (lost.code, lost.hop) == ("expired", "decode")
    assert "while decode was computing" in lost.message
    await worker.step()
    assert worker.kinds_held() == set()


async def test_a_later_placement_takes_the_place_of_a_prompt_that_is_computed(worker: LocalWorker) -> None:
    await worker.compute(ids=PROMPT * 2)
    await worker.until_phase(JobPhase.COMPUTING)
    await worker.compute(epoch=2)
    await worker.until_over("r/2")
    assert "r/1" not in worker._book.jobs
    assert worker.decoded(epoch=1) == 0
    assert worker.decoded(epoch=2) == 40


async def test_a_full_engine_answers_at_once_and_keeps_nothing(worker: LocalWorker) -> None:
    engine = worker._driver.engine
    longest = [3] * (engine.max_model_len - 1)
    for number in range(engine.config.kv_blocks * HASH_BLOCK_TOKENS // engine.max_model_len):
        await worker.compute(f"before-{number}", ids=longest)
    assert worker.replies() == []
    await worker.compute("other", ids=longest)
    (refusal,) = worker.replies()
    assert isinstance(refusal, Failure)
    assert (refusal.code, refusal.hop) == ("overloaded", "decode")
    await worker.send(LivenessCheck(), "other")
    assert worker.replies()[-1] == HoldReport(held=False)


async def test_what_the_engine_refuses_is_the_answer(worker: LocalWorker) -> None:
    await worker.decode("beside")
    worker._driver.engine._scheduler._most_held = 1
    await worker.compute()
    await worker.step()
    refusals = [one for one in worker.replies() if isinstance(one, Failure)]
    assert [(one.code, one.hop) for one in refusals] == [("overloaded", "decode")]
    assert worker.lost() == []
    assert "r/1" not in worker._book.jobs


async def test_a_lost_prefill_worker_does_not_concern_it(worker: LocalWorker) -> None:
    await worker.compute()
    await worker.on_instance_lost("prefill", "prefill-0", "suspect")
    await worker.until_over()
    assert worker.lost() == []
    assert len(worker.ids()) == 40


# ---- grammars ----


async def test_it_is_accepted_while_its_grammar_is_compiled_and_computed_then(worker: LocalWorker) -> None:
    with held_compiler(SLOW) as held:
        await worker.compute(how=sampling(max_tokens=8, grammar=SLOW))
        await asyncio.to_thread(held.begun.wait)
        for _ in range(3):
            await worker.step()
        assert worker.replies() == [Accepted(0)]
        assert worker._book.jobs["r/1"].phase is JobPhase.QUEUED
        held.go_on.set()

        async def over() -> bool:
            await worker.step()
            return "r/1" not in worker._book.jobs

        await until(over)
    assert worker.ids()
    assert worker.replies() == [Accepted(0)]


async def test_a_bad_grammar_is_told_to_its_gateway_which_was_told_that_it_is_taken(
    worker: LocalWorker,
) -> None:
    await worker.compute(how=sampling(max_tokens=8, grammar=Grammar("regex", "(ab")))

    async def told() -> bool:
        await worker.step()
        return bool(worker.lost())

    await until(told)
    (lost,) = worker.lost()
    assert lost.code == "invalid_request"
    assert worker.replies() == [Accepted(0)]
    await worker.step()
    assert worker.kinds_held() == set()


async def test_blocks_that_are_found_in_the_cache_are_counted(worker: LocalWorker) -> None:
    await worker.compute("first")
    await worker.until_over("first/1")
    hits = value("penstock_prefix_cache_hits_total")
    queries = value("penstock_prefix_cache_queries_total")
    await worker.compute("second")
    await worker.until_over("second/1")
    assert value("penstock_prefix_cache_hits_total") == hits + 2
    assert value("penstock_prefix_cache_queries_total") == queries + 2
