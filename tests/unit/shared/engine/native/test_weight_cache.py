"""Packed weights on disk: the same numbers, mapped by all, written by one; what is wrong costs time alone."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from structlog.testing import capture_logs

from shared.engine import Engine, EngineConfig
from shared.engine.loading.config import load_model_config
from shared.engine.native import packed_file
from shared.engine.native.library import library
from shared.engine.native.model import NativeModel
from shared.engine.native.packed_file import ALIGNMENT, PackedFileError, open_packed_file
from shared.engine.native.packing import PackedArray, PackedPart
from shared.engine.native.weight_cache import WeightCache, weight_cache_folder, weights_key
from shared.errors import InvalidRequest
from tests.support.engine import save_random_model, save_shape
from tests.support.engine_families import SHAPES

pytestmark = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)

PROMPT = list(range(3, 60))
KEY, OTHER_KEY, THIRD_KEY = "aa" * 16, "bb" * 16, "cc" * 16


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def engine_of(checkpoint: Path, cache: Path | None, **fields: Any) -> Engine:
    cached: dict[str, Any] = {}
    if cache is not None:
        cached = {"weight_cache_mb": 64, "weight_cache_dir": str(cache)}
    return Engine(EngineConfig(str(checkpoint), backend="native", kv_blocks=64, **cached, **fields))


def logits_of(checkpoint: Path, cache: Path | None, **fields: Any) -> torch.Tensor:
    return engine_of(checkpoint, cache, **fields).logits(PROMPT).clone()


def the_file(cache: Path) -> Path:
    (only,) = cache.iterdir()
    return only


def mappings(path: Path) -> list[str]:
    """Permissions of what this process has mapped of the file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith(str(path))]


# ---- the same numbers -------------------------------------------------------------------------


@pytest.mark.thorough(but="glm4 moe-int4 | gpt-oss-int4 | qwen2 moe-int8")
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize(
    "name", ["llama", "gemma2", "qwen2", "qwen3 moe", "qwen2 moe", "glm4 moe", "gpt-oss"]
)
def test_logits_are_bitwise_equal_without_the_cache_on_writing_it_and_on_reading_it(
    name: str, quantization: str, tmp_path: Path, cache: Path
) -> None:
    folder = save_shape(tmp_path / "model", SHAPES[name], torch.bfloat16)
    expected = logits_of(folder, None, quantization=quantization)
    assert torch.equal(logits_of(folder, cache, quantization=quantization), expected)
    written = the_file(cache).stat()
    assert torch.equal(logits_of(folder, cache, quantization=quantization), expected)
    assert the_file(cache).stat().st_ino == written.st_ino


def test_weights_are_mapped_shared_and_cannot_be_written(checkpoint: Path, cache: Path) -> None:
    first, second = engine_of(checkpoint, cache), engine_of(checkpoint, cache)
    assert mappings(the_file(cache)) == ["r--s", "r--s"]
    assert torch.equal(first.logits(PROMPT), second.logits(PROMPT))


def test_a_model_that_goes_gives_its_mapping_back(checkpoint: Path, cache: Path) -> None:
    engine = engine_of(checkpoint, cache)
    assert mappings(the_file(cache))
    del engine
    assert mappings(the_file(cache)) == []


def test_computing_leaves_the_file_as_it_is(checkpoint: Path, cache: Path) -> None:
    engine = engine_of(checkpoint, cache)
    before = the_file(cache).read_bytes()
    engine.logits(PROMPT)
    assert the_file(cache).read_bytes() == before


@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_everything_begins_at_a_line_of_the_caches(checkpoint: Path, cache: Path, quantization: str) -> None:
    model = engine_of(checkpoint, cache, quantization=quantization)._model
    assert isinstance(model, NativeModel)
    for name, part in model._parts.items():
        places = [part.address] if isinstance(part, PackedArray) else [at for at in part.packed().parts if at]
        if "padding" not in name:
            assert all(place % ALIGNMENT == 0 for place in places), name


def test_the_file_is_one_that_safetensors_reads(checkpoint: Path, cache: Path) -> None:
    model = engine_of(checkpoint, cache)._model
    assert isinstance(model, NativeModel)
    final_norm = model._parts["final_norm"]
    assert isinstance(final_norm, PackedArray)
    with safe_open(the_file(cache), framework="pt") as file:
        read = file.get_tensor("final_norm")
        assert read.shape == final_norm.shape
        assert read.numpy().tobytes() == ctypes.string_at(final_norm.address, read.nbytes)


# ---- which weights ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"quantization": "int8"},
        {"quantization": "int4"},
        {"quantization": "int8", "quant_group": 64},
        {"dtype": "float32"},
    ],
    ids=str,
)
def test_other_settings_are_other_weights(checkpoint: Path, cache: Path, fields: dict[str, Any]) -> None:
    engine_of(checkpoint, cache)
    assert torch.equal(logits_of(checkpoint, cache, **fields), logits_of(checkpoint, None, **fields))
    assert len(list(cache.iterdir())) == 2


def test_another_checkpoint_in_the_same_place_is_other_weights(tmp_path: Path, cache: Path) -> None:
    folder = save_random_model(tmp_path / "model", seed=1)
    engine_of(folder, cache)
    save_random_model(folder, seed=2)
    assert torch.equal(logits_of(folder, cache), logits_of(folder, None))


def test_weights_that_were_written_again_are_other_weights(checkpoint: Path) -> None:
    """The digest of a long checkpoint takes samples of it: a change between them shows in the time alone."""
    config = EngineConfig(str(checkpoint))
    model = load_model_config(checkpoint)
    before = weights_key(config, model)
    status = (checkpoint / "model.safetensors").stat()
    os.utime(checkpoint / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert weights_key(config, model) != before


# ---- damage -----------------------------------------------------------------------------------


def flipped(place: Callable[[bytes], int]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        at = place(content)
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

    return damage


def header_length(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def with_header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """The header changed, with a digest that fits it."""

    def damage(content: bytes) -> bytes:
        end = 8 + header_length(content)
        header = json.loads(content[8:end])
        change(header)
        metadata = header.pop("__metadata__")
        metadata.pop("header")
        metadata["header"] = packed_file._header_digest(metadata, header)
        text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
        return content[:8] + text.ljust(end - 8) + content[end:]

    return damage


def moved(header: dict[str, Any]) -> None:
    header["final_norm"]["data_offsets"] = [1 << 40, (1 << 40) + 4]


def swapped(header: dict[str, Any]) -> None:
    matrices = json.loads(header["__metadata__"]["matrices"])
    matrices["layers.0.qkv"] = matrices["head"]
    header["__metadata__"]["matrices"] = json.dumps(matrices)


def of_other_weights(header: dict[str, Any]) -> None:
    header["__metadata__"]["key"] = OTHER_KEY


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "something else": lambda _: b"no weights at all, but a long enough text about them",
    "cut in the header": lambda content: content[:100],
    "cut in the weights": lambda content: content[:-1],
    "longer": lambda content: content + bytes(64),
    "a header longer than the file": lambda content: (1 << 50).to_bytes(8, "little") + content[8:],
    "a bit of the header": flipped(lambda content: content.index(b"data_offsets")),
    "a bit of the weights": flipped(lambda content: len(content) - 5000),
    "weights never written": lambda content: content[: len(content) // 2].ljust(len(content), b"\0"),
    "a tensor outside of the file": with_header(moved),
    "a matrix with the parts of another": with_header(swapped),
    "the weights of another model": with_header(of_other_weights),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_file_is_a_warning_and_the_weights_are_packed_again(
    checkpoint: Path, cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    expected = logits_of(checkpoint, cache)
    path = the_file(cache)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    with capture_logs() as logs:
        assert torch.equal(logits_of(checkpoint, cache), expected)
    assert {entry["event"] for entry in logs} == {"weight_cache_damaged"}
    assert the_file(cache).read_bytes() == good


def test_a_file_that_others_may_write_is_not_used(checkpoint: Path, cache: Path) -> None:
    engine_of(checkpoint, cache)
    the_file(cache).chmod(0o620)
    with capture_logs() as logs:
        engine_of(checkpoint, cache)
    assert [entry["why"] for entry in logs] == ["somebody else owns it or may write it"]
    assert the_file(cache).stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(checkpoint: Path, cache: Path, tmp_path: Path) -> None:
    engine_of(checkpoint, cache)
    path = the_file(cache)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with capture_logs() as logs:
        engine_of(checkpoint, cache)
    assert [entry["event"] for entry in logs] == ["weight_cache_not_used"]


def test_of_a_long_file_samples_find_a_stretch_that_was_never_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_file, "WHOLE_CHECK_BYTES", 0)
    monkeypatch.setattr(packed_file, "SAMPLE_BYTES", 16)
    assert load(WeightCache(cache, 1 << 30), KEY, nbytes=1 << 20) is not None
    path = the_file(cache)
    content = bytearray(path.read_bytes())
    content[500_000:510_000] = bytes(10_000)
    path.write_bytes(content)
    with pytest.raises(PackedFileError, match="content is not what was written"):
        open_packed_file(kernels(), path, KEY)


# ---- who writes, and what goes ----------------------------------------------------------------


def kernels() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None
    return loaded


def array_of(nbytes: int) -> PackedArray:
    return PackedArray.of(torch.arange(1, nbytes // 4 + 1, dtype=torch.float32))


def load(
    cache: WeightCache, key: str, nbytes: int = 4096, packed: Callable[[], None] = lambda: None
) -> dict[str, PackedPart] | None:
    """One array of `nbytes`; `packed` is called before it is made."""

    def pack() -> Iterator[tuple[str, PackedPart]]:
        packed()
        yield "final_norm", array_of(nbytes)

    return cache.load(kernels(), key, 1, pack)


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def test_of_several_that_begin_together_one_packs_and_all_map_its_file(cache: Path) -> None:
    begun, packed = threading.Barrier(4), []

    def worker(number: int) -> dict[str, PackedPart] | None:
        begun.wait(60)
        return load(WeightCache(cache, 1 << 30), KEY, 1 << 20, lambda: packed.append(number))

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(worker, range(4)))
    assert len(packed) == 1
    assert all(loaded)
    assert mappings(the_file(cache)) == ["r--s"] * 4


def test_what_a_process_that_died_had_begun_is_replaced(cache: Path) -> None:
    cache.mkdir()
    (cache / f"{KEY}.unfinished").write_bytes(b"half a header" * 100_000)
    assert load(WeightCache(cache, 1 << 30), KEY) is not None
    assert names(cache) == {f"{KEY}.safetensors"}
    assert the_file(cache).stat().st_size < 100_000


def test_what_died_with_its_writer_goes_with_the_next_file(cache: Path) -> None:
    cache.mkdir()
    (cache / f"{OTHER_KEY}.unfinished").write_bytes(b"half a header")
    load(WeightCache(cache, 1 << 30), KEY)
    assert names(cache) == {f"{KEY}.safetensors"}


def test_who_waits_too_long_packs_in_memory(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.engine.native.weight_cache.WAIT_S", 0.1)
    other: list[object] = []
    outer = WeightCache(cache, 1 << 30)
    assert load(outer, KEY, packed=lambda: other.append(load(WeightCache(cache, 1 << 30), KEY))) is not None
    assert other == [None]


def test_the_least_recently_used_file_goes_first(cache: Path) -> None:
    load(WeightCache(cache, 1 << 30), KEY)
    size = the_file(cache).stat().st_size
    two = WeightCache(cache, 2 * size)
    load(two, OTHER_KEY)
    os.utime(cache / f"{KEY}.safetensors", (1000, 1000))
    os.utime(cache / f"{OTHER_KEY}.safetensors", (2000, 2000))
    load(two, KEY)  # used again
    load(two, THIRD_KEY)
    assert names(cache) == {f"{KEY}.safetensors", f"{THIRD_KEY}.safetensors"}


def test_a_mapped_file_that_goes_stays_with_those_who_have_it(cache: Path) -> None:
    parts = load(WeightCache(cache, 1 << 30), KEY)
    the_file(cache).unlink()
    assert parts is not None
    norm = parts["final_norm"]
    assert isinstance(norm, PackedArray)
    assert ctypes.string_at(norm.address, 4096) == ctypes.string_at(array_of(4096).address, 4096)


def test_a_file_of_all_that_is_allowed_is_kept_and_one_byte_more_is_not(cache: Path) -> None:
    load(WeightCache(cache, 1 << 30), KEY)
    size = the_file(cache).stat().st_size
    the_file(cache).unlink()
    with capture_logs() as logs:
        assert load(WeightCache(cache, size - 1), KEY) is None
    assert "longer than" in logs[0]["why"]
    assert names(cache) == set()
    assert load(WeightCache(cache, size), KEY) is not None
    assert names(cache) == {f"{KEY}.safetensors"}


def test_a_folder_that_cannot_be_made_is_a_warning(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with capture_logs() as logs:
        cached = logits_of(checkpoint, tmp_path / "a file" / "cache")
    assert torch.equal(cached, logits_of(checkpoint, None))
    assert [entry["event"] for entry in logs] == ["weight_cache_not_used"]


def test_a_disk_that_is_full_is_a_warning_and_leaves_nothing(
    checkpoint: Path, cache: Path, request: pytest.FixtureRequest
) -> None:
    expected = logits_of(checkpoint, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    with capture_logs() as logs:
        cached = logits_of(checkpoint, cache)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(cached, expected)
    assert [entry["event"] for entry in logs] == ["weight_cache_not_used"]
    assert names(cache) == set()


def test_a_checkpoint_that_cannot_be_read_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    folder = save_random_model(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InvalidRequest, match="damaged"):
        engine_of(folder, cache)
    assert names(cache) == set()


def test_without_a_size_there_is_no_cache(checkpoint: Path, cache: Path) -> None:
    Engine(EngineConfig(str(checkpoint), kv_blocks=64, weight_cache_dir=str(cache)))
    assert not cache.exists()


def test_the_cache_is_with_those_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weight_cache_folder("") == tmp_path / "penstock" / "weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert weight_cache_folder("") == Path("/somebody/.cache/penstock/weights")
    assert weight_cache_folder("/elsewhere") == Path("/elsewhere")
