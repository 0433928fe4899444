"""Find the key that a client presents. Pure: an edge gives what its `authorization` header has."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence

from shared.errors import Unauthenticated
from shared.files.api_key_file import ApiKey, hash_api_key

MAX_KEY_CHARS = 256
"""The longest presented key; a longer one is none of ours and is not even hashed."""
SEND_ONE = (
    "send the metadata `authorization: Bearer <key>` with a key that the operator of this gateway gave you"
)
BLIND_BYTES = 32


class ApiKeys:
    """The keys in force, found by a digest that nobody outside can compute.

    A table compares, and how long that takes depends on how much is equal. What it compares here is a digest
    keyed with random bytes of this process, so the time says nothing about any key.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._blind = secrets.token_bytes(BLIND_BYTES)
        self._keys = {self._blinded(key.hash): key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: str) -> ApiKey:
        """The entry of a presented key; raises Unauthenticated when there is none."""
        key = self._keys.get(self._blinded(hash_api_key(presented)))
        if key is None:
            raise Unauthenticated(
                "this gateway does not know the API key: send one of those that it was given"
            )
        return key

    def _blinded(self, key_hash: str) -> bytes:
        return hashlib.blake2b(key_hash.encode(), key=self._blind, digest_size=32).digest()


def presented_key(authorization: Sequence[str | bytes]) -> str:
    """The key in the values of an `authorization` header; raises Unauthenticated, never repeating a value."""
    if not authorization:
        raise Unauthenticated(f"this gateway wants an API key: {SEND_ONE}")
    if len(authorization) > 1:
        raise Unauthenticated(f"{len(authorization)} authorization values were sent: send one")
    value = authorization[0]
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    scheme, _, key = value.partition(" ")
    key = key.strip(" ")
    if scheme.lower() != "bearer" or not key:
        raise Unauthenticated(f"the authorization is no bearer key: {SEND_ONE}")
    if len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise Unauthenticated(f"what was sent is no key of this gateway: {SEND_ONE}")
    return key
