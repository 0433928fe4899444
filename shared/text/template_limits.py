"""Bound what a chat template may take: its loops and calls are counted, and nothing in it grows too long.

A template comes with a model from anywhere, and is rendered within a request. The sandbox keeps it from
Python and says nothing of time and memory: two nested loops are 10 billion rounds, one `*` is gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_STEPS = 500_000
"""Rounds of loops and calls of one rendering: some 0.1 s. A chat of 256 turns takes a few thousand."""
MAX_TEMPLATE_ITEMS = 8 << 20
"""The longest text or list that a template may make of shorter ones."""
MAX_INTEGER_BITS = 4096
"""The largest whole number that a template may make."""
_COUNT = "counted"
_WIDTH = re.compile(r"\d{5}|\*")
"""A width of a format that no chat has, or one that stands elsewhere."""
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")

_steps: ContextVar[list[int]] = ContextVar("template_steps")
"""The steps that are left to the rendering of this thread."""


@contextmanager
def counted_steps() -> Iterator[None]:
    """Give a rendering its steps."""
    token = _steps.set([MAX_TEMPLATE_STEPS])
    try:
        yield
    finally:
        _steps.reset(token)


def _step() -> None:
    left = _steps.get()
    left[0] -= 1
    if left[0] < 0:
        raise SecurityError(f"it takes more than {MAX_TEMPLATE_STEPS} rounds and calls")


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _step()
        yield item


def _check_length(length: int) -> None:
    if length > MAX_TEMPLATE_ITEMS:
        raise SecurityError(f"it makes a text or list of {length}, more than {MAX_TEMPLATE_ITEMS}")


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Raises SecurityError, a TemplateError, where a rendering goes beyond its limits."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters[_COUNT] = _counted
        for name in ("center", "indent"):
            self.filters[name] = _padded(self.filters[name])

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNT, [], [], None, None, lineno=loop.lineno)
        return super()._generate(source, *args, **kwargs)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template comes through here, by a name or of a method."""
        _step()
        text = getattr(called, "__self__", None)
        if isinstance(text, str):
            _check_method(text, getattr(called, "__name__", ""), args)
        return super().call(context, called, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """`format` of a text, which the sandbox looks at anyway."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDTH.search(value.__self__):
            raise SecurityError("it formats with a width that no chat has")
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**` and `%` come through here."""
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                if isinstance(repeated, Sized) and isinstance(times, int):
                    _check_length(len(repeated) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * max(0, right) > MAX_INTEGER_BITS:
                raise SecurityError(f"it makes a number of more than {MAX_INTEGER_BITS} bits")
        elif operator == "%" and isinstance(left, str) and _WIDTH.search(left):
            raise SecurityError("it formats with a width that no chat has")
        if isinstance(left, int) and isinstance(right, int) and operator == "*":
            _check_integers(left, right)
        return super().call_binop(context, operator, left, right)


def _check_integers(left: int, right: int) -> None:
    if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
        raise SecurityError(f"it makes a number of more than {MAX_INTEGER_BITS} bits")


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    numbers = [each for each in args if isinstance(each, int)]
    texts = [each for each in args if isinstance(each, str)]
    if name in _PADDING and numbers:
        _check_length(numbers[0] * (len(text) if name == "expandtabs" else 1))
    elif name == "replace" and len(texts) > 1:
        _check_length(len(text) + text.count(texts[0]) * len(texts[1]))


def _padded(filter_of: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose widths are bounded; those two pad each line at most."""

    def padded(value: Any, width: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(width, int):
            _check_length(width * (str(value).count("\n") + 1))
        return filter_of(value, *(() if width is None else (width,)), *args, **options)

    return padded
