"""From a service's configuration to an engine, or to a sentence that says what cannot be."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from shared.config.fields import ConfigError
from shared.engine import Engine
from shared.engine.affinity import MAX_CPU
from shared.engine.core_arbiter import WorkClass
from shared.engine.native.library import library
from shared.engine.sampling.grammar import Grammars
from shared.errors import InvalidRequest, PenstockError
from shared.process.cores import usable_cores
from shared.sampling.parameters import Grammar
from shared.worker.config import EngineServiceConfig
from shared.worker.driver import EngineDriver
from shared.worker.engine_builder import build_engine
from shared.worker.host import EngineSource
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.engine import GREEDY, admit
from tests.support.grammar import save_model_with_tokenizer

native_only = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)


def build(model_dir: Path, *, transfers_kv: bool = False, **fields: Any) -> Engine:
    config = EngineServiceConfig(**{"kv_blocks": 8, "max_sequences": 4, **fields})
    return build_engine(config, model_dir, "m", work_class=WorkClass.DECODE, transfers_kv=transfers_kv)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"max_batch_tokens": 4, "max_sequences": 8}, "below max_sequences"),
        ({"quantization": "fp8"}, "device cuda"),
        ({"offload_dir": "/tmp"}, "go together"),
        ({"tensor_parallel": 2, "backend": "native"}, "one process"),
        ({"cpus": "one"}, "list like 0,2-3"),
        ({"cpus": "0", "threads": 2}, "as many cpus"),
        ({"cpus": str(MAX_CPU)}, str(MAX_CPU)),
    ],
)
def test_settings_that_cannot_be_end_in_one_sentence(
    model_dir: Path, fields: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        build(model_dir, **fields)


@native_only
def test_workers_of_one_folder_share_its_cores(model_dir: Path, tmp_path: Path) -> None:
    one, other = (build(model_dir, cores_dir=str(tmp_path)) for _ in range(2))
    admit(other, "a", [1, 2, 3], GREEDY)
    other.step()
    assert one.config.threads == usable_cores()
    assert one.threads_now == max(1, usable_cores() // 2)
    one.close()
    other.close()


@native_only
def test_a_worker_that_has_no_folder_for_it_computes_with_all_cores(model_dir: Path, tmp_path: Path) -> None:
    with capture_logs() as logs:
        engine = build(model_dir, cores_dir=str(tmp_path / "missing"))
    assert engine.threads_now == usable_cores()
    assert [entry["event"] for entry in logs] == ["cores_not_shared"]
    engine.close()


def test_a_worker_with_a_number_of_threads_has_that_many_and_no_slot(model_dir: Path, tmp_path: Path) -> None:
    engine = build(model_dir, threads=3, cores_dir=str(tmp_path))
    assert (engine.config.threads, engine.threads_now) == (3, 3)
    assert list(tmp_path.iterdir()) == []
    engine.close()


def test_a_worker_on_torch_takes_half_of_the_cores(model_dir: Path, tmp_path: Path) -> None:
    engine = build(model_dir, backend="torch", cores_dir=str(tmp_path))
    assert engine.threads_now == max(1, usable_cores() // 2)
    assert list(tmp_path.iterdir()) == []
    engine.close()


@native_only
def test_packed_weights_go_to_the_folder_that_is_named(model_dir: Path, tmp_path: Path) -> None:
    build(model_dir, weight_cache_dir=str(tmp_path)).close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_packed_weights_go_nowhere_where_none_may_be_kept(model_dir: Path, tmp_path: Path) -> None:
    build(model_dir, weight_cache_dir=str(tmp_path), weight_cache_mb=0).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_ends_in_one_sentence(model_dir: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU"):
        build(model_dir, device="cuda")


def test_a_worker_reads_the_tokenizer_of_its_grammars_before_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(save_model_with_tokenizer(tmp_path))
    monkeypatch.setattr(Grammars, "_load_tokenizer", None)
    assert engine.grammars.compile(Grammar("regex", "a+")).eos_ids
    engine.close()


def test_a_worker_whose_model_has_no_tokenizer_serves_without_grammars(model_dir: Path) -> None:
    engine = build(model_dir)
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json"):
        engine.grammars.compile(Grammar("regex", "a+"))
    engine.close()


def test_kv_that_lies_in_several_processes_cannot_be_transferred(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set it to 1"):  # before anything is read
        build(tmp_path / "missing", transfers_kv=True, tensor_parallel=2)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="missing"):
        build(tmp_path / "missing")


async def test_an_engine_that_was_loaded_beforehand_still_stays_on_its_cpus(model_dir: Path) -> None:
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    source = EngineSource(lambda: build(model_dir, cpus=str(cpu)))
    driver: EngineDriver[None] = EngineDriver("test-engine", source.take_engine, PrefixMirror(), lambda: None)
    await source.preload()
    await driver.load_engine()
    assert await driver.between_steps(lambda _: os.sched_getaffinity(0)) == {cpu}
    assert os.sched_getaffinity(0) == allowed
    assert await asyncio.to_thread(os.sched_getaffinity, 0) == allowed
    await driver.close_engine()
