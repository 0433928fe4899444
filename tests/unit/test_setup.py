"""The kernels are built for the instruction sets of the machine that they are to run on alone."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from shared.engine.native.library import BUILDS

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def setup_py() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "setup.py"), run_name="read")


def flags(setup_py: dict[str, Any], platform: str) -> dict[str, list[str]]:
    """Those that are about the machine, of each build."""
    return {
        each.name.rpartition(".")[-1]: [flag for flag in each.extra_compile_args if flag.startswith("-m")]
        for each in setup_py["extensions"](platform)
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
