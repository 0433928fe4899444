"""Find extensions of Python that were compiled here, of sources like these."""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType

import structlog

log = structlog.get_logger()


@functools.cache
def built_extension(name: str, abi: int, stale: str) -> ModuleType | None:
    """Return the module; None where it was not built, or has another `ABI`, of which `stale` is logged."""
    try:
        found = import_module(name)
    except ImportError:
        return None
    if abi != found.ABI:
        log.warning(stale, help="run `make setup` or `pip install -e .` again")
        return None
    return found
