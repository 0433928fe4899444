"""Whether a stack finds memory, for real models and settings; what is left is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.memory_check import (
    MB,
    MIB,
    SERVICE_MB,
    SHARED_MB,
    MemoryNeed,
    TooLittleMemory,
    check_memory,
    memory_need,
)
from services.launcher.model_check import check_models
from services.launcher.options import SHIPPED_DRAFT, parse_options
from shared.engine.draft_head.shipped import SHIPPED_HEAD
from shared.engine.loading.weight_files import weight_files
from shared.process.memory_room import MemoryRoom
from shared.roles import ROLES
from shared.text.default_model import packaged_file
from shared.text.model_source import DEMO_MODEL

MODEL = ("--model", str(DEMO_MODEL))
BASE_MB = SHARED_MB + sum(SERVICE_MB.values()) - SERVICE_MB["speculator"]


def stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))


def need_of(*argv: str, environ: dict[str, str] | None = None) -> MemoryNeed:
    options = parse_options([*MODEL, *argv], environ or {})
    return memory_need(options, *check_models(options, print))


def check(available_bytes: int, *argv: str, environ: dict[str, str] | None = None) -> list[str]:
    """What is told of a stack that has so much; raises what it is refused with."""
    options, told = parse_options([*MODEL, *argv], environ or {}), list[str]()
    room = MemoryRoom(available_bytes, "on this machine")
    check_memory(options, *check_models(options, print), told.append, room=lambda: room)
    return told


def test_every_role_has_a_size() -> None:
    assert set(SERVICE_MB) == set(ROLES)


def test_processes_weights_and_pools_are_counted() -> None:
    need = need_of("--decode", "2")
    assert need.services_bytes == (BASE_MB + SERVICE_MB["decode"]) * MB
    assert need.weights_bytes == stored_bytes(DEMO_MODEL)  # one file for all three
    assert need.pools == (("prefill", 1, 256 * MIB), ("decode", 2, 256 * MIB))
    assert need.full_bytes == need.services_bytes + need.weights_bytes + 3 * 256 * MIB


def test_a_draft_head_has_weights_in_every_decode_worker(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(4 * MB))
    heads = need_of("--decode", "2", environ={"PENSTOCK_DECODE_DRAFT_HEAD": str(tmp_path)})
    assert heads.weights_bytes - need_of("--decode", "2").weights_bytes == 2 * MB


@pytest.mark.parametrize(
    ("environ", "heads"),
    [
        ({}, 2),
        ({"PENSTOCK_DECODE_DRAFT_HEAD": "none"}, 0),
        ({"PENSTOCK_DECODE_DEVICE": "cuda"}, 0),
        ({"PENSTOCK_DECODE_TENSOR_PARALLEL": "2"}, 0),
    ],
)
def test_the_head_that_ships_counts_where_it_is_loaded(environ: dict[str, str], heads: int) -> None:
    file = packaged_file()
    if file is None:
        pytest.skip("the model that it is for is not installed")
    model = ("--model", str(file), "--decode", "2")
    options = parse_options([*model], environ)
    target, _ = check_models(options, print)
    without = parse_options([*model], environ | {"PENSTOCK_DECODE_DRAFT_HEAD": "none"})
    counted = (
        memory_need(options, target, None).weights_bytes - memory_need(without, target, None).weights_bytes
    )
    assert counted == heads * ((SHIPPED_HEAD / "model.safetensors").stat().st_size // 2)


def test_a_draft_has_weights_a_pool_and_a_process_of_its_own() -> None:
    need, without = need_of("--draft", str(SHIPPED_DRAFT)), need_of()
    assert need.weights_bytes - without.weights_bytes == stored_bytes(SHIPPED_DRAFT)
    assert need.services_bytes - without.services_bytes == SERVICE_MB["speculator"] * MB
    assert ("speculator", 1, 64 * MIB) in need.pools


@pytest.mark.parametrize(
    ("setting", "share"),
    [
        ({"PENSTOCK_MODEL_QUANTIZATION": "int8"}, 0.5),
        ({"PENSTOCK_MODEL_QUANTIZATION": "int4"}, 0.25),
        ({"PENSTOCK_MODEL_QUANTIZATION": "dense"}, 1),
        ({"PENSTOCK_PREFILL_BACKEND": "torch"}, 2),
        ({"PENSTOCK_PREFILL_WEIGHT_CACHE_MB": "0", "PENSTOCK_DECODE_WEIGHT_CACHE_MB": "0"}, 2),
        ({"PENSTOCK_PREFILL_DEVICE": "cuda", "PENSTOCK_DECODE_DEVICE": "cuda"}, 0),
    ],
)
def test_weights_count_as_they_are_loaded(setting: dict[str, str], share: float) -> None:
    assert need_of(environ=setting).weights_bytes == int(stored_bytes(DEMO_MODEL) * share)


def test_a_pool_of_so_many_blocks_has_their_size() -> None:
    (options, environ) = parse_options([*MODEL], {}), {"PENSTOCK_DECODE_KV_BLOCKS": "10"}
    config = check_models(options, print)[0].config
    block = 16 * len(config.layers) * config.num_kv_heads * config.head_dim * 2
    values = {"float32": 4, "bfloat16": 2}[config.dtype]
    assert need_of(environ=environ).pools[1] == ("decode", 1, 10 * block * values)
    assert need_of(environ=environ | {"PENSTOCK_MODEL_KV_DTYPE": "int8"}).pools[1][2] == 10 * block


def test_a_stack_that_can_just_start_is_started_and_a_byte_less_is_refused() -> None:
    need = need_of()
    check(need.start_bytes)
    with pytest.raises(TooLittleMemory) as refused:
        check(need.start_bytes - 1)
    weights, start = (f"{size / MB:.0f} MB" for size in (stored_bytes(DEMO_MODEL), need.start_bytes))
    assert str(refused.value) == (
        f"the stack needs {start} of memory to start ({BASE_MB} MB for its processes, {weights} for "
        f"weights), and {start} are there on this machine: give it more, or start less: --retriever 0 saves "
        f"{SERVICE_MB['retriever']} MB"
    )


def test_pools_that_just_fit_are_not_told_of_and_others_with_what_to_lower() -> None:
    need = need_of()
    assert check(need.full_bytes) == []
    (told,) = check(need.full_bytes - 2 * MIB)
    full, left = (f"{size / MB:.0f} MB" for size in (need.full_bytes, need.full_bytes - 2 * MIB))
    assert told == (
        f"services may be killed when their KV pools are full: the stack needs {full} of memory then, and "
        f"{left} are there on this machine; give it more, or lower kv_memory_mb to 255 under [prefill] and "
        "[decode]"
    )
    (told,) = check(need.start_bytes + 20 * MIB)
    assert told.endswith("give it more, or start less")


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["--decode", "3", "--gateway", "2"], "or start less, as with --gateway 1, --decode 2"),
        (["--retriever", "0"], "on this machine: give it more"),
    ],
)
def test_the_advice_is_one_that_this_stack_can_follow(argv: list[str], advice: str) -> None:
    with pytest.raises(TooLittleMemory) as refused:
        check(100 * MB, *argv)
    assert str(refused.value).endswith(advice)


def test_where_nobody_says_what_is_left_the_stack_is_started() -> None:
    options = parse_options([*MODEL], {})
    check_memory(options, *check_models(options, print), print, room=lambda: None)
