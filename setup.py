"""Compile the CPU kernels, once for each set of instructions, HTTP/2's codec and the gateway's table of rows.

pyproject.toml has all else of the package.

Kernels are plain shared libraries, loaded with ctypes, so no torch is needed to build them. Without a
compiler, or for another kind of CPU, the install goes on: the engine runs on torch alone, gRPC's edge on
grpcio, and rows go through Python.

PENSTOCK_BUILDS says which kernels are wanted: all where it is not set, `own` for those of this machine's CPU,
which are ready sooner; with `none` nothing is compiled at all.
"""

import copy
import os
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = "shared/engine/native"
# By the platform that is built for, which a cross compiler's _PYTHON_HOST_PLATFORM says.
INSTRUCTIONS = {
    "linux-x86_64": {
        "_kernels": ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi"),
        "_kernels_avx512vnni": ("-march=x86-64-v4", "-mavx512vnni"),
        "_kernels_avx512": ("-march=x86-64-v4",),
        "_kernels_avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
        "_kernels_avx2": ("-march=x86-64-v3",),
    },
    "linux-aarch64": {"_kernels_neon": ("-march=armv8.2-a+dotprod",)},
}
# The names by which Linux says that a CPU has what a build needs, the build that a machine prefers first.
CPUINFO = "/proc/cpuinfo"
NEEDS = {
    "_kernels": "avx512f avx512bw avx512vl avx512dq avx512_bf16 avx512_vnni avx512vbmi",
    "_kernels_avx512vnni": "avx512f avx512bw avx512vl avx512dq avx512_vnni",
    "_kernels_avx512": "avx512f avx512bw avx512vl avx512dq",
    "_kernels_avxvnni": "avx2 fma avx_vnni",
    "_kernels_avx2": "avx2 fma",
    "_kernels_neon": "asimddp",
}
# By the name of its namespace no object of one set links with those of another.
NAMESPACE = "-Dpenstock=penstock{}"
# GCC takes vectors that loops write for unwritten ones, and tells how it hands over structures with vectors.
WARNINGS = ("-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-psabi")

# Python's own sources need -fwrapv and hand it on; here it costs 2 to 9 % of a product, and nothing wraps.
NO_WRAPPING = "-fno-wrapv"

CODEC = "shared/http2/codec"
ROWS = "services/gateway/rows/native"


# Files of all builds wait for the same cores.
COMPILING = ThreadPoolExecutor(os.cpu_count())


class BuildApart(build_ext):
    """Builds each extension in a folder of its own: all have the same sources and are built side by side."""

    def build_extension(self, ext):
        apart = copy.copy(self)
        apart.build_temp = os.path.join(self.build_temp, ext.name.rpartition(".")[-1])
        apart.compiler = copy.copy(self.compiler)
        apart.compiler.compile = side_by_side(self.compiler.compile, COMPILING)
        super(BuildApart, apart).build_extension(ext)


def side_by_side(compile_in_turn, pool):
    """Return what compiles each source by itself, beside others."""

    def compile_all(sources, **options):
        compiling = [pool.submit(compile_in_turn, [source], **options) for source in sources]
        return [name for each in compiling for name in each.result()]

    return compile_all


def own_build(platform, cpuinfo):
    """Return the build that a machine of this platform runs, as it tells of its first core; None for none."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    told = next((found for name, _, found in lines if name.strip() in ("flags", "Features")), "")
    has = set(told.split())
    return next(
        (name for name in INSTRUCTIONS.get(platform, {}) if has.issuperset(NEEDS[name].split())), None
    )


def wanted(platform):
    """Return the names of the builds that are to be made. Raises SystemExit for a choice that is none."""
    choice = os.environ.get("PENSTOCK_BUILDS", "")
    if choice == "none" or (choice == "own" and platform not in INSTRUCTIONS):
        return ()
    if choice == "own":
        with open(CPUINFO, encoding="utf-8") as told:
            own = own_build(platform, told.read())
        return () if own is None else (own,)
    if choice:
        raise SystemExit(f"PENSTOCK_BUILDS is {choice!r}: say own or none, or leave it out for all")
    return tuple(INSTRUCTIONS.get(platform, {}))


def extensions(platform, names):
    """Return the builds of the kernels that have these names."""
    return [
        Extension(
            f"{KERNELS}/{name}".replace("/", "."),
            sorted(glob(f"{KERNELS}/*.cpp")),
            depends=["setup.py", *sorted(glob(f"{KERNELS}/*.h"))],
            extra_compile_args=[
                *("-O3", "-g0", "-std=c++20", NO_WRAPPING, *flags, "-fopenmp", *WARNINGS),
                NAMESPACE.format(name.removeprefix("_kernels")),
            ],
            extra_link_args=["-fopenmp", "-Wl,-z,defs"],
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTIONS.get(platform, {}).items()
        if name in names
    ]


def of_python(name, folder, *others):
    """Return the build of an extension of Python that any CPU runs; `others` are headers from elsewhere."""
    return Extension(
        name,
        sorted(glob(f"{folder}/*.cpp")),
        depends=["setup.py", *sorted(glob(f"{folder}/*.h")), *others],
        include_dirs=["."],
        extra_compile_args=["-O2", "-g0", "-std=c++20", "-fvisibility=hidden"],
        language="c++",
        optional=True,
    )


if __name__ == "__main__":
    builds = extensions(sysconfig.get_platform(), wanted(sysconfig.get_platform()))
    if os.environ.get("PENSTOCK_BUILDS") != "none":
        builds.append(of_python("shared.http2._codec", CODEC))
        builds.append(of_python("services.gateway.rows._rows", ROWS, f"{CODEC}/api.h", f"{CODEC}/guarded.h"))
    setup(
        ext_modules=builds,
        cmdclass={"build_ext": BuildApart},
        options={"build_ext": {"parallel": len(builds)}} if builds else {},
    )
