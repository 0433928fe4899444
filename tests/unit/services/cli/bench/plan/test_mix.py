"""Mixes by weight, conducts by share, arrivals by rate: all of them repeatable."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from services.cli.bench.plan.arrivals import gamma_arrivals
from services.cli.bench.plan.conduct import (
    AMOUNTS,
    MAX_AMOUNT,
    MAX_AMOUNTS,
    Conduct,
    ConductShare,
    spread_conduct,
)
from services.cli.bench.plan.conversations import ConversationSource
from services.cli.bench.plan.lengths import MAX_SPREAD, TokenLengths
from services.cli.bench.plan.mix import DialogueMix
from services.cli.bench.plan.mooncake import MooncakeSource
from services.cli.bench.plan.prompt_writer import MAX_PROMPT_TOKENS
from services.cli.bench.plan.synthetic import SyntheticSource
from shared.errors import InvalidRequest
from tests.unit.services.cli.bench.plan.texts import writer

ONE = TokenLengths(1, 1)


def prompts(tmp_path: Path, *lines: str) -> ConversationSource:
    (tmp_path / "prompts.txt").write_text("\n".join(lines))
    return ConversationSource(tmp_path / "prompts.txt", writer())


def test_sources_come_by_weight_and_the_same_again(tmp_path: Path) -> None:
    mix = DialogueMix(
        ((3.0, SyntheticSource(writer(), ONE, ONE)), (1.0, prompts(tmp_path, "one", "two"))), writer()
    )
    found = list(islice(mix.endless(), 2000))
    assert [each.number for each in found] == list(range(2000))
    counts = Counter(each.source for each in found)
    assert counts["synthetic"] / 2000 == pytest.approx(0.75, abs=0.04)
    assert found == list(islice(mix.endless(), 2000))


def test_a_source_that_ends_begins_anew_and_says_how_often(tmp_path: Path) -> None:
    mix = DialogueMix(((1.0, prompts(tmp_path, "one", "two")),), writer())
    found = [(each.turns[0].text, each.lap) for each in islice(mix.endless(), 5)]
    assert found == [("one", 0), ("two", 0), ("one", 1), ("two", 1), ("one", 2)]


def test_a_source_of_nothing_is_refused(tmp_path: Path) -> None:
    mix = DialogueMix(((1.0, prompts(tmp_path)),), writer())
    with pytest.raises(InvalidRequest, match="no dialogue"):
        next(mix.endless())


def test_a_replay_is_of_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1500, "input_length": 5, "output_length": 2, "hash_ids": [0]}\n')
    trace = MooncakeSource(path, writer())
    assert [each.at_s for each in DialogueMix(((1.0, trace),), writer()).replayed()] == [1.5]
    assert next(DialogueMix(((1.0, trace),), writer()).endless()).at_s is None
    for sources in (((1.0, prompts(tmp_path, "one")),), ((1.0, trace), (1.0, trace))):
        with pytest.raises(InvalidRequest, match="a replay needs the times of one trace"):
            next(DialogueMix(sources, writer()).replayed())


def test_conducts_have_their_shares_and_amounts() -> None:
    shares = [ConductShare.read(Conduct.CANCEL, "20%@3"), ConductShare.read(Conduct.STALL, "10%")]
    mix = DialogueMix(((1.0, SyntheticSource(writer(), ONE, ONE)),), writer(), shares)
    found = list(islice(mix.endless(), 3000))
    counts = Counter((each.conduct, each.amount) for each in found)
    assert counts[Conduct.CANCEL, 3] / 3000 == pytest.approx(0.2, abs=0.03)
    assert counts[Conduct.STALL, 8] / 3000 == pytest.approx(0.1, abs=0.03)
    assert counts[Conduct.WELL, 0] / 3000 == pytest.approx(0.7, abs=0.03)


def test_all_or_none_misbehave() -> None:
    hurried = [ConductShare(Conduct.HURRIED, 1.0, 5)]
    assert {spread_conduct(hurried, number, 0.3) for number in range(100)} == {(Conduct.HURRIED, 5)}
    assert {spread_conduct([], number, 0.3) for number in range(100)} == {(Conduct.WELL, 0)}


@pytest.mark.parametrize("offset", [0.0, 0.4, 0.999])
def test_clients_in_a_row_have_their_shares(offset: float) -> None:
    shares = [ConductShare(conduct, 0.1, 1) for conduct in (Conduct.CANCEL, Conduct.STALL, Conduct.HURRIED)]
    found = [spread_conduct(shares, number, offset)[0] for number in range(400)]
    for begin in range(380):
        counts = Counter(found[begin : begin + 20])
        assert all(1 <= counts[share.conduct] <= 3 for share in shares)


def test_an_oversized_prompt_has_its_length_whatever_the_scale() -> None:
    small = writer(length_scale=0.01)
    mix = DialogueMix(
        ((1.0, SyntheticSource(small, ONE, ONE)),), small, [ConductShare(Conduct.OVERSIZED, 1.0, 5000)]
    )
    assert len(next(mix.endless()).turns[0].text) == pytest.approx(20_000, rel=0.01)


def test_slow_schemas_are_a_dialogue_s_own_and_other_ones_with_other_texts() -> None:
    shares = [ConductShare.read(Conduct.SCHEMA, "100%@30")]

    def schemas(text_seed: int) -> list[str]:
        own = writer(text_seed=text_seed)
        mix = DialogueMix(((1.0, SyntheticSource(own, ONE, ONE)),), own, shares)
        return [each.json_schema for each in islice(mix.endless(), 3)]

    assert {len(json.loads(schema)["properties"]) for schema in schemas(0)} == {30}
    assert len({*schemas(0), *schemas(1)}) == 6
    assert schemas(0) == schemas(0)


def test_no_more_passages_are_asked_for_than_a_request_may_have() -> None:
    assert ConductShare.read(Conduct.RETRIEVE, f"1%@{MAX_AMOUNTS[Conduct.RETRIEVE]}").amount == 16
    with pytest.raises(ValueError, match="AMOUNT is 16 at most"):
        ConductShare.read(Conduct.RETRIEVE, "1%@17")


@pytest.mark.parametrize("text", ["5", "x%", "-1%", "101%", "5%@", "5%@x", "nan%"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 5%"):
        ConductShare.read(Conduct.CANCEL, text)


def test_a_share_takes_the_largest_amount_and_a_usual_one() -> None:
    with pytest.raises(ValueError, match="AMOUNT is 1,000,000 at most"):
        ConductShare.read(Conduct.CANCEL, f"5%@{MAX_AMOUNT + 1}")
    assert ConductShare.read(Conduct.CANCEL, f"5%@{MAX_AMOUNT}").amount == MAX_AMOUNT
    assert ConductShare.read(Conduct.HURRIED, "2.5%") == ConductShare(
        Conduct.HURRIED, 0.025, AMOUNTS[Conduct.HURRIED]
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "5-4",
        "-5",
        "5-",
        "x",
        "5~0",
        f"5~{MAX_SPREAD + 1}",
        "0~1",
        f"{MAX_PROMPT_TOKENS + 1}",
        "5~nan",
    ],
)
def test_a_length_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 256, 128-512"):
        TokenLengths.read(text)


def test_lengths_are_drawn_from_their_ranges() -> None:
    random = Random(2)
    assert TokenLengths.read(str(MAX_PROMPT_TOKENS)).draw(random) == MAX_PROMPT_TOKENS
    drawn = [TokenLengths.read("10-20").draw(random) for _ in range(500)]
    assert set(drawn) == set(range(10, 21))
    skewed = sorted(TokenLengths.read("200~0.5").draw(random) for _ in range(2001))
    assert skewed[1000] == pytest.approx(200, rel=0.1)
    assert skewed[1683] / skewed[1000] == pytest.approx(math.exp(0.5), rel=0.15)


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0, 2.0])
def test_arrivals_have_their_rate_and_variation(variation: float) -> None:
    times = list(islice(gamma_arrivals(4.0, variation, Random(3)), 20_001))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation / mean == pytest.approx(variation, abs=0.07 * max(1.0, variation))


def test_a_mark_is_a_dialogue_s_own_and_the_same_again() -> None:
    sources = ((1.0, SyntheticSource(writer(), ONE, ONE)),)
    marks = [each.mark for each in islice(DialogueMix(sources, writer(), marked=True).endless(), 20)]
    assert len(set(marks)) == 20
    assert marks == [each.mark for each in islice(DialogueMix(sources, writer(), marked=True).endless(), 20)]
    assert next(DialogueMix(sources, writer()).endless()).mark == ""
