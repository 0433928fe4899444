"""One side of a comparison: a server that is there, or a stack that is started for it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from services.cli.bench.stacks.commit_tree import checkout_commit, commit_tree
from services.cli.bench.stacks.own_stack import RoleSettings, StackPlan, own_stack, stack_settings
from services.cli.launcher_process import ROOT
from shared.errors import InvalidRequest

UP = "up"
COMMIT = "commit:"
DETACHING = ("-d", "--detach")


@dataclass(frozen=True, slots=True)
class SideServer:
    """`options` of `penstock bench serve` lead to it. Of a stack that was started `commit` is its code, and
    `settings` are those that are no defaults, by role; "" and None: not known."""

    options: tuple[str, ...]
    commit: str = ""
    settings: RoleSettings | None = None


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
    async def server(self) -> AsyncIterator[SideServer]:
        """Yield its server, which is started for as long if it has to be.

        Raises InvalidRequest, Unavailable.
        """
        if self.up is None:
            yield SideServer(self.serve)
            return
        async with contextlib.AsyncExitStack() as context:
            commit, tree = await checkout_commit(), ROOT
            if self.commit:
                commit, tree = await context.enter_async_context(commit_tree(self.commit))
            plan = StackPlan(self.up, tree)
            settings = await stack_settings(plan)
            stack = await context.enter_async_context(own_stack(plan))
            pids = [word for pid in stack.pids.values() for word in ("--server-pid", str(pid))]
            yield SideServer(("--grpc", stack.address("grpc"), *pids), commit, settings)


def _up_options(words: list[str]) -> tuple[str, ...]:
    if any(word in DETACHING for word in words):
        raise InvalidRequest("a stack that is compared ends with the comparison: leave out -d")
    return tuple(words)
