from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.bench.engine import COLUMNS
from shared.engine.measuring import benchmark
from tests.support.models import target_model
from tests.support.patched import ROUGH_LIMITS, patch_here, patched

PROMISED = (
    "batch",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "step_ms",
    "overhead_ms",
    "bandwidth_share",
    "flop_share",
    "peak_rss_mb",
)
QUICK = ("--prompt-tokens", "24", "--output-tokens", "6", "--repeats", "1", "--threads", "1")


HERE = pytest.mark.usefixtures("measured_here")
"""Of what is measured: a process of its own, which takes longest to start, is for a few tests to see."""


def bench(*argv: str) -> int:
    return main(["bench", "engine", *argv])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def rough_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def run_rough(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        *python, benchmark = command
        return run([*python, *patched(benchmark, ROUGH_LIMITS)], **options)

    monkeypatch.setattr(subprocess, "run", run_rough)


@pytest.fixture
def measured_here(rough_limits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_here(monkeypatch, ROUGH_LIMITS)

    def run_here(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[-1] == benchmark.__name__
        with monkeypatch.context() as patch, redirect_stdout(io.StringIO()) as out:
            patch.setattr(sys, "stdin", io.StringIO(options["input"]))
            code = benchmark.main()
        return subprocess.CompletedProcess(command, code, out.getvalue())

    monkeypatch.setattr(subprocess, "run", run_here)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--batch", "0"], "'0' is not a whole number of 1 or more"),
        (["--batch", "1,x"], "'x' is not a whole number"),
        (["--batch", ""], "'' is not a whole number"),
        (["--prompt-tokens", "0"], "'0' is not a whole number of 1 or more"),
        (["--threads", "-1"], "'-1' is not a whole number"),
        (["--quant", "int2"], "invalid choice: 'int2'"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench("--model", "anything", *argv)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_model_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench()
    assert caught.value.code == 2
    assert "--model" in capsys.readouterr().err


def test_a_model_that_does_not_exist_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert bench("--model", str(tmp_path / "none")) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "does not exist; give a Hugging Face model directory" in err


@HERE
def test_a_prompt_longer_than_the_model_is_one_sentence_and_exit_code_2(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--model", str(model), "--prompt-tokens", "600", "--batch", "1") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "do not fit the model's 512 positions; ask for fewer" in err


@HERE
def test_an_engine_that_cannot_be_is_one_sentence_and_exit_code_2(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--model", str(model), *QUICK, "--batch", "1", "--kv-dtype", "fp8") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "fp8" in err


def test_json_has_a_row_for_each_batch_with_every_promised_figure(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--model", str(model), *QUICK, "--batch", "1,3", "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [row["batch"] for row in report["rows"]] == [1, 3]
    for row in report["rows"]:
        assert all(row[name] > 0 for name in PROMISED)
        assert row["step_ms"] > row["overhead_ms"]
        assert row["peak_rss_mb"] > row["weight_mb"] > 0


@HERE
def test_every_option_reaches_the_engine(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dtype", "float32", "--quant", "none", "--kv-dtype", "auto", "--backend", "torch"]
    options += ["--device", "cpu", "--deterministic", "--max-batch-tokens", "16"]
    assert bench("--model", str(model), *QUICK, "--batch", "1", *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["engine"] == {
        "model_dir": str(model),
        "threads": 1,
        "dtype": "float32",
        "quantization": "none",
        "kv_dtype": "auto",
        "backend": "torch",
        "device": "cpu",
        "deterministic": True,
        "max_batch_tokens": 16,
    }


@HERE
def test_without_json_it_prints_a_table_and_how_it_was_measured(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--model", str(model), *QUICK, "--batch", "2", "--quant", "int8") == 0
    head, row, *notes = capsys.readouterr().out.splitlines()
    assert head.split() == list(COLUMNS)
    assert row.split()[0] == "2"
    assert any("prefill: one prompt alone" in line for line in notes)


def test_bench_without_a_subject_or_with_an_unknown_one_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench"]) == 2
    assert main(["bench", "toaster"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "engine" in err
    assert "'toaster'" in err
