"""Processes whose clock is wrong: a library before libc's that shifts the time of day, by instance."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* PENSTOCK_DRILL_SKEW_MS is a list like "decode-0=300,prefill-0=-300". */
static long skew_ns(void) {
    const char *list = getenv("PENSTOCK_DRILL_SKEW_MS"), *name = getenv("PENSTOCK_INSTANCE");
    if (!list || !name) return 0;
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length)
        if (at[length] == '=') return atol(at + length + 1) * 1000000L;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    static int named;
    static long skew;
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (!named) { /* the process that services are forked from has no instance yet */
        skew = skew_ns();
        named = getenv("PENSTOCK_INSTANCE") != NULL;
    }
    int result = real(clock, out);
    if (result == 0 && clock == CLOCK_REALTIME && skew) {
        long ns = out->tv_nsec + skew;
        long seconds = ns / 1000000000L - (ns % 1000000000L < 0);
        out->tv_sec += seconds;
        out->tv_nsec = ns - seconds * 1000000000L;
    }
    return result;
}
"""
COMPILE_TIMEOUT_S = 60


def skewed_environ(scratch: Path, skew_ms: Mapping[str, int]) -> dict[str, str]:
    """The environment in which these instances' clocks are off; empty where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    source, library = scratch / "skew.c", scratch / "skew.so"
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
    listed = ",".join(f"{instance}={ms}" for instance, ms in skew_ms.items())
    return {"LD_PRELOAD": str(library), "PENSTOCK_DRILL_SKEW_MS": listed}
