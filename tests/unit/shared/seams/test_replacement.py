"""A seam is itself again behind the block in which something stood in for it, however that ended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shared.seams.replacement import replaced


def test_a_seam_is_itself_again_behind_the_block() -> None:
    seam, source = SimpleNamespace(read=1, draw=2, own=3), SimpleNamespace(read=10, draw=20)
    with replaced(seam, ("read", "draw"), source):
        assert (seam.read, seam.draw, seam.own) == (10, 20, 3)
    assert (seam.read, seam.draw, seam.own) == (1, 2, 3)


def test_neither_an_error_nor_a_source_that_lacks_something_leaves_it_changed() -> None:
    seam = SimpleNamespace(read=1, draw=2)
    with pytest.raises(KeyError), replaced(seam, ("read",), SimpleNamespace(read=10)):
        raise KeyError
    with pytest.raises(AttributeError), replaced(seam, ("read", "draw"), SimpleNamespace(read=10)):
        raise AssertionError("it began")
    assert (seam.read, seam.draw) == (1, 2)
