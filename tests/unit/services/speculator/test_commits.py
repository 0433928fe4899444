"""Commits as they are read."""

from __future__ import annotations

import pytest

from services.speculator.commits import CommitRow, read_commit
from shared.errors import ProtocolError
from shared.messages import DraftCommit


def test_an_older_decode_worker_wishes_for_nothing_ahead() -> None:
    (row,) = read_commit(DraftCommit("d", ("r",), (1,), (3,), ((7,),), (4,)))
    assert row == CommitRow("r", 1, 3, (7,), 4, 0, 0, b"")


def test_a_row_has_its_part_of_each_column() -> None:
    commit = DraftCommit("d", ("a", "b"), (1, 2), (3, 4), ((7,), ()), (4, 5), (2, 0), (3, 1), 9, (b"x", b"y"))
    assert list(read_commit(commit))[1] == CommitRow("b", 2, 4, (), 5, 0, 1, b"y")


@pytest.mark.parametrize(
    "commit",
    [
        DraftCommit("d", ("r",), (1, 2), (3,), ((7,),), (4,)),
        DraftCommit("d", ("r",), (1,), (3,), ((7,),), (4,), (1, 2)),
        DraftCommit("d", ("r",), (1,), (3,), ((7,),), (4,), (), (), 0, (b"", b"")),
    ],
)
def test_columns_that_do_not_belong_together_are_refused(commit: DraftCommit) -> None:
    with pytest.raises(ProtocolError, match="other lengths"):
        read_commit(commit)
