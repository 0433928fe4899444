"""Who is named to a prefill worker as having more of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from services.gateway.fleet.prefix_lender import LEAST_MORE_BLOCKS, prefix_lender
from shared.messages import NO_LENDER, Heartbeat, PrefixLender
from tests.integration.gateway_peers import heartbeat
from tests.support.block_hashes import numbered_hashes

NAMES = tuple(numbered_hashes(range(1, 65)))
LAYOUT = heartbeat("prefill", "prefill-0").worker.layout


@dataclass(frozen=True, slots=True)
class View:
    heartbeat: Heartbeat
    cached: int

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        return min(self.cached, len(block_hashes))


def view(number: int, cached: int, **fields: object) -> View:
    return View(heartbeat("prefill", f"prefill-{number}", **fields), cached)


def test_the_worker_with_most_of_the_prompt_is_named_with_what_is_known_of_it() -> None:
    views = [view(0, 3), view(1, 20), view(2, 40, tokens_per_s=500.0, queued_tokens=7)]
    incarnation = views[2].heartbeat.incarnation
    assert prefix_lender(views, "prefill-0", LAYOUT, NAMES) == PrefixLender(
        "prefill-2", incarnation, 40, 7, 500.0
    )


def test_of_equals_the_one_with_least_in_its_queue_is_named() -> None:
    views = [view(0, 0), view(1, 40, queued_tokens=90), view(2, 40, queued_tokens=10)]
    assert prefix_lender(views, "prefill-0", LAYOUT, NAMES).instance == "prefill-2"


@pytest.mark.parametrize(("more", "named"), [(LEAST_MORE_BLOCKS - 1, ""), (LEAST_MORE_BLOCKS, "prefill-1")])
def test_nobody_is_named_who_has_hardly_more_than_the_chosen_worker(more: int, named: str) -> None:
    views = [view(0, 10), view(1, 10 + more)]
    assert prefix_lender(views, "prefill-0", LAYOUT, NAMES).instance == named


def test_nobody_is_named_whose_kv_is_of_another_layout_or_who_is_alone() -> None:
    assert prefix_lender([view(0, 0), view(1, 40)], "prefill-0", "another", NAMES) == NO_LENDER
    assert prefix_lender([view(0, 40)], "prefill-0", LAYOUT, NAMES) == NO_LENDER
