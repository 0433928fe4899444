"""What is derived from a call's times, and that it crosses to another process unchanged."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.run.call_record import EXPECTED, CallRecord
from services.cli.bench.targets.target import CallFacts, CallOutcome
from tests.unit.services.cli.bench.records import call_record


def test_a_record_crosses_to_another_process_unchanged() -> None:
    record = call_record(5, at_s=1.5, phases_ms={"decode": 2.5}, drafted_tokens=3)
    record.useful_s = 1.7
    back = CallRecord.of_json(json.loads(json.dumps(record.as_json(), allow_nan=False)))
    assert back == record


def test_what_is_not_known_crosses_as_null() -> None:
    record = call_record()
    record.ended_s = math.nan
    row = json.loads(json.dumps(record.as_json(), allow_nan=False))
    assert (row["ended_s"], row["useful_s"]) == (None, None)
    assert str(asdict(CallRecord.of_json(row))) == str(asdict(record))


def test_tokens_are_those_of_the_server_else_of_pieces() -> None:
    record = call_record(gaps_s=(0.1, 0.1))
    record.facts.completion_tokens = 9
    assert (record.output_tokens, record.tpot_s) == pytest.approx((9, 0.2 / 8))
    record.facts = CallFacts()
    record.piece_tokens = 5
    assert record.output_tokens == 5
    record.piece_tokens = 0
    assert (record.output_tokens, record.tpot_s) == pytest.approx((3, 0.1))


def test_one_delivery_has_no_time_of_a_token() -> None:
    assert math.isnan(call_record(gaps_s=()).tpot_s)
    nothing = call_record()
    nothing.pieces_s = []
    assert math.isnan(nothing.ttft_s)
    assert nothing.gaps_s == []


@pytest.mark.parametrize("conduct", Conduct)
@pytest.mark.parametrize("outcome", CallOutcome)
def test_an_end_is_an_error_unless_the_client_brought_it_about(
    conduct: Conduct, outcome: CallOutcome
) -> None:
    is_error = call_record(conduct=conduct, outcome=outcome).is_error
    assert is_error == (outcome is not CallOutcome.SHED and outcome not in EXPECTED[conduct])
    assert call_record(conduct=conduct, outcome=CallOutcome.FAILED).is_error
    assert not call_record(conduct=conduct).is_error
