"""Names of the blocks of one request, as the workers that it may be routed to call them."""

from __future__ import annotations

from collections.abc import Sequence

from shared.blocks.block_hash import HASH_BLOCK_TOKENS, BlockHasher


class RequestHashes:
    """A tokenizer has named the prompt's blocks for workers of one KV layout: `prompt_hashes` for `layout`.
    `adapter` is the digest of the adapter that they are of, "" for none.

    What was generated since, and everything for workers of another layout, is named here.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        layout: str,
        tenant: str,
        prompt_hashes: Sequence[bytes],
        *,
        adapter: str = "",
    ) -> None:
        self.layout = layout
        self._hasher = hasher
        self._tenant = tenant
        self._adapter = adapter
        self._prompt_hashes = prompt_hashes

    def hashes_of(self, token_ids: Sequence[int], layout: str) -> tuple[bytes, ...]:
        """Return the hashes of all full blocks of `token_ids`, which begin with the prompt, for workers of
        `layout`."""
        names = list(self._prompt_hashes) if layout == self.layout else []
        seed = self._hasher.seed(layout, self._tenant, self._adapter)
        self._hasher.extend(names, token_ids, len(token_ids) // HASH_BLOCK_TOKENS, seed)
        return tuple(names)
