"""Compile the CPU kernels, once for each set of instructions; pyproject.toml has all else of the package.

They are plain shared libraries, loaded with ctypes, so no torch is needed to build them. Without a compiler,
or for another kind of CPU, the install goes on, and the engine runs on torch alone.
"""

import copy
import os
import sysconfig
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
# By the name of its namespace no object of one set links with those of another.
NAMESPACE = "-Dpenstock=penstock{}"
# GCC takes vectors that loops write for unwritten ones, and tells how it hands over structures with vectors.
WARNINGS = ("-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-psabi")


class BuildApart(build_ext):
    """Builds each extension in a folder of its own: all have the same sources and are built side by side."""

    def build_extension(self, ext):
        apart = copy.copy(self)
        apart.build_temp = os.path.join(self.build_temp, ext.name.rpartition(".")[-1])
        super(BuildApart, apart).build_extension(ext)


def extensions(platform):
    """Return the builds of the kernels for a platform: none but for those that they are written for."""
    return [
        Extension(
            f"{KERNELS}/{name}".replace("/", "."),
            sorted(glob(f"{KERNELS}/*.cpp")),
            depends=["setup.py", *sorted(glob(f"{KERNELS}/*.h"))],
            extra_compile_args=[
                *("-O3", "-g0", "-std=c++20", *flags, "-fopenmp", *WARNINGS),
                NAMESPACE.format(name.removeprefix("_kernels")),
            ],
            extra_link_args=["-fopenmp", "-Wl,-z,defs"],
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTIONS.get(platform, {}).items()
    ]


if __name__ == "__main__":
    builds = extensions(sysconfig.get_platform())
    setup(
        ext_modules=builds,
        cmdclass={"build_ext": BuildApart},
        options={"build_ext": {"parallel": len(builds)}} if builds else {},
    )
