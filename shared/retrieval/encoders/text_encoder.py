"""A BERT encoder over many texts: on the kernels where they run, else in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shared.engine.loading.encoder import EncoderLayer, EncoderWeights
from shared.engine.loading.linear import DenseLinear
from shared.engine.native.cpu_features import usable_features
from shared.engine.native.encoder import (
    Arithmetic,
    EncoderInput,
    NativeEncoder,
    Pooling,
    States,
    fits_kernels,
    packed_linears,
)
from shared.engine.native.library import library
from shared.errors import InvalidRequest
from shared.retrieval.encoders.bert import hidden_states
from shared.retrieval.encoders.packed_encoders import PackedEncoders
from shared.seams.threads import THREADS

BATCH_TOKENS = 4096
"""The most tokens of texts computed together, where there is more than one."""
LEAST_TOKENS = 256
"""Fewer are not worth another thread."""

TokenIds = Sequence[Sequence[int]]


class TextEncoder:
    """`encode` may be called from any number of threads; results do not depend on how texts are batched
    beyond the last bits, on the kernels not at all."""

    def __init__(
        self,
        weights: EncoderWeights,
        arithmetic: Arithmetic,
        *,
        threads: int = 1,
        native: bool = True,
        packed: PackedEncoders | None = None,
    ) -> None:
        """`threads`: how many batches are computed at the same time where nobody says another number. Where
        the kernels cannot run, int8 is bfloat16, and that float32 on a CPU that would only imitate it.
        `packed`: where the weights lie, or will, as the kernels read them."""
        self.hidden = weights.words.shape[1]
        self.max_tokens = len(weights.positions)
        self._vocab, self._num_kinds = len(weights.words), len(weights.kinds)
        self._threads = threads
        kernels = library() if native and fits_kernels(weights) else None
        self.is_native = kernels is not None
        """It runs on the kernels."""
        if kernels is not None:
            parts = None if packed is None else packed.load(kernels, weights, arithmetic)
            if parts is None:
                parts = dict(packed_linears(kernels, weights, arithmetic))
            self._encode = NativeEncoder(kernels, weights, parts).encode
        else:
            half = arithmetic != "float32" and _computes_bf16()
            self._encode = partial(_encode_padded, _half_precision(weights) if half else weights)

    def encode(
        self,
        texts: TokenIds,
        pooling: Pooling,
        *,
        kinds: TokenIds | None = None,
        progress: Callable[[int], None] | None = None,
        threads: int = 0,
    ) -> States:
        """Return for each text the mean of its tokens' last states, or its first token's [texts, hidden];
        with pooling `none` the states of all tokens [tokens, hidden], text by text.

        `kinds` (in BERT, 0 of the first text and 1 of the second) are all 0 where none are given. `progress`
        gets the number of texts done so far. `threads`: as when it was made, 0 for those. Raises
        InvalidRequest for a text that the encoder cannot take.
        """
        given = EncoderInput.of(texts, kinds)
        self._check(given)
        lengths = np.diff(given.starts)
        rows = given.starts if pooling == "none" else np.arange(len(lengths) + 1)
        out = np.empty((rows[-1], self.hidden), dtype=np.float32)
        threads = threads or self._threads
        batches = _batches(lengths, threads)
        done = 0
        made = self._encode_batches(given, batches, pooling, threads)
        for batch, states in zip(batches, made, strict=True):
            places = batch if pooling != "none" else _spans(given, batch)
            out[places] = states
            done += len(batch)
            if progress is not None:
                progress(done)
        return out

    def _encode_batches(
        self, given: EncoderInput, batches: Sequence[np.ndarray], pooling: Pooling, threads: int
    ) -> Iterator[States]:
        """Encode batches in their order. Batches beside each other use cores better than the small products
        within one."""
        inputs = [_taken(given, batch) for batch in batches]

        def encode(batch: EncoderInput) -> States:
            return self._encode(batch, pooling)

        if min(threads, len(batches)) <= 1:
            yield from map(encode, inputs)
            return
        pool = THREADS.pool(threads, "encode", initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield from pool.map(encode, inputs)
        finally:  # also when nobody wants the rest
            pool.shutdown(cancel_futures=True)

    def _check(self, given: EncoderInput) -> None:
        lengths = np.diff(given.starts)
        if len(lengths) and not 0 < lengths.min() <= lengths.max() <= self.max_tokens:
            raise InvalidRequest(
                f"texts have {lengths.min()} to {lengths.max()} tokens; "
                f"the encoder takes 1 to {self.max_tokens}"
            )
        for ids, end, what in (
            (given.token_ids, self._vocab, "token ids"),
            (given.kinds, self._num_kinds, "kinds"),
        ):
            if len(ids) and not 0 <= ids.min() <= ids.max() < end:
                raise InvalidRequest(
                    f"{what} are from {ids.min()} to {ids.max()}; the encoder has {end} of them"
                )


def _batches(lengths: np.ndarray, threads: int) -> list[np.ndarray]:
    """The texts' places, longest first: little padding, and the batches that are computed at the same time
    have about as many tokens each."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    if not len(ends):
        return []
    size = min(BATCH_TOKENS, max(LEAST_TOKENS, -(-int(ends[-1]) // threads)))
    middles = ends - lengths[order] // 2
    return np.split(order, np.flatnonzero(np.diff((middles - 1) // size)) + 1)


def _spans(given: EncoderInput, batch: np.ndarray) -> np.ndarray:
    """The places of the batch's tokens among all."""
    return np.concatenate([np.arange(given.starts[text], given.starts[text + 1]) for text in batch])


def _taken(given: EncoderInput, batch: np.ndarray) -> EncoderInput:
    places = _spans(given, batch)
    starts = np.zeros(len(batch) + 1, dtype=np.int32)
    np.cumsum(np.diff(given.starts)[batch], out=starts[1:])
    return EncoderInput(starts, given.token_ids[places], given.kinds[places])


@torch.inference_mode()
def _encode_padded(weights: EncoderWeights, texts: EncoderInput, pooling: Pooling) -> States:
    lengths = torch.from_numpy(np.diff(texts.starts))
    mask = torch.arange(int(lengths.max())) < lengths[:, None]  # [batch, length]
    ids, kinds = (
        torch.zeros(mask.shape, dtype=torch.long).masked_scatter_(mask, torch.from_numpy(flat).long())
        for flat in (texts.token_ids, texts.kinds)
    )
    hidden = hidden_states(weights, ids, mask, kinds)
    return np.asarray(_pooled(hidden, mask, pooling).numpy(), dtype=np.float32)


def _pooled(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    if pooling == "none":
        return hidden[mask]
    if pooling == "first":
        return hidden[:, 0]
    weight = mask.unsqueeze(-1).to(hidden.dtype)  # [batch, length, 1]
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1)


def _half_precision(weights: EncoderWeights) -> EncoderWeights:
    """Put linear maps into bfloat16; norms and word vectors, which cost nothing, stay as they are."""

    def half(linear: DenseLinear) -> DenseLinear:
        return replace(linear, weight=linear.weight.to(torch.bfloat16))

    def half_layer(layer: EncoderLayer) -> EncoderLayer:
        return replace(
            layer, qkv=half(layer.qkv), output=half(layer.output), up=half(layer.up), down=half(layer.down)
        )

    return replace(weights, layers=tuple(map(half_layer, weights.layers)))


def _computes_bf16() -> bool:
    """Whether the CPU computes bfloat16 and does not only imitate it, which is slower than float32."""
    return not usable_features().isdisjoint(("avx512_bf16", "amx_bf16"))
