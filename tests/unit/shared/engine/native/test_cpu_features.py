"""What a CPU has is what may be used, unless a variable says less."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from services.decode.config import DecodeConfig
from shared.engine import EngineConfig, load_model_config
from shared.engine.backends import backend_name, why_not_native
from shared.engine.core_arbiter import WorkClass
from shared.engine.native import cpu_features
from shared.engine.native import library as native_library
from shared.engine.native.cpu_features import (
    HALVES_FEATURES,
    KERNEL_FEATURES,
    LEAST_FEATURES,
    VARIABLE,
    WHOLE_FEATURES,
    arm64_features,
    usable_features,
)
from shared.engine.native.library import library, runnable_builds, why_no_library
from shared.errors import InvalidRequest
from shared.retrieval.encoders.text_encoder import _computes_bf16
from shared.worker.engine_builder import build_engine
from tests.support.engine import make_engine, save_random_model, save_shape
from tests.support.engine_families import SHAPES

ARMV8_0 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
NEOVERSE_N1 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
)
APPLE_M1 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop "
    "sha3 asimddp sha512 asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp flagm2 frint"
)
ARM64 = {
    "Graviton2": NEOVERSE_N1,
    "Graviton3": (
        "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc "
        "dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm "
        "svebf16 i8mm bf16 dgh rng"
    ),
    "Ampere Altra": NEOVERSE_N1,
    "Apple M1 under Docker": APPLE_M1,
    "Apple M2 under Docker": f"{APPLE_M1} i8mm bf16 bti ecv",
}
"""The features that Linux names of CPUs that have dot products."""
IN_WHOLE_VECTORS = {*HALVES_FEATURES, *WHOLE_FEATURES}
X86_64 = {
    "Sapphire Rapids": ({*IN_WHOLE_VECTORS, *KERNEL_FEATURES, "avx_vnni"}, "_kernels"),
    "Cooper Lake": ({*IN_WHOLE_VECTORS, "avx512_vnni", "avx512_bf16"}, "_kernels_avx512vnni"),
    "Ice Lake": ({*IN_WHOLE_VECTORS, "avx512_vnni", "avx512_vbmi"}, "_kernels_avx512vnni"),
    "Cascade Lake": ({*IN_WHOLE_VECTORS, "avx512_vnni"}, "_kernels_avx512vnni"),
    "Skylake-SP": (IN_WHOLE_VECTORS, "_kernels_avx512"),
    "Alder Lake": ({*HALVES_FEATURES, "avx_vnni"}, "_kernels_avxvnni"),
    "Haswell": (set(HALVES_FEATURES), "_kernels_avx2"),
}
"""The features of x86-64 CPUs that the kernels ask for, and the build that is for them."""


def cpuinfo(*cores: str) -> str:
    """/proc/cpuinfo of an arm64 machine whose cores have these features."""
    return "\n".join(
        f"processor\t: {number}\nBogoMIPS\t: 243.75\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        f"CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n"
        for number, features in enumerate(cores)
    )


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file in which this machine, now one of arm64, says what its cores have."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(cpu_features, "CPUINFO", tmp_path / "cpuinfo")
    return tmp_path / "cpuinfo"


@pytest.fixture(autouse=True)
def not_remembered() -> Iterator[None]:
    """Nor by the tests after these, which load what their own environment says."""
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.parametrize("cpu", X86_64)
def test_a_cpu_runs_the_build_that_has_most_of_its_instructions(cpu: str) -> None:
    features, build = X86_64[cpu]
    assert runnable_builds(frozenset(features))[0] == build


@pytest.mark.parametrize("cpu", ARM64)
def test_an_arm64_cpu_with_dot_products_runs_the_kernels_of_neon(cpu: str, cores: Path) -> None:
    cores.write_text(cpuinfo(*[ARM64[cpu]] * 4))
    assert runnable_builds(usable_features()) == ["_kernels_neon"]


def test_an_arm64_cpu_without_dot_products_is_told_what_it_lacks(cores: Path) -> None:
    cores.write_text(cpuinfo(*[ARMV8_0] * 4))
    assert library() is None
    assert why_no_library() == "this CPU lacks atomics, asimddp"


def test_what_one_kind_of_cores_lacks_no_thread_may_use() -> None:
    assert arm64_features(cpuinfo(NEOVERSE_N1, ARMV8_0)) == {"asimd"}


def test_what_says_nothing_of_features_has_none() -> None:
    assert arm64_features("processor\t: 0\nflags\t\t: fpu vme\n") == frozenset()


def test_a_machine_that_the_kernels_were_not_written_for_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert why_no_library() == "the kernels are for x86_64 and aarch64, and this machine is riscv64"


def test_all_that_the_cpu_has_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    capabilities = torch.cpu.get_capabilities()
    assert {name for name in KERNEL_FEATURES if capabilities.get(name)} <= usable_features()


@pytest.mark.parametrize("listed", ["none", "avx512_f,avx512_bw"])
def test_without_one_of_them_torch_computes_and_says_why(
    listed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, listed)
    engine = make_engine(save_random_model(tmp_path))
    assert library() is None
    assert why_no_library().startswith(f"this CPU lacks {LEAST_FEATURES[platform.machine()][0]}")
    assert engine.backend == "torch"
    assert why_not_native(engine.config, engine.model_config) == why_no_library()
    assert not _computes_bf16()


def test_without_a_compiler_at_the_installation_torch_computes_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    # As on a CPU that could run them.
    monkeypatch.setattr(native_library, "LEAST_FEATURES", {platform.machine(): ()})
    monkeypatch.setattr(native_library, "BUILDS", {"_never_built": ()})
    assert library() is None
    config, model = EngineConfig(str(tmp_path)), load_model_config(save_random_model(tmp_path))
    assert why_not_native(config, model) == "the kernels were not built: a C++ compiler was missing"
    assert backend_name(config, model) == "torch"


def test_who_asked_for_torch_is_told_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    config, model = (
        EngineConfig(str(tmp_path), backend="torch"),
        load_model_config(save_random_model(tmp_path)),
    )
    assert why_not_native(config, model) == ""


def test_torch_computes_what_the_kernels_do_not_and_says_why(tmp_path: Path) -> None:
    engine = make_engine(save_shape(tmp_path, SHAPES["deepseek v3"]))
    assert engine.backend == "torch"
    expected = "the kernels do not compute multi-head latent attention"
    assert why_not_native(engine.config, engine.model_config) == expected


def test_the_native_backend_refuses_what_it_does_not_compute(tmp_path: Path) -> None:
    folder = save_shape(tmp_path, SHAPES["deepseek v3"])
    with pytest.raises(InvalidRequest, match="has multi-head latent attention, which the native backend"):
        make_engine(folder, backend="native")


def test_a_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx512_f,sse9")
    with pytest.raises(InvalidRequest, match="PENSTOCK_CPU_FEATURES names 'sse9'; it must be none, or"):
        usable_features()


@pytest.mark.parametrize("listed", ["none", ""])
def test_a_worker_that_falls_back_says_so_in_one_line_with_what_it_costs(
    listed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, listed)
    falls_back = bool(why_no_library())
    with capture_logs() as lines:
        config = DecodeConfig(kv_blocks=8, kv_memory_mb=0, weight_cache_mb=0, cores_dir=str(tmp_path))
        build_engine(config, save_random_model(tmp_path / "model"), "m", work_class=WorkClass.DECODE).close()
    said = [line for line in lines if line["event"] == "computes_with_torch"]
    assert [line["why"] for line in said] == ([why_no_library()] if falls_back else [])
    assert all("times the CPU time" in line["cost"] for line in said)
