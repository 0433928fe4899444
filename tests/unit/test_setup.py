"""The kernels are built for the instruction sets of the machine that they are to run on alone."""

from __future__ import annotations

import runpy
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shared.engine.native.cpu_features import VARIABLE, usable_features
from shared.engine.native.library import BUILDS, runnable_builds

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def setup_py() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "setup.py"), run_name="read")


def flags(setup_py: dict[str, Any], platform: str) -> dict[str, list[str]]:
    """Those that are about the machine, of each build."""
    return {
        each.name.rpartition(".")[-1]: [flag for flag in each.extra_compile_args if flag.startswith("-m")]
        for each in setup_py["extensions"](platform, BUILDS)
    }


def test_arm64_gets_neon_and_no_flag_of_another_machine(setup_py: dict[str, Any]) -> None:
    assert flags(setup_py, "linux-aarch64") == {"_kernels_neon": ["-march=armv8.2-a+dotprod"]}


def test_x86_64_gets_its_five_sets(setup_py: dict[str, Any]) -> None:
    built = flags(setup_py, "linux-x86_64")
    assert list(built) == [f"_kernels{name}" for name in ("", "_avx512vnni", "_avx512", "_avxvnni", "_avx2")]
    assert all(each[0].startswith("-march=x86-64-v") for each in built.values())


@pytest.mark.parametrize("platform", ["macosx-14.0-arm64", "linux-riscv64"])
def test_nothing_is_built_for_a_machine_that_nothing_is_written_for(
    setup_py: dict[str, Any], platform: str
) -> None:
    assert flags(setup_py, platform) == {}


def test_every_build_can_be_loaded_by_its_name(setup_py: dict[str, Any]) -> None:
    assert {name for sets in setup_py["INSTRUCTIONS"].values() for name in sets} == set(BUILDS)


HASWELL = "fpu sse4_2 fma f16c avx avx2 bmi1 bmi2"
SKYLAKE = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
CASCADE_LAKE = f"{SKYLAKE} avx512_vnni"
ICE_LAKE = f"{CASCADE_LAKE} avx512vbmi avx512_vbmi2"
CPUS = {
    "Sapphire Rapids": (f"{ICE_LAKE} avx_vnni avx512_bf16 amx_tile", "_kernels"),
    "Ice Lake": (ICE_LAKE, "_kernels_avx512vnni"),
    "Cascade Lake": (CASCADE_LAKE, "_kernels_avx512vnni"),
    "Skylake-SP": (SKYLAKE, "_kernels_avx512"),
    "Alder Lake": (f"{HASWELL} avx_vnni", "_kernels_avxvnni"),
    "Haswell": (HASWELL, "_kernels_avx2"),
    "Sandy Bridge": ("fpu sse4_2 avx", None),
}
"""The flags of CPUs as Linux tells them, and the build that is for each."""


@pytest.mark.parametrize("cpu", CPUS)
def test_a_machine_that_is_only_to_run_builds_what_it_runs(setup_py: dict[str, Any], cpu: str) -> None:
    told, build = CPUS[cpu]
    cpuinfo = f"processor\t: 0\nmodel name\t: {cpu}\nflags\t\t: {told}\nbugs\t\t: none\n"
    assert setup_py["own_build"]("linux-x86_64", cpuinfo) == build


def test_so_does_one_of_arm64(setup_py: dict[str, Any]) -> None:
    cpuinfo = "processor\t: 0\nFeatures\t: fp asimd atomics asimddp\nCPU part\t: 0xd0c\n"
    assert setup_py["own_build"]("linux-aarch64", cpuinfo) == "_kernels_neon"
    assert setup_py["own_build"]("macosx-14.0-arm64", cpuinfo) is None


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="the machine tells of itself otherwise")
def test_what_this_machine_would_build_is_what_it_loads(
    setup_py: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BUILDS", "own")
    monkeypatch.delenv(VARIABLE, raising=False)
    loads = runnable_builds(usable_features())[:1]
    assert list(setup_py["wanted"](sysconfig.get_platform())) == loads


def test_a_machine_that_no_kernels_are_written_for_builds_none(
    setup_py: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BUILDS", "own")
    monkeypatch.setitem(setup_py["wanted"].__globals__, "CPUINFO", "/it/tells/nothing/of/its/cpu")
    assert setup_py["wanted"]("macosx-14.0-arm64") == ()


@pytest.mark.parametrize(("choice", "count"), [("", 5), ("none", 0)])
def test_all_builds_are_made_unless_fewer_are_wanted(
    setup_py: dict[str, Any], monkeypatch: pytest.MonkeyPatch, choice: str, count: int
) -> None:
    monkeypatch.setenv("PENSTOCK_BUILDS", choice)
    assert len(setup_py["wanted"]("linux-x86_64")) == count


def test_a_choice_that_is_none_says_so(setup_py: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BUILDS", "avx2")
    with pytest.raises(SystemExit, match="say own or none"):
        setup_py["wanted"]("linux-x86_64")


def test_sources_are_compiled_beside_each_other_and_in_their_order(setup_py: dict[str, Any]) -> None:
    both = threading.Barrier(2)

    def compile_one(sources: list[str], suffix: str) -> list[str]:
        both.wait(TIMEOUT_S)  # nobody is alone
        return [source + suffix for source in sources]

    with ThreadPoolExecutor(2) as pool:
        compiled = setup_py["side_by_side"](compile_one, pool)(["a", "b"], suffix=".o")
    assert compiled == ["a.o", "b.o"]
