"""One side of a comparison: a server that is there, or a stack that is started for it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from services.cli.bench.stacks.commit_tree import commit_tree
from services.cli.bench.stacks.own_stack import StackPlan, own_stack
from services.cli.launcher_process import ROOT
from shared.errors import InvalidRequest

UP = "up"
COMMIT = "commit:"
DETACHING = ("-d", "--detach")


@dataclass(frozen=True, slots=True)
class AbSide:
    """`serve` are options of `penstock bench serve`. `up` are those of `penstock up` for a stack to start,
    of the code of `commit` if one is named; None: the server is there."""

    text: str
    serve: tuple[str, ...] = ()
    up: tuple[str, ...] | None = None
    commit: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a URL, HOST:PORT, options, "up …" or "commit:NAME [up …]". Raises InvalidRequest."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InvalidRequest(f"{text!r} has quotes that do not match ({error})") from error
        if not words:
            raise InvalidRequest("a side is empty: write a URL, HOST:PORT, options, up … or commit:NAME")
        first, *rest = words
        if first == UP:
            return cls(text, up=_up_options(rest))
        if first.startswith(COMMIT):
            if rest and rest[0] != UP:
                raise InvalidRequest(f"{text!r}: behind {first} stands nothing, or up and its options")
            return cls(text, up=_up_options(rest[1:]), commit=first.removeprefix(COMMIT))
        if first.startswith("-"):
            return cls(text, serve=tuple(words))
        return cls(
            text, serve=("--url", text) if first.startswith(("http://", "https://")) else ("--grpc", text)
        )

    @contextlib.asynccontextmanager
    async def options(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield the options that name its server, which is started for as long if it has to be.

        Raises InvalidRequest, Unavailable.
        """
        if self.up is None:
            yield self.serve
            return
        async with contextlib.AsyncExitStack() as context:
            tree = await context.enter_async_context(commit_tree(self.commit)) if self.commit else ROOT
            stack = await context.enter_async_context(own_stack(StackPlan(self.up, tree)))
            yield ("--grpc", stack.address("grpc"))


def _up_options(words: list[str]) -> tuple[str, ...]:
    if any(word in DETACHING for word in words):
        raise InvalidRequest("a stack that is compared ends with the comparison: leave out -d")
    return tuple(words)
