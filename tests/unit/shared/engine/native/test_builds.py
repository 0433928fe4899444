"""Every build of the kernels that this CPU can run computes the same bits: the others than the first here."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.loading.linear import QuantLinear
from shared.engine.native.cpu_features import VARIABLE, usable_features
from shared.engine.native.library import BUILDS, NativeName, library, load, native_name, path_of
from shared.engine.native.linear import NativeLinear
from shared.engine.sampling.draw_row import DrawRow
from shared.engine.sampling.native_sampler import NativeSampler
from shared.engine.scheduling.head_model import HeadDraft
from tests.support.draft_heads import SMALL
from tests.support.head_pair import HeadPair
from tests.support.k_quants import K_QUANTS, random_k_quants
from tests.support.native_draws import (
    ROWS,
    assert_equal_draws,
    assert_logprobs_are_those_of_torch,
    random_logits,
    random_params,
)
from tests.support.random_linear import FORMATS, random_linear, rows_of_any_size
from tests.support.served_checkpoints import save_served
from tests.support.served_runs import LONGEST, STORED_AS, ServedRun, assert_golden, served_engine
from tests.support.served_shapes import SERVED

ROW_COUNTS = (1, 2, 3, 4, 5, 8, 9, 13, 65)
WIDTHS = (30, 576, 1000, 4097)
NAMES: dict[str, NativeName] = {
    "_kernels_avx512vnni": "native+avx512vnni",
    "_kernels_avx512": "native+avx512",
    "_kernels_avxvnni": "native+avxvnni",
    "_kernels_avx2": "native+avx2",
    "_kernels_neon": "native+neon",
}
IN_WHOLE_VECTORS = ("_kernels", "_kernels_avx512vnni", "_kernels_avx512")
VOCAB = 512
MIXED = (("Q4_K", 64), ("Q6_K", 32))
SMALLEST = "SmolLM2-135M"


def runs_here(build: str) -> bool:
    return usable_features().issuperset(BUILDS[build]) and path_of(build).is_file()


@pytest.fixture(scope="module", params=NAMES)
def build(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not runs_here(name):
        pytest.skip("this build was not made, or this CPU cannot run it")
    return name


@pytest.fixture(scope="module")
def kernels(build: str) -> ctypes.CDLL:
    return load(path_of(build))


@pytest.mark.parametrize("name", BUILDS)
def test_a_build_has_no_object_of_another(name: str) -> None:
    """They have the same sources and are built side by side; each has a namespace of its own."""
    if not path_of(name).is_file():
        pytest.skip("this build was not made")
    content = path_of(name).read_bytes()
    found = {each for each in BUILDS if f"penstock{each.removeprefix('_kernels')}6Linear".encode() in content}
    assert found == {name}


@pytest.fixture(autouse=True)
def not_remembered() -> Iterator[None]:
    """Nor by the tests after these, which load what their own environment says."""
    yield
    library.cache_clear()


@pytest.fixture(scope="module")
def other(build: str) -> str:
    """The first build in whole vectors that is not the one compared with it."""
    found = next((name for name in IN_WHOLE_VECTORS if name != build and runs_here(name)), None)
    if found is None:
        pytest.skip("there is no other build here to compare with")
    return found


@pytest.fixture
def on_whole_vectors(other: str) -> Iterator[ctypes.CDLL]:
    """That build, without its matrix unit."""
    loaded = load(path_of(other))
    had_unit = loaded.penstock_has_matrix_unit()
    loaded.penstock_use_matrix_unit(False)
    yield loaded
    loaded.penstock_use_matrix_unit(had_unit)


@pytest.mark.parametrize("kind", FORMATS)
def test_invariant_5_a_product_has_the_bits_that_whole_vectors_make(
    kernels: ctypes.CDLL, on_whole_vectors: ctypes.CDLL, kind: str
) -> None:
    for width in WIDTHS:
        linear = random_linear(kind, 98, width)
        packed, expected = (NativeLinear.pack(each, linear) for each in (kernels, on_whole_vectors))
        for num_rows in ROW_COUNTS:
            rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows))
            assert torch.equal(packed(rows), expected(rows)), (width, num_rows)


@pytest.mark.parametrize("width", [256, 4096])
@pytest.mark.parametrize("types", [*(((name, 98),) for name in K_QUANTS), MIXED], ids=str)
def test_invariant_5_k_quants_have_the_bits_that_whole_vectors_make(
    kernels: ctypes.CDLL, on_whole_vectors: ctypes.CDLL, types: tuple[tuple[str, int], ...], width: int
) -> None:
    linear = random_k_quants(types, width, bias=True)
    packed, expected = (NativeLinear.pack(each, linear) for each in (kernels, on_whole_vectors))
    for num_rows in ROW_COUNTS:
        rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows))
        assert torch.equal(packed(rows), expected(rows)), num_rows
    rows = rows_of_any_size(99, width)
    torch.testing.assert_close(packed(rows), expected(rows), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("group", [16, 32, 64])
def test_rows_of_any_size_are_rounded_to_the_numbers_that_whole_vectors_make(
    kernels: ctypes.CDLL, on_whole_vectors: ctypes.CDLL, group: int
) -> None:
    linear = random_linear("int4", 33, 1000, group=group)
    packed, expected = (NativeLinear.pack(each, linear) for each in (kernels, on_whole_vectors))
    rows = rows_of_any_size(300, 1000)
    torch.testing.assert_close(packed(rows), expected(rows), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("bits", "steps"), [(8, 127 * 128), (4, 119 * 256)])
def test_the_largest_numbers_and_codes_are_added_up_exactly(
    kernels: ctypes.CDLL, bits: int, steps: int
) -> None:
    """In the longest group that sums of 8 bits by 15 have room for, whatever each build adds up first."""
    generator, largest = torch.Generator().manual_seed(bits), 2**bits - 1
    codes = largest * torch.randint(0, 2, (33, 512), generator=generator, dtype=torch.uint8)
    signs = 2.0 * torch.randint(0, 2, (9, 512), generator=generator) - 1
    codes[0], signs[0], signs[1] = largest, 1.0, -1.0
    nothing = torch.zeros(33, 1, dtype=torch.uint8)
    linear = QuantLinear(codes, torch.ones(33, 1).half(), nothing, bits, 512)
    exact = (steps * signs).double() @ codes.double().T
    assert torch.equal(NativeLinear.pack(kernels, linear)(steps * signs), exact.float())


@pytest.mark.thorough(but="_kernels_avx2-bfloat16 | _kernels_avxvnni-int8 | _kernels_avx2-int4")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_invariant_5_a_model_computes_the_bits_that_were_decided_on(
    build: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, ",".join(BUILDS[build]))
        library.cache_clear()
        assert native_name() == NAMES[build]
        engine = served_engine(
            save_served(tmp_path, SERVED[SMALLEST].config(vocab=VOCAB)),
            backend="native",
            threads=2,
            **STORED_AS[kind],
        )
        run = ServedRun.of(engine, VOCAB)
        alone = run.streams_as_prompts()
        assert torch.equal(run.decode(3), alone[:3])
        assert_golden(f"{SMALLEST}, {kind}", run.prompt(LONGEST))


@pytest.mark.thorough(but="_kernels_avx2")
def test_the_same_ids_are_drawn(kernels: ctypes.CDLL) -> None:
    sampler, source = NativeSampler(kernels), random.Random(1)
    for shape in ("plain", "peaked", "half ruled out"):
        rows = [DrawRow(random_params(source), source.choice([0, 7, 10**9])) for _ in range(ROWS)]
        assert_equal_draws(sampler, random_logits(4099, shape, 3), rows)
    assert_logprobs_are_those_of_torch(sampler, random_logits(4099, "peaked", 2))


@pytest.mark.thorough(but="_kernels_avx2")
def test_invariant_5_a_draft_head_guesses_the_same(
    build: str, other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drafts: list[HeadDraft] = []
    for name in (other, build):
        with monkeypatch.context() as patch:
            patch.setenv(VARIABLE, ",".join(BUILDS[name]))
            library.cache_clear()
            pair = HeadPair(tmp_path / name, SMALL, 2)
            drafts += pair.draft(pair.requests(0.0)) + pair.draft(pair.requests(0.8))
    half = len(drafts) // 2
    assert drafts[:half] == drafts[half:]
