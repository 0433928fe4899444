"""Find the instruction sets of this CPU that may be used: all that it has, or those that are listed."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from shared.errors import InvalidRequest

VARIABLE = "PENSTOCK_CPU_FEATURES"
"""none, or names separated by commas: this process and those that it starts then do as a CPU without the
others does. For tests, and to tell an instruction set's fault from ours."""
NONE = "none"
KERNEL_FEATURES = tuple(f"avx512_{name}" for name in ("f", "bw", "vl", "dq", "vbmi", "bf16", "vnni"))
"""The features that the compiled kernels need in whole vectors."""
WHOLE_FEATURES = tuple(f"avx512_{name}" for name in ("f", "bw", "vl", "dq"))
"""The features that they need there where products of bf16 are made of those of fp32, and where there is no
`avx512_vnni` those of bytes of words."""
HALVES_FEATURES = ("avx2", "fma3", "f16c", "bmi", "bmi2", "lzcnt")
"""The features that they need where each vector is two of half its size."""
NEON_FEATURES = ("asimd", "atomics", "asimddp")
"""The features that they need on arm64, by Linux's names: Armv8.2-A with dot products of bytes."""
LEAST_FEATURES = {"x86_64": HALVES_FEATURES, "aarch64": NEON_FEATURES}
"""The features without which no build of the kernels runs, by kind of machine."""
MATRIX_UNIT_FEATURES = ("amx_tile", "amx_bf16", "amx_int8")
"""The features by which they multiply whole tiles at once, where all of these are there."""
_KNOWN = {*KERNEL_FEATURES, *HALVES_FEATURES, "avx_vnni", *MATRIX_UNIT_FEATURES, *NEON_FEATURES}
CPUINFO = Path("/proc/cpuinfo")
"""The file in which Linux says what each core has."""


def usable_features() -> frozenset[str]:
    """Return those that this code asks for, of this CPU. Raises InvalidRequest where the variable names
    another."""
    found = arm64_features(CPUINFO.read_text()) if platform.machine() == "aarch64" else _x86_features()
    listed = os.environ.get(VARIABLE, "")
    if not listed:
        return found
    allowed = set() if listed == NONE else {name.strip() for name in listed.split(",")}
    unknown = sorted(allowed - _KNOWN)
    if unknown:
        raise InvalidRequest(
            f"{VARIABLE} names {unknown[0]!r}; it must be {NONE}, or some of {', '.join(sorted(_KNOWN))}"
        )
    return found & allowed


def arm64_features(cpuinfo: str) -> frozenset[str]:
    """Return those that this code asks for and that every core of an arm64 machine has: there are some of two
    kinds of cores."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    cores = [frozenset(found.split()) for name, _, found in lines if name.strip() == "Features"]
    return frozenset.intersection(*cores) & _KNOWN if cores else frozenset()


def _x86_features() -> frozenset[str]:
    import torch  # noqa: PLC0415 - takes a second, and who moves KV about may never ask

    capabilities = torch.cpu.get_capabilities()
    return frozenset(name for name in _KNOWN if capabilities.get(name))
