"""Options of `penstock capacity`: what is taken at its edges, and what is refused with a sentence."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.bench.plan.arrivals import MAX_VARIATION
from services.cli.bench.serve_options import MAX_RATE, MAX_SPEED
from services.cli.capacity import measured_comparison
from services.cli.capacity.capacity import main
from services.cli.capacity.capacity_options import (
    LEAST_PLAYED_REQUESTS,
    MAX_HOSTS,
    MAX_REGIONS,
    MAX_WATCH_S,
    MAX_WINDOW_S,
    checked_capacity_args,
    given_counts,
)
from services.cli.capacity.measured_comparison import MeasuredFile
from services.cli.capacity.prediction import MAX_PLAYED_REQUESTS
from services.cli.capacity.profile import MAX_ROLE_INSTANCES, InstanceCounts
from shared.errors import InvalidRequest
from tests.unit.services.cli.capacity.deployments import document, profile_file
from tests.unit.services.cli.capacity.test_capacity_page import measured_document


def plan(*argv: str) -> argparse.Namespace:
    return checked_capacity_args(("plan", "--profile", "p.toml", *argv))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "pass --rate R or --trace KIND:FILE"),
        (("--rate", "-1"), "is not between 0"),
        (("--rate", str(MAX_RATE * 2)), f"and {MAX_RATE:g}"),
        (("--rate", "nan"), "is not a finite number"),
        (("--rate", "1", "--trace", "azure:x"), "not allowed with argument"),
        (("--trace", "prompts:x"), "write mooncake:FILE or azure:FILE"),
        (("--trace", "azure:"), "write mooncake:FILE or azure:FILE"),
        (("--rate", "1", "--variation", "21"), f"is not between 0 and {MAX_VARIATION:g}"),
        (("--rate", "1", "--cached", "1.1"), "is not between 0 and 1"),
        (("--rate", "1", "--hosts", "0"), f"from 1 to {MAX_HOSTS}"),
        (("--rate", "1", "--hosts", str(MAX_HOSTS + 1)), f"from 1 to {MAX_HOSTS}"),
        (("--rate", "1", "--regions", str(MAX_REGIONS + 1)), f"from 1 to {MAX_REGIONS}"),
        (("--rate", "1", "--requests", str(LEAST_PLAYED_REQUESTS - 1)), f"from {LEAST_PLAYED_REQUESTS} to"),
        (("--rate", "1", "--requests", str(MAX_PLAYED_REQUESTS + 1)), f"to {MAX_PLAYED_REQUESTS}"),
        (("--rate", "1", "--window", str(MAX_WINDOW_S + 1)), f"and {MAX_WINDOW_S:g}"),
        (("--rate", "1", "--speed", str(MAX_SPEED + 1)), f"and {MAX_SPEED:g}"),
        (("--rate", "1", "--input-tokens", "many"), "is no length: write 256"),
        (("--rate", "1", "--instances", "gpu=1"), "roles are gateway, prefill, decode"),
        (("--rate", "1", "--instances", "decode=0"), f"from 1 to {MAX_ROLE_INSTANCES}"),
        (("--rate", "1", "--instances", f"decode={MAX_ROLE_INSTANCES + 1}"), f"to {MAX_ROLE_INSTANCES}"),
        (("--rate", "1", "--instances", "decode=1", "--instances", "decode=2"), "names a role twice"),
        (("--rate", "1", "--slo", "fast"), "is no objective: write"),
        (("--rate", "1", "--slo", "errors<1%"), "cannot be predicted"),
        (("--rate", "1", "--slo", "ttua_p50<1s"), "cannot be predicted"),
        (("--rate", "1", "--slo", "chats:ttft_p50<1s"), "cannot be predicted"),
    ],
)
def test_a_wrong_option_is_a_sentence(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(*argv)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_watch_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    def watch(seconds: float) -> argparse.Namespace:
        return checked_capacity_args(("profile", "--out", "x", "--watch", str(seconds)))

    assert watch(MAX_WATCH_S).watch == MAX_WATCH_S
    with pytest.raises(SystemExit):
        watch(MAX_WATCH_S + 1)
    assert f"is longer than {MAX_WATCH_S:g} s" in capsys.readouterr().err


def test_options_are_taken_at_their_edges() -> None:
    args = plan(
        *("--rate", "0", "--variation", "20", "--cached", "1", "--hosts", str(MAX_HOSTS)),
        *("--regions", str(MAX_REGIONS), "--instances", f"decode={MAX_ROLE_INSTANCES}"),
    )
    assert given_counts(args) == InstanceCounts(1, 1, MAX_ROLE_INSTANCES)
    assert given_counts(plan("--rate", "1")) is None


def answered(folder: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    few = ("--requests", str(LEAST_PLAYED_REQUESTS))
    code = main(["plan", "--profile", str(profile_file(folder)), *few, *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.thorough(but="0 | 12 | 0.0001")
@pytest.mark.parametrize("rate", ["0", "0.0001", "12", "100000"])
def test_any_rate_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str) -> None:
    code, said, _ = answered(tmp_path, capsys, "--rate", rate, "--slo", "ttft_p99<600ms")
    assert "These figures are predictions. They leave out:" in said
    assert code == (rate == "100000")
    assert json.loads(answered(tmp_path, capsys, "--rate", rate, "--json")[1])["predicted"]


def test_too_few_instances_are_told_and_the_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, _ = answered(tmp_path, capsys, "--rate", "20", "--instances", "prefill=9")
    assert code == 1
    assert "overloaded: 1 decode instance cannot keep up with 20 requests/s" in said


def test_what_no_instances_can_keep_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = answered(tmp_path, capsys, "--rate", "1", "--slo", "ttft_p99<100ms")
    assert code == 1
    assert "no counts of up to 1024 a role were found that keep everything: ttft_p99<100ms is missed" in said


def test_regions_and_prices_multiply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("machine_per_hour = 0.5\n")
    one, three = (
        json.loads(
            answered(
                tmp_path, capsys, "--rate", "6", "--prices", str(prices), "--regions", regions, "--json"
            )[1]
        )
        for regions in ("1", "3")
    )
    assert one["cost_per_hour"] == one["hosts"] * 0.5
    assert three["cost_per_hour"] == 3 * one["cost_per_hour"]
    assert three["instances"]["decode"] == 3 * one["instances"]["decode"]


def test_prices_without_a_machine_s_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("output_per_million = 0.5\n")
    code, _, error = answered(tmp_path, capsys, "--rate", "6", "--prices", str(prices))
    assert (code, "has no machine_per_hour" in error) == (2, True)


def test_a_measured_load_of_another_rate_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps(measured_document()))
    _, said, _ = answered(tmp_path, capsys, "--rate", "1", "--measured", str(path))
    assert "note: the measured load was offered 2/s, the prediction is for 1/s" in said
    path.write_text(json.dumps({**measured_document(), "options": {"rate": None}}))
    _, said, _ = answered(tmp_path, capsys, "--rate", "1", "--measured", str(path))
    assert "note: the measured load was no open loop" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no JSON ("),
        ("[" * 100_000, "is no JSON ("),
        ("[]", "is no JSON object"),
        ("{}", "has no summary"),
        ('{"summary": {"latencies_ms": 3}}', "has no summary.latencies_ms"),
        ('{"summary": {"latencies_ms": {}, "rates": {}}}', "has no summary.latencies_ms.ttft"),
        (
            '{"summary": {"latencies_ms": {"ttft": {"p50": {"value": "x"}}}, "rates": {}}}',
            "summary.latencies_ms.ttft.p50.value is 'x'",
        ),
        (
            '{"summary": {"latencies_ms": {"ttft": {"p50": {"value": NaN}}}, "rates": {}}}',
            "summary.latencies_ms.ttft.p50.value is nan",
        ),
    ],
)
def test_a_measured_load_that_is_none_names_the_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "load.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as error:
        MeasuredFile.read(path)
    assert says in str(error.value)


def test_files_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = answered(tmp_path, capsys, "--rate", "6", "--measured", str(tmp_path / "none"))
    assert (code, "cannot be read" in error) == (2, True)
    assert main(["plan", "--rate", "1", "--profile", str(tmp_path / "none")]) == 2


def test_a_measured_load_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps(measured_document()))
    size = path.stat().st_size
    monkeypatch.setattr(measured_comparison, "MAX_MEASURED_BYTES", size)
    assert MeasuredFile.read(path).rate == 2
    monkeypatch.setattr(measured_comparison, "MAX_MEASURED_BYTES", size - 1)
    with pytest.raises(InvalidRequest, match=f"larger than {size - 1} bytes"):
        MeasuredFile.read(path)


def test_a_load_that_was_cut_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps({**measured_document(), "cut_calls": 0}))
    said = "the measured load was cut: calls that take long are fewer"
    assert MeasuredFile.read(path).notes(2.0, 0.0) == [said]
    path.write_text(json.dumps({**measured_document(), "cut_calls": None}))
    assert MeasuredFile.read(path).notes(2.0, 0.0) == []


def test_prompts_that_a_cache_knew_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    told: dict[str, Any] = measured_document()
    told["summary"]["token_origins"] = {"prompt_computed": 300, "prompt_cached": 100}
    path.write_text(json.dumps(told))
    (note,) = MeasuredFile.read(path).notes(2.0, 0.0)
    assert note.startswith(
        "25% of the measured prompts was found in caches, the prediction has 0%: pass --cached 0.25"
    )
    assert MeasuredFile.read(path).notes(2.0, 0.29) == []
    told["summary"]["token_origins"] = {"prompt_computed": 300, "prompt_cached": None}
    path.write_text(json.dumps(told))
    assert MeasuredFile.read(path).notes(2.0, 1.0) == []


def test_gpus_that_the_hosts_do_not_have_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = document()
    tables["host"]["gpus"] = tables["decode"]["gpus"] = 1
    profile_file(tmp_path, json.dumps(tables))
    path = str(tmp_path / "profile.json")
    main(
        [
            "plan",
            "--profile",
            path,
            "--rate",
            "1",
            "--hosts",
            "1",
            "--instances",
            "decode=2",
            "--requests",
            "50",
        ]
    )
    assert "note: 2 GPUs are wanted, and 1 hosts have fewer" in capsys.readouterr().out
