"""Processes that are killed just before they would have made something durable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def killed_at(call: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Runs `work` in a process of its own, which is killed before the step after so many; whether it was."""
    child = os.fork()
    if not child:
        left = [call]

        def counted(step: Callable[..., object]) -> Callable[..., object]:
            def stepped(*args: Any, **kwargs: Any) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(*args, **kwargs)

            return stepped

        try:
            for owner, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (np, "save")):
                monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
