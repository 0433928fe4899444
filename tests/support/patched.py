"""A program some constants of which are other than in earnest, for what would only be waited for.

    python -m tests.support.patched shared.bus.connection:FIRST_CONNECT_S=0.3 services.cli status

`patched(program, constants)` makes these arguments.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

IMPATIENT = {"shared.bus.connection:FIRST_CONNECT_S": 0.3}
"""Gives up on a nats-server that is not there."""

ROUGH_LIMITS = {
    "shared.engine.measuring.limits:READ_BYTES": 1 << 20,
    "shared.engine.measuring.limits:MATMUL_SIZE": 64,
    "shared.engine.measuring.limits:ROUNDS": 1,
}
"""The machine's limits are measured in no time, and wrong."""


def patched(program: str, constants: Mapping[str, float]) -> tuple[str, ...]:
    """What follows `python -m` to run the module `program` with `constants`, named "module:NAME"."""
    settings = (f"{name}={json.dumps(value)}" for name, value in constants.items())
    return ("tests.support.patched", *settings, program)


def patch_here(patch: pytest.MonkeyPatch, constants: Mapping[str, float]) -> None:
    """The same in this process."""
    for name, value in constants.items():
        holder, constant = _place(name)
        patch.setattr(holder, constant, value)


def _place(name: str) -> tuple[ModuleType, str]:
    module, _, constant = name.partition(":")
    holder = importlib.import_module(module)
    assert hasattr(holder, constant), name
    return holder, constant


def main() -> None:
    arguments = sys.argv[1:]
    while "=" in arguments[0]:
        name, _, value = arguments.pop(0).partition("=")
        setattr(*_place(name), json.loads(value))
    sys.argv = arguments
    for module in (arguments[0], f"{arguments[0]}.__main__"):
        if not hasattr(sys.modules.get(module), "__path__"):  # a forked process has imported it already
            sys.modules.pop(module, None)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
