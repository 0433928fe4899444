"""Start programs as they are, where others begin at the end of their imports (`ready_programs`)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

START: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]
"""Python's own, by which `Popen` and so asyncio start a program."""
FORKABLE = "forkable.py"
"""The name of a file with a program that need not be fresh. It needs our code in PYTHONPATH where it is."""


@contextmanager
def fresh_programs() -> Iterator[None]:
    """Meanwhile every program is started as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "_fork_exec", START)
        yield
