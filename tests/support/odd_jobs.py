"""python -m tests.support.odd_jobs: a process of jobs that do what their payload says."""

from __future__ import annotations

import os
import signal
import sys
import time

from shared.process import job_runner
from shared.process.job_runner import JobLimits, serve_jobs

LIMITS = JobLimits(cpu_s=0.05, wall_s=5.0, memory_bytes=512 << 20)
QUICK_S = 0.02
"""The CPU time in `job_runner` is more than a job has in five seconds of a machine of busy tests."""
MAX_RESULT_BYTES = 1 << 20
"""A busy machine may take longer than these jobs have for the 64 MiB of `job_runner`."""


def do(payload: bytes) -> bytes:
    match payload.decode().split():
        case ["echo", word]:
            print(word, file=sys.stdout)
            return word.encode()
        case ["zeros", count]:
            return bytes(int(count))
        case ["pid"]:
            return str(os.getppid()).encode()
        case [fault]:
            return fail(fault)
    return b""


def fail(fault: str) -> bytes:
    match fault:
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(600)
        case "work":  # for as long as makes it stand back
            while time.process_time() < 1.5 * QUICK_S:
                pass
            time.sleep(600)
        case "allocate":
            return bytes(1 << 40)
        case "fail":
            raise ValueError("it failed")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
    return b""


if __name__ == "__main__":
    job_runner.QUICK_S = QUICK_S
    job_runner.MAX_RESULT_BYTES = MAX_RESULT_BYTES
    serve_jobs(do, LIMITS)
