"""python -m tests.support.odd_jobs: a process of jobs that do what their payload says."""

from __future__ import annotations

import os
import signal
import sys
import time

from shared.process.job_runner import JobLimits, serve_jobs

LIMITS = JobLimits(cpu_s=0.3, wall_s=3.0, memory_bytes=512 << 20)


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
    serve_jobs(do, LIMITS)
