"""Compile the CPU kernels, once for each set of instructions; pyproject.toml has all else of the package.

They are plain shared libraries, loaded with ctypes, so no torch is needed to build them. Without a compiler,
or for another kind of CPU, the install goes on, and the engine runs on torch alone.
"""

from glob import glob

from setuptools import Extension, setup

KERNELS = "shared/engine/native"
INSTRUCTIONS = {
    "_kernels": ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi"),
    "_kernels_avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
    "_kernels_avx2": ("-march=x86-64-v3",),
}
# GCC takes vectors that loops write for unwritten ones, and tells how it hands over structures with vectors.
WARNINGS = ("-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-psabi")

setup(
    ext_modules=[
        Extension(
            f"{KERNELS}/{name}".replace("/", "."),
            sorted(glob(f"{KERNELS}/*.cpp")),
            depends=sorted(glob(f"{KERNELS}/*.h")),
            extra_compile_args=["-O3", "-g0", "-std=c++20", *flags, "-fopenmp", *WARNINGS],
            extra_link_args=["-fopenmp"],
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTIONS.items()
    ],
    options={"build_ext": {"parallel": len(INSTRUCTIONS)}},
)
