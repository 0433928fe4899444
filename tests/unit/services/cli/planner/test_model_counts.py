"""A page of a gateway's metrics by model, and windows made of two of them."""

from __future__ import annotations

import pytest

from services.cli.planner.model_counts import (
    MAX_COUNTED_MODELS,
    ArrivalCounter,
    model_counts,
    waiting_requests,
)
from shared.errors import Unavailable
from tests.unit.services.cli.planner.sights import counted

PAGE = """\
# TYPE penstock_requests counter
penstock_requests_total{outcome="finished",model="large",endpoint="chat",tenant="a"} 7
penstock_requests_total{outcome="shed",model="large",endpoint="chat",tenant="b"} 3
penstock_requests_total{outcome="failed",model="",endpoint="chat",tenant=""} 9
# TYPE penstock_requests_running gauge
penstock_requests_running{model="large"} 2
# TYPE penstock_requests_waiting gauge
penstock_requests_waiting{model="large"} 1
# TYPE penstock_prompt_tokens counter
penstock_prompt_tokens_total{model="large"} 700
# TYPE penstock_tenant_tokens counter
penstock_tenant_tokens_total{tenant="a",model="large",kind="cached"} 70
penstock_tenant_tokens_total{tenant="a",model="large",kind="prompt"} 700
# TYPE penstock_time_to_first_token_seconds histogram
penstock_time_to_first_token_seconds_bucket{model="large",prompt_tokens="00128",le="+Inf"} 5
penstock_time_to_first_token_seconds_count{model="large",prompt_tokens="00128"} 5
penstock_time_to_first_token_seconds_sum{model="large",prompt_tokens="00128"} 1
penstock_time_to_first_token_seconds_count{model="small",prompt_tokens="inf"} 1
"""
FIRST = ("gateway-0", 1)


def test_a_page_is_read_by_model() -> None:
    found = model_counts(PAGE)
    large = found["large"]
    assert set(found) == {"large", "small"}
    assert (large.ended, large.live, large.waiting, large.answered) == (10.0, 3.0, 1.0, 5.0)
    assert (large.prompt_tokens, large.cached_tokens, large.lengths) == (700.0, 70.0, {128.0: 5.0})
    assert found["small"].lengths == {float("inf"): 1.0}


def test_what_is_no_page_of_metrics_is_refused() -> None:
    with pytest.raises(Unavailable, match="none of Prometheus"):
        model_counts('penstock_requests_total{model="large" 7')


def test_models_beyond_the_most_are_left_out() -> None:
    page = "".join(
        f'penstock_requests_running{{model="m{number}"}} 1\n' for number in range(MAX_COUNTED_MODELS + 5)
    )
    assert len(model_counts("# TYPE penstock_requests_running gauge\n" + page)) == MAX_COUNTED_MODELS


def test_who_came_is_who_ended_and_who_is_there_more() -> None:
    counter = ArrivalCounter()
    assert counter.windows(10.0, {FIRST: counted(5.0)}) == {}
    found = counter.windows(20.0, {FIRST: counted(8.0, waiting=2.0)})["large"]
    assert (found.requests, found.rate, found.answered, found.prompt_tokens) == (5.0, 0.5, 3.0, 768.0)
    assert found.prompt_lengths == {512.0: 3.0}


def test_a_gateway_that_started_anew_counts_from_its_start_and_one_that_is_new_here_from_now() -> None:
    counter = ArrivalCounter()
    counter.windows(10.0, {FIRST: counted(50.0)})
    again = counter.windows(20.0, {("gateway-0", 2): counted(4.0), ("gateway-1", 1): counted(1000.0)})
    assert again["large"].requests == 4.0
    both = counter.windows(30.0, {("gateway-0", 2): counted(5.0), ("gateway-1", 1): counted(1002.0)})
    assert both["large"].requests == 3.0


def test_those_that_wait_are_summed_over_gateways() -> None:
    pages = {FIRST: counted(5.0, waiting=2.0), ("gateway-1", 1): counted(1.0, waiting=1.0)}
    assert waiting_requests(pages) == {"large": 3.0}
