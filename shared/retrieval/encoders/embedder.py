"""Texts → vectors of meaning, with all-MiniLM-L6-v2: of each text one, or of each of its tokens."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from tokenizers import Encoding, Tokenizer

from shared.engine.loading.encoder import EncoderWeights
from shared.engine.native.encoder import Arithmetic
from shared.engine.native.weight_cache import WeightCache
from shared.process.file_pages import give_back_pages
from shared.retrieval.encoders.bert import read_encoder
from shared.retrieval.encoders.model_files import CONFIG, SHA256, WEIGHTS, find_model_files
from shared.retrieval.encoders.packed_encoders import PackedEncoders
from shared.retrieval.encoders.text_encoder import TextEncoder
from shared.retrieval.encoders.vectors import Vectors

MODEL_NAME = "all-MiniLM-L6-v2"
DIMENSIONS: int = CONFIG["hidden_size"]
MAX_TOKENS = 256
"""The tokens that are embedded: a longer text is embedded by its beginning, as the model was trained."""

UNKNOWN = "[UNK]"
QUESTION_ARITHMETIC: Arithmetic = "bfloat16"
PASSAGE_ARITHMETIC: Arithmetic = "int8"


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """The vector of each text, how many of its tokens are in it, and whether there were more."""

    vectors: Vectors
    tokens: list[int]
    truncated: list[bool]


@dataclass(frozen=True, slots=True)
class EmbeddedQuestions:
    """The vector of each question, whether it is that of its beginning alone, and how much of the question
    the encoder knows: the share of its letters in words that its vocabulary has whole. A language that it was
    not trained on comes as single characters and pieces, and a vector of those means little."""

    vectors: Vectors
    truncated: list[bool]
    known: list[float]


@dataclass(frozen=True, slots=True)
class TextStates:
    """The states of a text's tokens, all but the special ones: rows of length 1, [tokens, DIMENSIONS]. `read`
    counts all that were read, of a text that had more where `truncated`."""

    states: Vectors
    read: int
    truncated: bool


class Embedder:
    """Loaded once per process; called from any number of threads, each of which computes its texts."""

    def __init__(
        self,
        weights: EncoderWeights,
        tokenizer: Tokenizer,
        threads: int = 1,
        packed: PackedEncoders | None = None,
    ) -> None:
        """`threads`: how many batches are computed at the same time where there are several."""
        self._encoder = TextEncoder(weights, QUESTION_ARITHMETIC, threads=threads, packed=packed)
        self._passage_encoder = TextEncoder(weights, PASSAGE_ARITHMETIC, threads=threads, packed=packed)
        self._packed = packed
        self._mapped: Path | None = None
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)

    @property
    def is_native(self) -> bool:
        """It runs on the kernels: elsewhere a passage takes ten times as long."""
        return self._passage_encoder.is_native

    @classmethod
    def load(cls, *, threads: int = 1, cache: WeightCache | None = None) -> Embedder:
        """`cache`: where packed weights are kept; None: they are packed in memory. Raises NotFound or
        ChecksumMismatch (see model_files)."""
        files = find_model_files()
        weights = read_encoder(CONFIG, load_file(str(files.weights)))
        packed = None if cache is None else PackedEncoders(cache, SHA256[WEIGHTS])
        embedder = cls(weights, Tokenizer.from_file(str(files.tokenizer)), threads, packed)
        embedder._mapped = files.weights
        embedder.give_back_pages()
        return embedder

    def give_back_pages(self) -> None:
        """Give back what is mapped of weights: texts read the rows of their words again, and packed weights
        where these are in a file."""
        if self._mapped is not None:
            give_back_pages(self._mapped)
        if self._packed is not None:
            self._packed.give_back_pages()

    def embed(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> Vectors:
        """Unit vectors [len(texts), DIMENSIONS]; `progress` gets the number of texts done so far."""
        ids = [encoding.ids for encoding in self._encode(texts)]
        return _unit(self._encoder.encode(ids, "mean", progress=progress))

    def embed_passages(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> Vectors:
        """The same for the many texts of an index, in PASSAGE_ARITHMETIC."""
        ids = [encoding.ids for encoding in self._encode(texts)]
        return _unit(self._passage_encoder.encode(ids, "mean", progress=progress))

    def embed_counted(self, texts: Sequence[str]) -> EmbeddedTexts:
        """The same vectors, with what became of each text."""
        encodings = self._encode(texts)
        return EmbeddedTexts(
            _unit(self._encoder.encode([encoding.ids for encoding in encodings], "mean")),
            [len(encoding.ids) for encoding in encodings],
            [bool(encoding.overflowing) for encoding in encodings],
        )

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        """The same vectors, with what they are worth."""
        encodings: list[Encoding] = self._tokenizer.encode_batch(list(questions))
        return EmbeddedQuestions(
            _unit(self._encoder.encode([encoding.ids for encoding in encodings], "mean")),
            [bool(encoding.overflowing) for encoding in encodings],
            [_known_share(*each) for each in zip(questions, encodings, strict=True)],
        )

    def question_states(self, question: str) -> tuple[TextStates, float]:
        """Return the states of a question, and how much of it the encoder knows, as in EmbeddedQuestions."""
        encoding = self._tokenizer.encode(question)
        (found,) = self._states([encoding], self._encoder, threads=1)
        return found, _known_share(question, encoding)

    def passage_states(self, texts: Sequence[str], *, threads: int) -> list[TextStates]:
        """Compute the states of passages in PASSAGE_ARITHMETIC; `threads`: how many batches at a time."""
        return self._states(self._encode(texts), self._passage_encoder, threads)

    def _states(self, encodings: Sequence[Encoding], encoder: TextEncoder, threads: int) -> list[TextStates]:
        states = _unit(encoder.encode([each.ids for each in encodings], "none", threads=threads))
        of_each = np.split(states, np.cumsum([len(each.ids) for each in encodings])[:-1])
        return [
            TextStates(rows[np.array(each.special_tokens_mask) == 0], len(each.ids), bool(each.overflowing))
            for rows, each in zip(of_each, encodings, strict=True)
        ]

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        encodings: list[Encoding] = self._tokenizer.encode_batch_fast(list(texts))  # nobody asks for offsets
        return encodings


def _known_share(text: str, encoding: Encoding) -> float:
    pieces = Counter(word for word in encoding.word_ids if word is not None)
    known = total = 0
    for token, word, (start, end) in zip(encoding.tokens, encoding.word_ids, encoding.offsets, strict=True):
        letters = sum(unicodedata.category(char)[0] in "LM" for char in text[start:end])
        total += letters
        if word is not None and pieces[word] == 1 and letters > 1 and token != UNKNOWN:
            known += letters
    return known / total if total else 0.0


def _unit(means: Vectors) -> Vectors:
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return np.asarray(means / np.maximum(lengths, 1e-12), dtype=np.float32)
