"""Python imports this first in processes whose PYTHONPATH names this folder: so `bench_ttft` looks inside.

Notes on the clock that all processes of a host share when named functions were entered or left, and writes it
to a file of $PENSTOCK_STAMPS at the end. Functions are wrapped as their modules are imported; nothing of the
services knows of it.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_noted: list[tuple[int, str]] = []


def _note(label: str) -> None:
    _noted.append((time.monotonic_ns(), label))


def _wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with its beginning and its end noted."""

    @functools.wraps(call)
    def noted(*args: Any, **kwargs: Any) -> Any:
        _note(f"{name} begins")
        try:
            return call(*args, **kwargs)
        finally:
            _note(f"{name} ends")

    @functools.wraps(call)
    async def noted_in_turns(*args: Any, **kwargs: Any) -> Any:
        _note(f"{name} begins")
        try:
            return await call(*args, **kwargs)
        finally:
            _note(f"{name} ends")

    return noted_in_turns if inspect.iscoroutinefunction(call) else noted


def _coded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The codec's: by the type of the message, as soon as it is there."""

    @functools.wraps(call)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        message = args[0] if name == "encode" else result[1]
        _note(f"{name} {type(message).__name__}")
        return result

    return noted


WRAPPED = {
    "shared.bus.codec": [("", "encode", _coded), ("", "decode", _coded)],
    "shared.engine.engine_core": [("EngineCore", "run_step", _wrapped)],
    "services.gateway.grpc.edge": [
        ("InferenceEdge", "Generate", _wrapped),
        ("_CallWriter", "write_text", _wrapped),
    ],
}
"""The wrapped functions by module: class, function, how."""


class _Noting(MetaPathFinder, Loader):
    """Imports the modules of WRAPPED as usual, then wraps what is named there."""

    def __init__(self) -> None:
        self._usual: dict[str, Loader] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in WRAPPED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._usual[name], spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self._usual[module.__name__].exec_module(module)
        for owner, name, wrap in WRAPPED[module.__name__]:
            holder = getattr(module, owner) if owner else module
            setattr(holder, name, wrap(name, getattr(holder, name)))
        _write_at_end()


def _write(folder: Path) -> None:
    if _noted:
        lines = [f"{at_ns} {label}\n" for at_ns, label in _noted]
        (folder / f"{os.getpid()}.txt").write_text("".join(lines))


def _write_at_end() -> None:
    """Write before what was registered so far is called: `quiet_end` ends the process there."""
    atexit.unregister(_write)
    atexit.register(_write, Path(os.environ["PENSTOCK_STAMPS"]))


if "PENSTOCK_STAMPS" in os.environ:
    sys.meta_path.insert(0, _Noting())
