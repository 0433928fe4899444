"""The side-by-side benchmark: its checkpoints, its table, and a real engine in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from shared.engine import LLM
from tests.bench import bench_engine
from tests.bench.bench_engine_contenders import KINDS, Column, Contender, ContenderError, Kind
from tests.bench.bench_engine_table import Series, markdown
from tests.bench.make_model import SHAPES, make_model, random_tensors, tensor_shapes
from tests.support.models import TINY_TEXT
from tests.support.patched import ROUGH_LIMITS, patch_here

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 128}
COLUMN = Column(batch=2, prompt_tokens=5, steps=3)


def small(shape: str) -> dict[str, object]:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return {**SHAPES[shape], **SMALL, **heads}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("l100m")
    make_model(small("l100m"), folder, TINY_TEXT)
    return folder


@pytest.mark.parametrize(("shape", "millions"), [("q05b", 387), ("l100m", 100), ("l1b", 1039)])
def test_the_shapes_have_the_parameters_that_they_say(shape: str, millions: int) -> None:
    count = sum(torch.Size(size).numel() for size in tensor_shapes(SHAPES[shape]).values())
    assert round(count / 1e6) == millions


def test_equal_seeds_make_equal_weights_and_others_do_not() -> None:
    first, again, other = (random_tensors(small("q05b"), seed) for seed in (1, 1, 2))
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_engine_reads_a_made_checkpoint_and_its_tokenizer(shape: str, tmp_path: Path) -> None:
    make_model(small(shape), tmp_path, TINY_TEXT)
    llm = LLM(tmp_path)
    assert llm.tokenizer is not None
    assert llm.tokenizer.get_vocab_size() == llm.logits([3]).shape[1] == SHAPES[shape]["vocab_size"]


def test_an_engine_in_a_process_of_its_own_measures_and_leaves_no_process(
    model: Path, tmp_path: Path
) -> None:
    kind = Kind("penstock", "bf16")
    log = tmp_path / "log"
    with Contender(kind, Path(sys.executable), model, [COLUMN], 1, log) as contender:
        assert contender.tokens_per_s(COLUMN) > 0
        assert contender.tokens_per_s(Column(1, 9, 0)) > 0
        assert contender.peak_rss_mb > 0
        group = contender._process.pid
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def test_an_engine_that_ends_before_it_answers_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ContenderError, match=f"penstock-bf16 ended; see {log}"):
        Contender(KINDS[0], Path(sys.executable), tmp_path / "no-model", [COLUMN], 1, log)
    assert "does not exist" in log.read_text()


def test_the_benchmark_prints_a_table_and_keeps_every_reading(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "l100m").symlink_to(model)
    readings = tmp_path / "readings.json"
    options = [
        "--models",
        str(tmp_path),
        "--shapes",
        "l100m",
        "--only",
        "penstock-bf16",
        "--json",
        str(readings),
    ]
    sizes = ["--prefill", "8", "--decode", "2", "--prompt-tokens", "4", "--steps", "2", "--rounds", "2"]
    patch_here(monkeypatch, ROUGH_LIMITS)
    monkeypatch.setattr(
        sys, "argv", ["bench_engine", *options, *sizes, "--threads", "1", "--logs", str(tmp_path)]
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        bench_engine.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    shown = capsys.readouterr().out
    assert "| penstock-bf16 | " in shown
    assert "limits in this run" in shown.lower()
    (series,) = json.loads(readings.read_text())["shapes"]["l100m"]
    assert {name: len(rates) for name, rates in series["rates"].items()} == {"prefill 8": 2, "decode b2": 2}


def test_the_table_compares_with_the_best_peer_of_the_same_precision() -> None:
    def series(engine: str, precision: str, *rates: float) -> Series:
        name = f"{engine}-{precision}"
        return Series(name, engine, precision, "", 100.0, {"decode b1": list(rates)})

    table = markdown(
        "l100m",
        ["decode b1", "decode b8"],
        [
            series("penstock", "bf16", 150, 200),
            series("openvino", "bf16", 100, 90),
            series("vllm", "bf16", 60, 98),
            series("penstock", "int4", 300),
            series("openvino", "int8", 900),
        ],
    ).splitlines()
    assert table[2] == "| penstock-bf16 | 200 (175) | - | 100 |"
    assert table[-1] == "| **penstock-bf16 / best peer** | **2.00** (1.84) openvino | - |  |"
    assert not any("penstock-int4 /" in line for line in table)
