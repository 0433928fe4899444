"""Put a planted fault into this process: the functions of its module run the changed code meanwhile.

Who has imported a function or a class before has the changed one too, and nothing is imported again.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.simulation.mutants.mutant import Mutant


def source_of(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text("utf-8")


def changed(source: str, mutant: Mutant) -> str:
    """Raises ValueError unless what the mutant changes stands in the source exactly once."""
    if source.count(mutant.right) != 1:
        raise ValueError(f"{mutant.name}: what it changes stands {source.count(mutant.right)} times there")
    return source.replace(mutant.right, mutant.wrong)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The fault is there in this block. Raises ValueError where it changes no function."""
    module = importlib.import_module(mutant.module)
    source = source_of(module)
    codes = [dict(_codes(compile(text, mutant.module, "exec"))) for text in (source, changed(source, mutant))]
    before, after = codes
    differing = {name for name, code in after.items() if before.get(name) != code}
    swapped = [function for function in _functions(module) if function.__qualname__ in differing]
    if not swapped:
        raise ValueError(f"{mutant.name}: it changes no function of {mutant.module}")
    right = [function.__code__ for function in swapped]
    try:
        for function in swapped:
            function.__code__ = after[function.__qualname__]
        yield
    finally:
        for function, code in zip(swapped, right, strict=True):
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield value
        elif inspect.isclass(value):
            yield from _methods(value)


def _methods(owner: type) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        method = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(method):
            yield method
