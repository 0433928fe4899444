"""The digest of all tokens of a draft session: both sides make it, and a difference is no longer silent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from shared.messages import pack_ids

DIGEST_BYTES = 8
"""The two sides trust each other: what it is to show are lost messages and faults, not forgeries."""


class PrefixDigest:
    """It grows with the tokens, and is the same however they were cut into commits."""

    __slots__ = ("_hash",)

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self._hash = hashlib.blake2b(pack_ids(token_ids), digest_size=DIGEST_BYTES)

    def extend(self, token_ids: Iterable[int]) -> None:
        self._hash.update(pack_ids(token_ids))

    @property
    def value(self) -> bytes:
        """Return the digest of all tokens so far."""
        return self._hash.digest()
