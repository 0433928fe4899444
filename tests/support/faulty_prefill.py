"""A prefill worker whose first step goes wrong, in its first life.

FAULT: hang, or what the step raises: error, panic, cancelled. FAULT_ONCE names a file that the life with the
fault leaves behind.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import threading
from pathlib import Path

from shared.engine import Engine, StepResult

MARK = Path(os.environ["FAULT_ONCE"])
FAULT = os.environ["FAULT"]


class Panic(BaseException):
    """As those of extensions in Rust: no Exception."""


FAULTS = {"error": RuntimeError("the model broke"), "panic": Panic(), "cancelled": asyncio.CancelledError()}


def fail(self: Engine) -> StepResult:
    MARK.touch()
    if FAULT == "hang":
        threading.Event().wait()
    raise FAULTS[FAULT]


if __name__ == "__main__":
    if not MARK.exists():
        Engine.step = fail  # type: ignore[method-assign]  # the fault that is tested
    runpy.run_module("services.prefill", run_name="__main__", alter_sys=True)
