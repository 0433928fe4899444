"""Late interaction: how near each token of a question comes to some token of a passage (MaxSim of ColBERT:
Khattab and Zaharia 2020, arXiv:2004.12832).

With the token states of the encoder that searches by meaning, which nobody has taught this, so that it needs
no other weights; its scores count beside those of the search. What passages' tokens mean does not depend on
the question: the states of lately seen ones are kept, and passages that are asked about again cost one matrix
product. Each corpus has its own, and each tenant those of the texts that it sends: no other's pushes them out
beyond its share, and how soon an answer comes tells nobody what another one has asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from shared.fair_cache import FairCache
from shared.retrieval.encoders.embedder import DIMENSIONS, Embedder, TextStates
from shared.retrieval.encoders.rerank import ScoredTexts

NAME = "late-interaction"
WEIGHT = 0.36
"""Weight of one of its scores beside one of the search, for a question that the encoder knows wholly."""
DIGEST_BYTES = 16
KEPT_TEXT_BYTES = 512
"""The memory of a text with all that is around its states."""
STEPS = 127


@dataclass(frozen=True, slots=True)
class KeptStates:
    """A text's: row t is `steps[t]` [DIMENSIONS] times `scales[t]`. At least one row, of zeros where the text
    has no token."""

    steps: npt.NDArray[np.int8]  # [tokens, DIMENSIONS]
    scales: npt.NDArray[np.float32]  # [tokens]
    read: int
    truncated: bool

    @classmethod
    def of(cls, text: TextStates) -> KeptStates:
        states = text.states if len(text.states) else np.zeros((1, DIMENSIONS), np.float32)
        scales = np.abs(states).max(axis=1) / STEPS
        steps = np.rint(states / np.maximum(scales, 1e-12)[:, None]).astype(np.int8)
        return cls(steps, scales.astype(np.float32), text.read, text.truncated)

    @property
    def kept_bytes(self) -> int:
        return self.steps.nbytes + self.scales.nbytes + KEPT_TEXT_BYTES


class LateInteraction:
    """A Reranker. One thread at a time."""

    name = NAME

    def __init__(self, embedder: Embedder, *, max_bytes: int, threads: int = 1) -> None:
        """States of texts are kept up to `max_bytes`; of the owner with most, those asked for least lately
        go."""
        self._embedder = embedder
        self._threads = threads
        self._kept: FairCache[bytes, KeptStates] = FairCache(max_bytes // KEPT_TEXT_BYTES, max_bytes)
        self._question = ""
        self._asked: tuple[TextStates, float] | None = None

    def weight(self, question: str) -> float:
        """Return the weight of these scores beside the search's: in a language that the encoder was not
        taught its states say as little as its vectors."""
        _, known = self._states_of_question(question)
        return WEIGHT * known

    def score_texts(self, question: str, texts: Sequence[str], owner: str = "") -> ScoredTexts:
        """Score texts from -1 to 1: the mean over the question's tokens of the largest cosine with one of the
        text's."""
        asked, _ = self._states_of_question(question)
        found = self._states_of(texts, owner)
        return ScoredTexts(
            _max_similarity(asked.states, found),
            [asked.read + text.read for text in found],
            [asked.truncated or text.truncated for text in found],
        )

    def _states_of_question(self, question: str) -> tuple[TextStates, float]:
        """Batch after batch of texts comes with the same one."""
        if self._asked is None or question != self._question:
            self._question, self._asked = question, self._embedder.question_states(question)
        return self._asked

    def _states_of(self, texts: Sequence[str], owner: str) -> list[KeptStates]:
        digests = [_digest(text) for text in texts]
        found = {each: kept for each in digests if (kept := self._kept.get(owner, each)) is not None}
        new = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in found}
        if new:
            made = self._embedder.passage_states(list(new.values()), threads=self._threads)
            for digest, states in zip(new, made, strict=True):
                found[digest] = kept = KeptStates.of(states)
                self._kept.put(owner, digest, kept, kept.kept_bytes)
        return [found[digest] for digest in digests]


def _max_similarity(asked: npt.NDArray[np.float32], texts: Sequence[KeptStates]) -> list[float]:
    if not texts or not len(asked):
        return [0.0] * len(texts)
    steps = torch.from_numpy(np.concatenate([text.steps for text in texts])).float()  # [tokens, DIMENSIONS]
    products = torch.from_numpy(asked) @ steps.T  # in torch, which keeps to the threads that it was given
    cosines = products.numpy() * np.concatenate([text.scales for text in texts])  # [question tokens, tokens]
    starts = np.cumsum([0, *(len(text.steps) for text in texts[:-1])])
    largest = np.maximum.reduceat(cosines, starts, axis=1)  # [question tokens, texts]
    scores: list[float] = largest.mean(axis=0).tolist()
    return scores


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
