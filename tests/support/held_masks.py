"""Masks that a test holds up: from `hold` on those of one grammar are computed when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from shared.engine.sampling.grammar import CompiledGrammar, GrammarState
from shared.engine.sampling.id_bits import IdBits
from shared.sampling.parameters import Grammar


class HeldMasks:
    def __init__(self, *, burning: bool) -> None:
        self._burning = burning
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def hold(self) -> None:
        """Hold all masks from now on, until `go_on`."""
        self.go_on.clear()

    def wait(self) -> None:
        if self.go_on.is_set():
            return
        self.begun.set()
        while self._burning and not self.go_on.is_set():
            pass
        assert self.go_on.wait(60.0)


@contextmanager
def held_masks(slow: Grammar, *, burning: bool = False) -> Iterator[HeldMasks]:
    """Sequences of `slow` that begin in here wait for masks from `hold` to `go_on`, which is set at the end.
    `burning`: they take a core meanwhile."""
    held = HeldMasks(burning=burning)
    begin, masks = GrammarState.__init__, GrammarState.masks
    texts: dict[int, str] = {}

    def noted(state: GrammarState, grammar: CompiledGrammar, output_ids: Sequence[int] = ()) -> None:
        texts[id(state)] = grammar.text
        begin(state, grammar, output_ids)

    def waiting(state: GrammarState, drafts: Sequence[int]) -> list[IdBits | None]:
        if texts.get(id(state)) == slow.text:
            held.wait()
        return masks(state, drafts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrammarState, "__init__", noted)
        patch.setattr(GrammarState, "masks", waiting)
        try:
            yield held
        finally:
            held.go_on.set()
