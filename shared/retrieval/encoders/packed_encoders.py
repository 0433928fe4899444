"""An encoder's weights as the kernels read them, in files that all processes of a host map."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import partial

from shared.engine.loading.encoder import EncoderWeights
from shared.engine.native.encoder import Arithmetic, most_packed, packed_linears
from shared.engine.native.packing import PackedPart
from shared.engine.native.weight_cache import WeightCache, cache_key
from shared.process.file_pages import give_back_pages


class PackedEncoders:
    """The packed encoders of one checkpoint, in a weight cache: a file for each arithmetic."""

    def __init__(self, cache: WeightCache, checkpoint_digest: str) -> None:
        self._cache = cache
        self._checkpoint_digest = checkpoint_digest
        self._keys: list[str] = []

    def load(
        self, kernels: ctypes.CDLL, weights: EncoderWeights, arithmetic: Arithmetic
    ) -> Mapping[str, PackedPart] | None:
        """Return the linear maps of `weights`, packed here where no file has them yet. None: they must be had
        without the cache."""
        key = cache_key(("encoder", self._checkpoint_digest, arithmetic))
        self._keys.append(key)
        pack = partial(packed_linears, kernels, weights, arithmetic)
        return self._cache.load(kernels, key, most_packed(weights), pack)

    def give_back_pages(self) -> None:
        """Give back what is mapped of them until somebody computes again."""
        for key in self._keys:
            give_back_pages(self._cache.file(key))
