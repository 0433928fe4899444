"""A prefill worker whose first step never ends, in its first life: `python -m tests.support.hanging_prefill`.

HANG_ONCE names a file that the life which hangs leaves behind.
"""

from __future__ import annotations

import os
import runpy
import threading
from pathlib import Path

from shared.engine import Engine, StepResult

MARK = Path(os.environ["HANG_ONCE"])


def hang(self: Engine) -> StepResult:
    MARK.touch()
    threading.Event().wait()
    raise AssertionError


if __name__ == "__main__":
    if not MARK.exists():
        Engine.step = hang  # type: ignore[method-assign]  # the fault that is tested
    runpy.run_module("services.prefill", run_name="__main__", alter_sys=True)
