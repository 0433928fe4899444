"""Prompts one after another: whose turn it is, and how long they wait."""

from __future__ import annotations

from statistics import fmean

import pytest

from services.cli.capacity.pipeline.cores import OwnCores
from services.cli.capacity.pipeline.event_line import EventLine
from services.cli.capacity.pipeline.played_load import steady_load
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.pipeline.prompt_worker import CHUNK_TOKENS, PromptWorker
from services.cli.capacity.profile import PrefillProfile
from tests.unit.services.cli.capacity.deployments import load


class Prompts:
    """A worker that computes 1,000 tokens a second, and when each prompt was done."""

    def __init__(self, overhead_ms: float = 0.0) -> None:
        self.line = EventLine()
        self.ends_s: dict[PlayedRequest, float] = {}
        profile = PrefillProfile(1000.0, overhead_ms)
        self.worker = PromptWorker(self.line, OwnCores(self.line), profile, self._note)

    def add(self, at_s: float, tokens: float) -> PlayedRequest:
        request = PlayedRequest(at_s, tokens, tokens, 1)
        self.line.at(at_s, self.worker.add, request)
        return request

    def _note(self, request: PlayedRequest) -> None:
        self.ends_s[request] = self.line.now_s


def test_equal_prompts_come_one_after_another() -> None:
    prompts = Prompts(overhead_ms=10.0)
    first, second = prompts.add(0.0, 100), prompts.add(0.05, 100)
    prompts.line.play()
    assert [prompts.ends_s[each] for each in (first, second)] == pytest.approx([0.11, 0.22])
    assert (first.line_wait_s, second.line_wait_s) == pytest.approx((0.0, 0.06))
    assert prompts.worker.queued_tokens == 0


def test_a_short_prompt_waits_for_a_chunk_of_a_long_one_and_not_for_all_of_it() -> None:
    prompts = Prompts()
    long, short = prompts.add(0.0, 4 * CHUNK_TOKENS), prompts.add(0.1, 100)
    prompts.line.play()
    assert prompts.ends_s[short] == pytest.approx((CHUNK_TOKENS + 100) / 1000)
    assert prompts.ends_s[long] == pytest.approx((4 * CHUNK_TOKENS + 100) / 1000)


def test_a_long_prompt_is_never_slower_than_by_half() -> None:
    """Short ones come without end, and have as many tokens in all as it has meanwhile."""
    prompts = Prompts()
    long = prompts.add(0.0, 4 * CHUNK_TOKENS)
    for number in range(60):
        prompts.add(0.01 + 0.1 * number, 100)
    prompts.line.play()
    assert prompts.ends_s[long] <= 2 * 4 * CHUNK_TOKENS / 1000 + CHUNK_TOKENS / 1000


def test_a_line_of_equal_prompts_is_m_d_1() -> None:
    prompts = Prompts()
    requests = steady_load(load(7.0, prompt=100), 8000, 7.0)
    for request in requests:
        prompts.line.at(request.at_s, prompts.worker.add, request)
    prompts.line.play()
    waits_s = fmean(request.line_wait_s for request in requests)
    assert waits_s == pytest.approx(0.1 * 0.7 / 0.3 / 2, rel=0.08)
