"""Read commits: what became final of each session, and what is wished for behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shared.errors import ProtocolError
from shared.messages import DraftCommit


class CommitRow(NamedTuple):
    """One session's part of a commit; `fan` and `ahead_tokens` are 0, and `digest` is empty, where an
    older decode worker does not know them."""

    request_id: str
    epoch: int
    base: int
    token_ids: tuple[int, ...]
    num_tokens: int
    fan: int
    ahead_tokens: int
    digest: bytes


def read_commit(commit: DraftCommit) -> Iterator[CommitRow]:
    """Raises ProtocolError, before the first, for columns that do not belong together."""
    rows = len(commit.request_ids)
    required = (commit.epochs, commit.bases, commit.token_ids, commit.lengths)
    optional = (commit.fans, commit.ahead_lengths, commit.prefix_digests)
    lacks = any(len(column) != rows for column in required)
    if lacks or any(len(column) not in (0, rows) for column in optional):
        raise ProtocolError(f"a draft commit has columns of other lengths than its {rows} rows")
    return map(
        CommitRow,
        commit.request_ids,
        *required,
        commit.fans or (0,) * rows,
        commit.ahead_lengths or (0,) * rows,
        commit.prefix_digests or (b"",) * rows,
    )
